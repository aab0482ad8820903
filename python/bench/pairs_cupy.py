#!/usr/bin/env python3
"""The time of a CuPy array and its end, with CuPy's own pool and with gpumem.

    python3 bench/pairs_cupy.py                # a table
    python3 bench/pairs_cupy.py --windows 501 --pairs 200 --json out.jsonl

The allocators take turns in one process, in windows of some 100 µs, so that all of them see the machine in the same state; `again` is
CuPy's pool for a second time in each turn, which shows how much the machine differs from itself. A row has the median time of a pair
with each, and the median over the turns of its ratio to CuPy's pool, with the first and the last decile.
"""

import argparse
import json
import statistics
import time

import cupy

import gpumem.cupy

ALLOCATORS = {
    "native": cupy.get_default_memory_pool().malloc,
    "gpumem": gpumem.cupy.allocator,
    "again": cupy.get_default_memory_pool().malloc,
}
SIZES = (512, 4 << 10, 1 << 20, 64 << 20)
STREAMS = {"default": cupy.cuda.Stream.null, "per thread": cupy.cuda.Stream.ptds, "own": cupy.cuda.Stream(non_blocking=True)}
# `memory` is the allocator alone, `array` cupy.empty, `held` an array while a thousand others live.
PROGRAMS = ("memory", "array", "held")


def window(make, size, pairs):
    """Returns the nanoseconds of a pair."""
    begin = time.perf_counter_ns()
    for _ in range(pairs):
        make(size)
    return (time.perf_counter_ns() - begin) / pairs


def measure(program, size, windows, pairs):
    """Returns the time of a pair in each window, by allocator."""
    make = cupy.cuda.alloc if program == "memory" else lambda size: cupy.empty(size, dtype=cupy.uint8)
    taken, held = {name: [] for name in ALLOCATORS}, {}
    for name, allocator in ALLOCATORS.items():
        cupy.cuda.set_allocator(allocator)
        held[name] = [make(4096) for _ in range(1000)] if program == "held" else []
        # Fills the pool.
        window(make, size, pairs)
    for _ in range(windows):
        for name, allocator in ALLOCATORS.items():
            cupy.cuda.set_allocator(allocator)
            taken[name].append(window(make, size, pairs))
    return taken


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--windows", type=int, default=301)
    parser.add_argument("--pairs", type=int, default=100, help="pairs in a window")
    parser.add_argument("--json", help="a file that gets a line for each row")
    options = parser.parse_args()
    print(f"{'program':8} {'stream':10} {'bytes':>9} {'native ns':>10} {'gpumem ns':>10}  ratio (decile to decile)   again")
    for program in PROGRAMS:
        for stream, handle in STREAMS.items():
            for size in SIZES:
                with handle:
                    taken = measure(program, size, options.windows, options.pairs)
                handle.synchronize()
                median = {name: statistics.median(values) for name, values in taken.items()}
                ratios = {
                    name: [value / native for value, native in zip(taken[name], taken["native"])] for name in ("gpumem", "again")
                }
                middle = {name: statistics.median(values) for name, values in ratios.items()}
                deciles = statistics.quantiles(ratios["gpumem"], n=10)
                print(
                    f"{program:8} {stream:10} {size:9} {median['native']:10.0f} {median['gpumem']:10.0f}  {middle['gpumem']:.2f}"
                    f" ({deciles[0]:.2f} to {deciles[-1]:.2f}){'':9} {middle['again']:.2f}",
                    flush=True,
                )
                if options.json:
                    row = {"program": program, "stream": stream, "bytes": size, **median, "ratio": middle["gpumem"], "again": middle["again"]}
                    with open(options.json, "a") as file:
                        file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
