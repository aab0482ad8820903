#!/usr/bin/env python3
"""The time of a CuPy array and its end, with CuPy's own pool and with gpumem.

    python3 bench/pairs_cupy.py                # a table
    python3 bench/pairs_cupy.py --windows 15 --pairs 20000 --json out.jsonl

Each allocator has a process. The processes take turns, window by window, so that both see the machine in the same state; `again` is
CuPy's pool in a second process, which shows how much the machine differs from itself. A row has the median time of a pair in each,
and its ratio to CuPy's pool: the median over the windows, with the least and the greatest.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time

ALLOCATORS = ("native", "again", "gpumem")

SIZES = (512, 4 << 10, 1 << 20, 64 << 20)
STREAMS = ("default", "per thread", "own")
# `array` is cupy.empty, `memory` the allocator alone, `held` an array while a thousand others live.
PROGRAMS = ("memory", "array", "held")


def rows():
    return [(program, stream, size) for program in PROGRAMS for stream in STREAMS for size in SIZES]


def serve(allocator, pairs):
    """Measures a row for each line of the input, and prints nanoseconds for a pair."""
    import cupy

    if allocator == "gpumem":
        import gpumem.cupy

        gpumem.cupy.install()
    streams = {"default": cupy.cuda.Stream.null, "per thread": cupy.cuda.Stream.ptds, "own": cupy.cuda.Stream(non_blocking=True)}
    alloc, empty = cupy.cuda.alloc, lambda size: cupy.empty(size, dtype=cupy.uint8)
    for line in sys.stdin:
        program, stream, size = json.loads(line)
        make = alloc if program == "memory" else empty
        with streams[stream]:
            held = [make(4096) for _ in range(1000)] if program == "held" else []
            for _ in range(100):
                make(size)
            begin = time.perf_counter_ns()
            for _ in range(pairs):
                make(size)
            taken = time.perf_counter_ns() - begin
            del held
        cupy.cuda.Device().synchronize()
        print(taken / pairs, flush=True)


def ask(process, row):
    process.stdin.write(json.dumps(row) + "\n")
    process.stdin.flush()
    answer = process.stdout.readline()
    if not answer:
        raise SystemExit(f"a process ended in {row}, with {process.wait()}")
    return float(answer)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--windows", type=int, default=9)
    parser.add_argument("--pairs", type=int, default=5000)
    parser.add_argument("--json", help="a file that gets a line for each row")
    parser.add_argument("--serve", choices=ALLOCATORS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        return serve(options.serve, options.pairs)
    processes = {}
    for name in ALLOCATORS:
        command = [sys.executable, __file__, "--serve", name, "--pairs", str(options.pairs)]
        processes[name] = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    print(f"{'program':8} {'stream':10} {'bytes':>9} {'native ns':>10} {'gpumem ns':>10}  ratio (least to greatest)   again")
    for row in rows():
        windows = []
        for _ in range(options.windows + 1):
            windows.append({name: ask(process, row) for name, process in processes.items()})
        # The first one fills the pools.
        windows = windows[1:]
        median = {name: statistics.median(window[name] for window in windows) for name in ALLOCATORS}
        ratios = {name: [window[name] / window["native"] for window in windows] for name in ("gpumem", "again")}
        middle = {name: statistics.median(values) for name, values in ratios.items()}
        spread = f"{min(ratios['gpumem']):.2f} to {max(ratios['gpumem']):.2f}"
        program, stream, size = row
        print(
            f"{program:8} {stream:10} {size:9} {median['native']:10.0f} {median['gpumem']:10.0f}  {middle['gpumem']:.2f} ({spread})"
            f"{'':10} {middle['again']:.2f}",
            flush=True,
        )
        if options.json:
            with open(options.json, "a") as file:
                file.write(json.dumps({"program": program, "stream": stream, "bytes": size, **median, "ratio": middle["gpumem"]}) + "\n")
    for name, process in processes.items():
        process.stdin.close()
        if process.wait() != 0:
            raise SystemExit(f"{name} ended with {process.returncode}")


if __name__ == "__main__":
    main()
