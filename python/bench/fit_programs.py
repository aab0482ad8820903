#!/usr/bin/env python3
"""What `python -m gpumem fit` predicts, beside what programs reserve.

    python3 bench/fit_programs.py                         # predictions; needs no GPU
    python3 bench/fit_programs.py --gpu --json out.jsonl  # the programs too, without a limit and at limits close to their peak
    python3 bench/fit_programs.py --programs gpt2,unet --program-steps 4

The programs are the eight of `torch_programs.py` and three more. `predicted` and `real` are peaks of reserved memory of gpumem's pool.
MemTracker is PyTorch's own (`torch.distributed._tools`), run on the same fake tensors; `tensors` is the peak of the sum of live tensors.
With `--gpu` each program runs again with limits of 1.00, 1.02, 1.05 and 1.10 × its real peak: `false fits` are limits for which the prediction
is that the program fits, and it does not.
"""

import argparse
import concurrent.futures
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import torch_programs  # noqa: E402

RATIOS = (1.00, 1.02, 1.05, 1.10)
MIB = 1 << 20


# ------------------------------------------------------------------------------------------------------------------- programs


def trainer(torch, device):
    """A loop like that of Transformers' Trainer: batches of a loader, accumulation, autocast, clipping, a schedule."""
    nn = torch.nn
    layer = nn.TransformerEncoderLayer(768, 12, 3072, dropout=0.1, activation="gelu", batch_first=True, norm_first=True)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.head = nn.Embedding(32000, 768), nn.Linear(768, 32000)
            self.body = nn.TransformerEncoder(layer, 8, enable_nested_tensor=False)

        def forward(self, tokens):
            return self.head(self.body(self.embed(tokens)))

    model = Model().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 10))
    data = torch.utils.data.TensorDataset(torch.randint(32000, (256, 385), generator=torch.Generator().manual_seed(9)))
    while True:
        for index, (tokens,) in enumerate(torch.utils.data.DataLoader(data, batch_size=8, pin_memory=True)):
            tokens = tokens.to(device, non_blocking=True)
            with torch.autocast("cuda", torch.bfloat16):
                logits = model(tokens[:, :-1])
                loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()) / 4
            loss.backward()
            if index % 4 == 3:
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
                yield loss.detach()


def checkpoint(torch, device, width=4096, depth=12):
    """A perceptron whose layers are computed again in the backward pass."""
    from torch.utils.checkpoint import checkpoint as again

    nn = torch.nn
    layers = nn.ModuleList(nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)) for _ in range(depth)).to(device)
    optimizer = torch.optim.SGD(layers.parameters(), lr=1e-3, momentum=0.9)
    random = torch.Generator().manual_seed(10)
    while True:
        x = torch.randn(8192, width, generator=random).to(device)
        for layer in layers:
            x = x + again(layer, x, use_reentrant=False)
        loss = x.square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        yield loss.detach()


def inference(torch, device, width=1024):
    """An encoder that answers batches of varied length, in half precision."""
    nn = torch.nn
    layer = nn.TransformerEncoderLayer(width, 16, 4 * width, dropout=0.0, activation="gelu", batch_first=True)
    model = nn.TransformerEncoder(layer, 12, enable_nested_tensor=False).to(device, torch.float16).eval()
    random = torch.Generator().manual_seed(11)
    with torch.inference_mode():
        while True:
            batch, length = (int(torch.randint(*limits, (1,), generator=random)) for limits in ((1, 33), (16, 513)))
            # One after the other, as requests come.
            yield model(torch.randn(batch, length, width, generator=random).to(device, torch.float16)).float().mean()


PROGRAMS = {**torch_programs.PROGRAMS, "trainer": trainer, "checkpoint": checkpoint, "inference": inference}


# -------------------------------------------------------------------------------------------------------------- one program


