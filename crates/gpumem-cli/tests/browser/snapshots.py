"""Writes a memory snapshot as torch.cuda.memory._dump_snapshot does: the events of a training loop, with shared frames.

snapshots.py FILE EVENT_COUNT
"""

import pickle
import random
import sys

TORCH = "/env/lib/python3.12/site-packages/torch/"
MIB = 1 << 20


def frame(name, filename, line):
    return {"name": name, "filename": filename, "line": line}


MAIN = [frame("train", "/data/ada/train.py", 118), frame("<module>", "/data/ada/train.py", 140)]
MODULE = [frame("_call_impl", TORCH + "nn/modules/module.py", 1773), frame("_wrapped_call_impl", TORCH + "nn/modules/module.py", 1762)]
EMPTY = [frame("at::detail::empty_generic", "??", 0), frame("at::native::empty_cuda", "??", 0)]


def stack(*own):
    return EMPTY + list(own) + MAIN


LINEAR = frame("forward", TORCH + "nn/modules/linear.py", 125)
WEIGHTS = stack(frame("__init__", "/data/ada/model.py", 21))
OPTIMIZER = stack(frame("step", TORCH + "optim/adamw.py", 243), frame("step", "/data/ada/train.py", 96))
BATCH = stack(frame("load", "/data/ada/data.py", 33))
GRADIENTS = stack(frame("backward", TORCH + "autograd/graph.py", 829), frame("step", "/data/ada/train.py", 92))
HISTORY = stack(frame("log", "/data/ada/train.py", 57))
LAYERS = [
    [
        stack(LINEAR, *MODULE, frame("attention", "/data/ada/model.py", 40 + part), *MODULE, frame("forward", "/data/ada/model.py", 88)),
        stack(LINEAR, *MODULE, frame("mlp", "/data/ada/model.py", 61 + part), *MODULE, frame("forward", "/data/ada/model.py", 88)),
    ]
    for part in range(3)
]


class Loop:
    def __init__(self, event_count):
        self.events, self.event_count = [], event_count
        self.random = random.Random(7)
        self.time_us, self.next, self.free = 1_700_000_000_000_000, 0x7F00_0000_0000, {}

    def add(self, action, address, size, stream, frames):
        self.time_us += self.random.randrange(1, 30)
        self.events.append({
            "action": action, "addr": address, "size": size, "stream": stream, "time_us": self.time_us,
            "compile_context": "N/A", "user_metadata": "", "frames": frames,
        })  # fmt: skip

    def alloc(self, size, frames, stream=0):
        size = (size + 511) // 512 * 512
        address = self.free[size].pop() if self.free.get(size) else self.next
        if address == self.next:
            self.next += size
        self.add("alloc", address, size, stream, frames)
        return address, size, stream, frames

    def release(self, block, pending=False):
        address, size, stream, frames = block
        self.add("free_requested", address, size, stream, frames)
        if not pending:
            self.complete(block)

    def complete(self, block):
        address, size, stream, frames = block
        self.add("free_completed", address, size, stream, frames)
        self.free.setdefault(size, []).append(address)

    def run(self):
        # 24 layers, as many as memory_viz shows with ease.
        weights = [self.alloc(self.random.choice([2, 4, 8]) * MIB, WEIGHTS) for _ in range(48)]
        states = []
        while len(self.events) < self.event_count:
            batch = self.alloc(self.random.randrange(4, 9) * MIB, BATCH, stream=7)
            layers = []
            for layer in range(24):
                part = LAYERS[layer % 3]
                for _ in range(3):
                    layers.append(self.alloc(self.random.randrange(1, 24) * MIB // 4, part[0]))
                    self.release(self.alloc(self.random.randrange(1, 9) * MIB // 4, part[1]))
            self.release(batch, pending=True)
            gradients = []
            while layers:
                self.release(layers.pop())
                if len(layers) % 2 == 0:
                    gradients.append(self.alloc(2 * MIB, GRADIENTS))
            self.complete(batch)
            if not states:
                states = [self.alloc(size, OPTIMIZER) for _, size, _, _ in weights for _ in range(2)]
            for block in gradients:
                self.release(block)
            # A list of losses that is never cleared.
            if self.random.random() < 0.5:
                self.alloc(max(512, 400 * MIB * 250 // self.event_count), HISTORY)
        self.events.append({
            "action": "oom", "device_free": 12 * MIB, "size": 512 * MIB, "stream": 0, "time_us": self.time_us + 5,
            "compile_context": "N/A", "user_metadata": "", "frames": LAYERS[0][0],
        })  # fmt: skip
        return self.events


def snapshot(event_count):
    loop = Loop(event_count)
    events = loop.run()
    size = (loop.next - 0x7F00_0000_0000 + 2 * MIB - 1) // (2 * MIB) * 2 * MIB
    segment = {"device": 0, "address": 0x7F00_0000_0000, "total_size": size, "allocated_size": 0, "active_size": 0, "requested_size": 0,
               "stream": 0, "segment_type": "large", "segment_pool_id": (0, 0), "is_expandable": False, "frames": WEIGHTS, "blocks": []}  # fmt: skip
    segment["blocks"] = [{"address": segment["address"], "size": size, "requested_size": 0, "state": "inactive", "frames": []}]
    return {"segments": [segment], "device_traces": [events], "allocator_settings": {"expandable_segments": False}, "external_annotations": []}


if __name__ == "__main__":
    with open(sys.argv[1], "wb") as output:
        pickle.dump(snapshot(int(sys.argv[2])), output)
