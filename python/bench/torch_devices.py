#!/usr/bin/env python3
"""Copies between two GPUs by PyTorch, with its own allocator and with gpumem: GB/s beside each other.

    python3 bench/torch_devices.py                 # needs PyTorch and two GPUs
    python3 bench/torch_devices.py --rounds 5 --json out.jsonl

Each allocator has a process of its own, and the processes take turns, round by round. A row is the median of the rounds, with the
ratio to native's.
"""

import argparse
import json
import statistics
import subprocess
import sys

ALLOCATORS = {"native": None, "expandable": None, "gpumem": "", "gpumem native": "backend:native"}
SIZES = [1 << 12, 1 << 20, 16 << 20, 256 << 20, 1 << 30]


def measure(name, conf):
    import torch

    if name.startswith("gpumem"):
        import gpumem.torch

        gpumem.torch.install(conf=conf or None)
    rates = {}
    for direction in ((0, 1), (1, 0)):
        for size in SIZES:
            source = torch.ones(size, dtype=torch.uint8, device=f"cuda:{direction[0]}")
            target = torch.empty(size, dtype=torch.uint8, device=f"cuda:{direction[1]}")
            count = max(10, min(500, (4 << 30) // size))
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            with torch.cuda.device(direction[0]):
                for turn in range(count + 10):
                    if turn == 10:
                        torch.cuda.synchronize(0)
                        torch.cuda.synchronize(1)
                        start.record()
                    target.copy_(source)
                end.record()
                end.synchronize()
            assert bool((target == 1).all())
            rates[f"{direction[0]} to {direction[1]}, {size}"] = size * count / start.elapsed_time(end) / 1e6
    print(json.dumps(rates))


def run(name, conf):
    import os

    options = {"PYTORCH_ALLOC_CONF": "expandable_segments:True", "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    environment = {**os.environ, **(options if name == "expandable" else {})}
    command = [sys.executable, __file__, "--measure", name, "--conf", conf or ""]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{name} failed:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", help="a file that gets a line for each allocator and round")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    parser.add_argument("--conf", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        return measure(arguments.measure, arguments.conf)
    rates = {name: [] for name in ALLOCATORS}
    for turn in range(arguments.rounds):
        for name, conf in ALLOCATORS.items():
            rates[name].append(run(name, conf))
            if arguments.json:
                with open(arguments.json, "a") as file:
                    file.write(json.dumps({"allocator": name, "round": turn, "gb_per_s": rates[name][-1]}) + "\n")
    print("| copy, bytes | " + " | ".join(ALLOCATORS) + " |\n| --- |" + " ---: |" * len(ALLOCATORS))
    for row in rates["native"][0]:
        medians = {name: statistics.median(round[row] for round in rounds) for name, rounds in rates.items()}
        cells = [f"{value:.2f} ({value / medians['native']:.2f})" for value in medians.values()]
        print(f"| {row} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
