#!/usr/bin/env python3
"""Copies between two GPUs by PyTorch, with its own allocator and with gpumem: GB/s beside each other.

    python3 bench/torch_devices.py                 # needs PyTorch and two GPUs; about half a minute
    python3 bench/torch_devices.py --rounds 9 --json out.jsonl

Each allocator has a process of its own. They start together, and take turns, row by row and round by round. A row is the median of
the rounds, with the ratio to native's.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys

ALLOCATORS = {"native": None, "expandable": None, "gpumem": "", "gpumem native": "backend:native"}
SIZES = [1 << 12, 1 << 20, 16 << 20, 256 << 20, 1 << 30]
ROWS = [(source, 1 - source, size) for source in range(2) for size in SIZES]
# A measurement copies so many bytes, in so many copies at least and at most: a tenth of a second where the host carries them.
BYTES, COPIES = 2 << 30, (4, 200)


def serve(name, conf):
    """Measures a row for each line of the input, and prints GB/s."""
    import torch

    if name.startswith("gpumem"):
        import gpumem.torch

        gpumem.torch.install(conf=conf or None)
    for line in sys.stdin:
        source_device, target_device, size = json.loads(line)
        source = torch.ones(size, dtype=torch.uint8, device=f"cuda:{source_device}")
        target = torch.empty(size, dtype=torch.uint8, device=f"cuda:{target_device}")
        count = max(COPIES[0], min(COPIES[1], BYTES // size))
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        with torch.cuda.device(source_device):
            target.copy_(source)
            torch.cuda.synchronize(source_device)
            torch.cuda.synchronize(target_device)
            start.record()
            for _ in range(count):
                target.copy_(source)
            end.record()
            end.synchronize()
        assert bool((target == 1).all())
        # The processes share the devices' memory, and each keeps what it has had.
        del source, target
        torch.cuda.empty_cache()
        print(size * count / start.elapsed_time(end) / 1e6, flush=True)


def start(name, conf):
    options = {"PYTORCH_ALLOC_CONF": "expandable_segments:True", "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    environment = {**os.environ, **(options if name == "expandable" else {})}
    command = [sys.executable, __file__, "--serve", name, "--conf", conf or ""]
    return subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def ask(name, process, row):
    process.stdin.write(json.dumps(row) + "\n")
    process.stdin.flush()
    answer = process.stdout.readline()
    if not answer:
        sys.exit(f"{name} ended in {row}, with {process.wait()}")
    return float(answer)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", help="a file that gets a line for each row")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    parser.add_argument("--conf", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        return serve(arguments.serve, arguments.conf)
    processes = {name: start(name, conf) for name, conf in ALLOCATORS.items()}
    print("| copy, bytes | " + " | ".join(ALLOCATORS) + " |\n| --- |" + " ---: |" * len(ALLOCATORS), flush=True)
    for row in ROWS:
        rates = [{name: ask(name, process, row) for name, process in processes.items()} for _ in range(arguments.rounds)]
        medians = {name: statistics.median(round[name] for round in rates) for name in ALLOCATORS}
        cells = [f"{value:.2f} ({value / medians['native']:.2f})" for value in medians.values()]
        print(f"| {row[0]} to {row[1]}, {row[2]} | " + " | ".join(cells) + " |", flush=True)
        if arguments.json:
            with open(arguments.json, "a") as file:
                file.write(json.dumps({"from": row[0], "to": row[1], "bytes": row[2], "gb_per_s": medians}) + "\n")
    for name, process in processes.items():
        process.stdin.close()
        if process.wait() != 0:
            sys.exit(f"{name} ended with {process.returncode}")


if __name__ == "__main__":
    main()
