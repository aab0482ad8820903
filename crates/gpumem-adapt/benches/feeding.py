"""4 GiB of pageable memory in batches of 64 MiB, one added to each on the device, in PyTorch: as most programs do it, and tuned by hand.

usage: feeding.py [BATCH_BYTES] [BATCHES]
"""

import sys
import time

import torch

batch_bytes = int(sys.argv[1]) if len(sys.argv) > 1 else 64 << 20
batches = int(sys.argv[2]) if len(sys.argv) > 2 else 64
length = batch_bytes // 4
data = torch.ones(batches, length)
rounds = 5


def naive():
    for batch in data:
        batch.to("cuda").add_(1)
    torch.cuda.synchronize()


copy = torch.cuda.Stream()
pinned = [torch.empty(length, pin_memory=True) for _ in range(3)]
device = [torch.empty(length, device="cuda") for _ in range(3)]
copied = [torch.cuda.Event() for _ in range(3)]
used = [torch.cuda.Event() for _ in range(3)]


def tuned():
    for index, batch in enumerate(data):
        slot = index % 3
        copied[slot].synchronize()
        pinned[slot].copy_(batch)
        with torch.cuda.stream(copy):
            copy.wait_event(used[slot])
            device[slot].copy_(pinned[slot], non_blocking=True)
            copied[slot].record(copy)
        torch.cuda.current_stream().wait_event(copied[slot])
        device[slot].add_(1)
        used[slot].record()
    torch.cuda.synchronize()


def rate(work):
    work()
    seconds = []
    for _ in range(rounds):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return batch_bytes * batches / sorted(seconds)[rounds // 2] / 1e9


print(f"naive {rate(naive)}")
print(f"tuned {rate(tuned)}")
