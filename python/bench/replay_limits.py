#!/usr/bin/env python3
"""Limits that `python -m gpumem replay` names for PyTorch programs, tried with the programs themselves.

    python3 bench/replay_limits.py                                   # all programs, recorded by PyTorch and by gpumem
    python3 bench/replay_limits.py --programs leak,kv --steps 4 --json out.jsonl

Each program is recorded twice: by PyTorch's allocator (`torch.cuda.memory._dump_snapshot`) and by gpumem (`GPUMEM_TRACE`). For each record
`--find-limit` names a limit, and the program is run on gpumem with this limit and with smaller ones. A row is `true` if the program did
what the replay said for each of these limits; `may` is a limit with which it depends on the time at which streams finish. A record that
ends at a refusal (`refused`: recorded at nine tenths of the limit) must get a lower bound only, and the program must be refused below it.
"""

import argparse
import concurrent.futures
import json
import os
import pickle
import subprocess
import sys
import tempfile

import torch_programs

GPUMEM = [sys.executable, "-m", "gpumem"]


# ------------------------------------------------------------------------------------------------------------------- programs


def leak(torch, device):
    """Training whose losses keep their graphs."""
    model = torch.nn.Sequential(*(torch.nn.Linear(2048, 2048) for _ in range(8))).to(device)
    random, kept = torch.Generator().manual_seed(11), []
    while True:
        count = int(torch.randint(256, 2048, (1,), generator=random))
        loss = model(torch.randn(count, 2048, generator=random).to(device)).square().mean()
        kept.append(loss)
        yield loss.detach()


def cache(torch, device):
    """A cache of entries of varied size, which grows to its bound and then drops the oldest ones."""
    random, entries, held = torch.Generator().manual_seed(12), [], 0
    while True:
        for _ in range(200):
            count = int(torch.randint(1_000, 2_000_000, (1,), generator=random))
            entries.append(torch.full((count,), 0.5, device=device))
            held += 4 * count
            while held > 512 << 20:
                held -= 4 * len(entries.pop(0))
        yield entries[-1].mean()


def steady(torch, device):
    """Training of an unchanging shape."""
    model = torch.nn.Sequential(*(torch.nn.Linear(4096, 4096) for _ in range(6))).to(device)
    optimizer = torch.optim.Adam(model.parameters())
    random = torch.Generator().manual_seed(13)
    while True:
        loss = model(torch.randn(1024, 4096, generator=random).to(device)).square().mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        yield loss.detach()


def holes(torch, device):
    """Large and small tensors in turns, of which the large ones are freed: fragmentation."""
    random, small = torch.Generator().manual_seed(14), []
    while True:
        large = []
        for _ in range(40):
            large.append(torch.zeros(int(torch.randint(1 << 20, 6 << 20, (1,), generator=random)), device=device))
            small.append(torch.zeros(int(torch.randint(1 << 8, 1 << 16, (1,), generator=random)), device=device))
        del large
        small = small[-300:]
        yield torch.zeros(16 << 20, device=device).mean()


# ResNet and the U-Net are left out: cuDNN tries smaller work spaces where a large one is refused, so a limit does not decide.
PROGRAMS = {
    "leak": leak, "cache": cache, "steady": steady, "holes": holes,
    **{name: torch_programs.PROGRAMS[name] for name in ("gpt2", "kv", "frame", "moe", "sage", "prefetch")},
}


# ---------------------------------------------------------------------------------------------------------------- one process