def run_program(arguments):
    """Runs steps of one program: by `fit`, or on a GPU, where it prints its figures."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    import torch

    if arguments.real:
        import gpumem.torch

        gpumem.torch.install(hard_limit=arguments.limit or None)
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False
    torch.backends.cudnn.benchmark = False
    torch.manual_seed(0)
    tracker = None
    if arguments.tracker:
        from torch.distributed._tools.mem_tracker import MemTracker

        tracker = MemTracker()
        tracker.__enter__()
    refused = None
    try:
        steps = PROGRAMS[arguments.run](torch, torch.device("cuda"))
        for _ in range(arguments.program_steps):
            next(steps)
            torch.cuda.synchronize()
            if tracker is not None:
                # It takes one iteration at a time.
                tracker.reset_mod_stats()
    except torch.OutOfMemoryError as error:
        refused = str(error).splitlines()[0]
    if tracker is not None:
        peaks = tracker.get_tracker_snapshot("peak")
        Path(arguments.tracker).write_text(str(max(sizes["Total"] for device, sizes in peaks.items() if device.type == "cuda")))
        os._exit(0)
    if arguments.real:
        found = {"reserved": torch.cuda.max_memory_reserved(), "allocated": torch.cuda.max_memory_allocated(), "refused": refused}
        free, total = torch.cuda.mem_get_info()
        found["outside"] = total - free - torch.cuda.memory_reserved()
        print(json.dumps(found), file=answers, flush=True)


def started(*options, **environment):
    """Runs this script with options and returns what it prints, as JSON."""
    command = [sys.executable, __file__, *map(str, options)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment}, timeout=200)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    return json.loads(lines[-1]) if lines else {"failed": (done.stderr.strip().splitlines() or [f"ended with {done.returncode}"])[-1]}


# ------------------------------------------------------------------------------------------------------------------- the table


class Bench:
    def __init__(self, arguments, folder):
        self.arguments, self.folder = arguments, Path(folder)
        self.rows = {}

    def predict(self, name):
        begin = time.perf_counter()
        record = self.folder / f"{name}.csv"
        command = [sys.executable, "-m", "gpumem", "fit", __file__, "--json", "--steps", "0", "--device", self.arguments.device]
        command += ["--record", str(record), "--", "--run", name, "--program-steps", str(self.arguments.program_steps)]
        environment = {**os.environ, "CUBLAS_WORKSPACE_CONFIG": os.environ.get("CUBLAS_WORKSPACE_CONFIG", ":4096:8"), "OMP_NUM_THREADS": "2"}
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
        if not done.stdout.strip():
            return {"failed": (done.stderr.strip().splitlines() or ["no answer"])[-1]}
        found = json.loads(done.stdout.splitlines()[-1])
        return {
            "predicted": found["peak_reserved_bytes"], "tensors": found["peak_tensor_bytes"], "allocated": found["peak_allocated_bytes"],
            "seconds": time.perf_counter() - begin, "assumed": len(found["assumed"]),
        }

    def tracked(self, name):
        out = self.folder / f"{name}.tracker"
        command = [sys.executable, "-m", "gpumem", "fit", __file__, "--json", "--steps", "0", "--device", self.arguments.device]
        command += ["--", "--run", name, "--program-steps", str(self.arguments.program_steps), "--tracker", str(out)]
        subprocess.run(command, capture_output=True, text=True, timeout=300)
        return int(out.read_text()) if out.exists() else None

    def real(self, name, limit=0):
        return started("--run", name, "--real", "--program-steps", self.arguments.program_steps, "--limit", limit)

    def fits(self, name, limit):
        """What the prediction says of a limit of the pool."""
        command = [sys.executable, "-m", "gpumem", "replay", str(self.folder / f"{name}.csv"), "--json", "--streams", "long-lived"]
        done = subprocess.run([*command, "--limit", str(limit), "--device", "160GiB"], capture_output=True, text=True)
        return json.loads(done.stdout.splitlines()[0])["fits"]

    def run(self, names):
        with concurrent.futures.ThreadPoolExecutor(self.arguments.jobs) as jobs:
            # Alone on the device, for what lies outside the pool.
            first = self.real(names[0]) if self.arguments.gpu else None
            reals = {name: jobs.submit(self.real, name) for name in names[1:]} if self.arguments.gpu else {}
            predictions = {name: jobs.submit(self.predict, name) for name in names}
            tracked = {name: jobs.submit(self.tracked, name) for name in names} if not self.arguments.no_tracker else {}
            for name in names:
                self.rows[name] = {"program": name, **predictions[name].result()}
                print(f"  predicted {name}", file=sys.stderr, flush=True)
                self.rows[name]["tracker"] = tracked[name].result() if tracked else None
                if self.arguments.gpu:
                    real = first if name == names[0] else reals[name].result()
                    self.rows[name].update(real=real.get("reserved"), real_allocated=real.get("allocated"), real_failed=real.get("failed"))
            if first is not None:
                print(f"{names[0]}: {first.get('outside', 0) / MIB:.0f} MiB of the device are outside the pool")
                self.limits(jobs, names)
        for name in names:
            self.print_row(self.rows[name])

    def limits(self, jobs, names):
        known = [name for name in names if self.rows[name].get("real") and self.rows[name].get("predicted")]
        # Programs of all kinds side by side, so that the device has room for those that run at a time.
        pairs = [(name, int(self.rows[name]["real"] * ratio)) for ratio in RATIOS for name in known]
        reals = [jobs.submit(self.real, *pair) for pair in pairs]
        fits = [jobs.submit(self.fits, *pair) for pair in pairs]
        for (name, limit), real, predicted in zip(pairs, reals, fits):
            found = real.result()
            ran = found.get("refused") is None and "failed" not in found
            row = {"limit": limit, "ran": ran, "predicted": predicted.result(), "why": found.get("refused") or found.get("failed")}
            self.rows[name].setdefault("limits", []).append(row)

    def print_row(self, row):
        if row.get("failed"):
            print(f"{row['program']:>11}  not predicted: {row['failed'][:120]}")
            return
        mib = lambda value: f"{value / MIB:>9.0f}" if value else f"{'-':>9}"
        ratio = f"{row['predicted'] / row['real']:>7.3f}" if row.get("real") else f"{'-':>7}"
        peers = [f"{row[key] / row['real']:>7.3f}" if row.get("real") and row.get(key) else f"{'-':>7}" for key in ("tracker", "tensors")]
        limits = row.get("limits", [])
        false_fits = sum(one["predicted"] and not one["ran"] for one in limits)
        verdicts = " ".join(("y" if one["predicted"] else "n") + ("y" if one["ran"] else "n") for one in limits)
        print(f"{row['program']:>11} {mib(row['predicted'])} {mib(row.get('real'))} {ratio} {row['seconds']:>7.1f} "
              f"{mib(row.get('tracker'))} {peers[0]} {mib(row['tensors'])} {peers[1]} {false_fits:>6}  {verdicts}")


def figures(row):
    """The figures of a program in the form of docs/runs: bytes and seconds; of each limit 1 for "fits" and for "ran", otherwise 0."""
    name = f"fit/{row['program']}"
    units = {"predicted": "B", "allocated": "B", "tensors": "B", "real": "B", "real_allocated": "B", "seconds": "s"}
    for key, unit in units.items():
        if row.get(key):
            yield {"bench": f"{name}/{key}", "value": row[key], "unit": unit}
    if row.get("tracker"):
        yield {"bench": f"{name}/predicted", "value": row["tracker"], "unit": "B", "peer": "MemTracker"}
    for ratio, one in zip(RATIOS, row.get("limits", [])):
        for key in ("predicted", "ran"):
            yield {"bench": f"{name}/at_{ratio:.2f}/{key}", "value": int(one[key]), "unit": "bool"}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", default=",".join(PROGRAMS), help="of " + ", ".join(PROGRAMS))
    parser.add_argument("--program-steps", type=int, default=6)
    parser.add_argument("--device", default="h100", help="that fit is told of")
    parser.add_argument("--gpu", action="store_true", help="run the programs too")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 2, help="processes at a time")
    parser.add_argument("--no-tracker", action="store_true", help="leave out MemTracker")
    parser.add_argument("--json", help="a file that gets a line for each figure")
    for option in ("--run", "--tracker"):
        parser.add_argument(option, help=argparse.SUPPRESS)
    parser.add_argument("--real", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--limit", type=int, default=0, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.run:
        return run_program(arguments)
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(arguments, folder)
        print(f"{'program':>11} {'predicted':>9} {'real':>9} {'ratio':>7} {'seconds':>7} {'tracker':>9} {'ratio':>7} {'tensors':>9} {'ratio':>7} "
              f"{'false fits':>6}  predicted and ran at {', '.join(f'{ratio:.2f}' for ratio in RATIOS)}  (MiB)")
        bench.run(arguments.programs.split(","))
    if arguments.json:
        with open(arguments.json, "a") as out:
            for row in bench.rows.values():
                for figure in figures(row):
                    print(json.dumps(figure), file=out)


if __name__ == "__main__":
    main()