def serve(recorder, name, steps, file):
    """Runs a program, on PyTorch's allocator with a snapshot at its end, or on gpumem."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    import torch

    if recorder == "snapshot":
        torch.cuda.memory._record_memory_history(max_entries=1_000_000, stacks="python", context="alloc")
    else:
        import gpumem.torch

        gpumem.torch.install()
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False
    torch.manual_seed(0)
    program = PROGRAMS[name](torch, torch.device("cuda"))
    try:
        for _ in range(steps):
            float(next(program))
    except torch.OutOfMemoryError:
        sys.exit(3)
    if recorder == "snapshot":
        with open(file, "wb") as out:
            pickle.dump(torch.cuda.memory._snapshot(), out)


def run(recorder, name, steps, file=None, limit=None):
    """True if the program ran to its end, false if it was refused memory."""
    environment = dict(os.environ)
    if limit is not None:
        environment["GPUMEM_HARD_LIMIT"] = str(limit)
    if recorder == "gpumem" and file is not None:
        environment["GPUMEM_TRACE"] = file
    command = [sys.executable, __file__, "--serve", recorder, "--programs", name, "--steps", str(steps)]
    found = subprocess.run(command + (["--file", file] if file else []), env=environment, capture_output=True, text=True)
    if found.returncode not in (0, 3):
        raise SystemExit(f"{name} on {recorder}, limit {limit}: {found.stderr[-3000:]}")
    return found.returncode == 0


# ------------------------------------------------------------------------------------------------------------------- the parent

SAID = {True: "fits", False: "not", None: "may"}


def replay(file, *options):
    found = subprocess.run([*GPUMEM, "replay", file, "--json", *options], capture_output=True, text=True)
    if found.returncode not in (0, 1):
        raise SystemExit(found.stderr)
    return json.loads(found.stdout.splitlines()[0])


def check(recorder, name, steps, folder):
    """The row of a program that is recorded to its end, and of one that is refused memory."""
    file = os.path.join(folder, f"{name}-{recorder}.record")
    run(recorder, name, steps, file)
    found = replay(file, "--find-limit")
    limit, step = found["smallest_limit_bytes"] or found["at_least_bytes"], found["step_bytes"]
    tries = []
    for tried in (limit + step, limit, limit - step, limit - 2 * step, limit * 95 // 100, limit * 3 // 4):
        tries.append({"limit": tried, "said": replay(file, "--limit", str(tried))["fits"], "ran": run("gpumem", name, steps, limit=tried)})
    row = {"program": name, "recorder": recorder, "open_end": found["open_end"], "limit": limit, "step": step, "tries": tries}
    row["true"] = all(one["said"] in (one["ran"], None) for one in tries)
    if recorder == "gpumem":
        run(recorder, name, steps, file + ".refused", limit * 9 // 10)
        early = replay(file + ".refused", "--find-limit")
        row["refused"] = {key: early[key] for key in ("open_end", "smallest_limit_bytes", "at_least_bytes")}
        row["true"] &= early["smallest_limit_bytes"] is None and limit * 9 // 10 < early["at_least_bytes"] <= limit
    return row


def figures(row):
    """The figures of a record in the form of docs/runs: bytes; of each try 1 for "fits" and for "ran", 0.5 for "may", otherwise 0."""
    name = f"replay/{row['program']}/{row['recorder']}"
    for key in ("limit", "step"):
        yield {"bench": f"{name}/{key}", "value": row[key], "unit": "B"}
    if "refused" in row:
        yield {"bench": f"{name}/refused/at_least", "value": row["refused"]["at_least_bytes"], "unit": "B"}
    for one in row["tries"]:
        said = 0.5 if one["said"] is None else float(one["said"])
        yield {"bench": f"{name}/at_{one['limit']}/said", "value": said, "unit": "bool"}
        yield {"bench": f"{name}/at_{one['limit']}/ran", "value": float(one["ran"]), "unit": "bool"}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", default=",".join(PROGRAMS), help="of " + ", ".join(PROGRAMS))
    parser.add_argument("--recorders", default="snapshot,gpumem")
    parser.add_argument("--steps", type=int, default=6, help="of each program")
    parser.add_argument("--jobs", type=int, default=4, help="programs at a time")
    parser.add_argument("--json", help="a file that gets a line for each figure")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    parser.add_argument("--file", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        return serve(arguments.serve, arguments.programs, arguments.steps, arguments.file)
    pairs = [(recorder, name) for name in arguments.programs.split(",") for recorder in arguments.recorders.split(",")]
    print(f"{'program':>9} {'recorder':>9} {'limit':>12}  {'':>5}  said and ran at the limit + 1 step, the limit, - 1 step, - 2 steps, 0.95 ×, 0.75 ×")
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(arguments.jobs) as workers:
        rows = [workers.submit(check, recorder, name, arguments.steps, folder) for recorder, name in pairs]
        is_true = True
        for future in rows:
            row = future.result()
            is_true &= row["true"]
            tries = " ".join(f"{SAID[one['said']]}/{'ran' if one['ran'] else 'refused'}" for one in row["tries"])
            bound = "at least " if row["open_end"] else ""
            print(f"{row['program']:>9} {row['recorder']:>9} {bound}{row['limit'] / (1 << 20):>8.0f} MiB  {'true' if row['true'] else 'FALSE':>5}  {tries}")
            if "refused" in row:
                print(f"{'':>9} {'refused':>9} {row['refused']}")
            sys.stdout.flush()
            if arguments.json:
                with open(arguments.json, "a") as out:
                    for figure in figures(row):
                        print(json.dumps(figure), file=out)
    sys.exit(not is_true)


if __name__ == "__main__":
    main()
