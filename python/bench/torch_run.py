#!/usr/bin/env python3
"""An unmodified training script by every way to start it on gpumem, beside PyTorch's own allocator; about a minute on a GPU.

    python3 python/bench/torch_run.py

Prints a line for each way: whether the losses are equal to the bit, the peak of reserved memory, and the seconds; then what a refused
request says, the cost of `stacks`, and that of the file that Python reads when it starts. The exit status is 1 if something differs.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TRAIN = '''
import sys, torch
from torch import nn

class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layers = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        return x + self.layers(x)

def main():
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False
    model = nn.Sequential(*(Block(512) for _ in range(6)), nn.Linear(512, 1)).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    random = torch.Generator().manual_seed(1)
    for step in range(30):
        count = int(torch.randint(256, 4096, (1,), generator=random))
        loss = model(torch.randn(count, 512, generator=random).cuda()).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(loss.item().hex())
    print("reserved", torch.cuda.max_memory_reserved(), file=sys.stderr)

main()
'''

REFUSED = '''
import torch
def activations():
    return [torch.empty(16 << 20, dtype=torch.uint8, device="cuda") for _ in range(10)]
weights = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
kept = activations()
torch.empty(1 << 30, device="cuda")
'''

STACKS = '''
import time, torch, gpumem.torch
def pair(count):
    begin = time.perf_counter_ns()
    for _ in range(count):
        torch.empty(65536, device="cuda")
    return (time.perf_counter_ns() - begin) / count
gpumem.torch.install()
pair(20000)
found = {"off": [], "on": []}
for _ in range(7):
    gpumem.torch._entry.gpumem_torch_name_lines(None)
    found["off"].append(pair(20000))
    gpumem.torch._name_lines(gpumem.torch._entry)
    found["on"].append(pair(20000))
print(*(sorted(times)[3] for times in found.values()))
'''

failures = []


def expect(is_right, what):
    if not is_right:
        failures.append(what)
        print(f"WRONG: {what}", file=sys.stderr)


def run(folder, *command, **environment):
    begin = time.perf_counter()
    given = {**os.environ, "CUBLAS_WORKSPACE_CONFIG": ":4096:8", **environment}
    done = subprocess.run([str(part) for part in command], cwd=folder, env=given, capture_output=True, text=True, timeout=110)
    return done, time.perf_counter() - begin


def environment_with_start(folder):
    """The Python of an environment that has gpumem, its start file and PyTorch."""
    import gpumem
    import torch

    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True)
    (packages,) = (folder / "venv").glob("lib/python*/site-packages")
    site = Path(gpumem.__file__).parents[1]
    (packages / "a_folders.pth").write_text(f"{site}\n{Path(torch.__file__).parents[1]}\n")
    (packages / "gpumem.pth").write_text((site / "gpumem.pth").read_text())
    return folder / "venv/bin/python"


def losses_of(done, way):
    expect(done.returncode == 0, f"{way} ended with {done.returncode}: {done.stderr[-3000:]}")
    return done.stdout.split()


def check_training(folder, python):
    (folder / "train.py").write_text(TRAIN)
    plain, ours = [sys.executable], [sys.executable, "-m", "gpumem", "run"]
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1"]
    ways = {
        "native": ([*plain, "train.py"], {}),
        "run": ([*ours, "--json", "train.py"], {}),
        "run --stacks": ([*ours, "--stacks", "train.py"], {}),
        "run -m": ([*ours, "-m", "train"], {}),
        "torchrun -m gpumem": ([*launcher, "-m", "gpumem", "run", "train.py"], {}),
        "torchrun --no-python": ([*launcher, "--no-python", *ours, "train.py"], {}),
        "GPUMEM_INSTALL": ([python, "train.py"], {"GPUMEM_INSTALL": "torch,summary"}),
    }
    native, summaries = [], {}
    for way, (command, environment) in ways.items():
        done, seconds = run(folder, *command, **environment)
        losses, native = losses_of(done, way), native or done.stdout.split()
        reserved = [line.split()[1] for line in done.stderr.splitlines() if line.startswith("reserved ")]
        size = int(reserved[0]) / (1 << 20) if reserved else float("nan")
        print(f"{way:>22}  {'equal' if losses == native else 'DIFFER'}  {size:7.1f} MiB reserved  {seconds:5.1f} s")
        expect(losses == native and len(losses) == 30, f"the losses of {way} differ")
        summaries[way] = done.stderr
    print(summaries["run --stacks"])
    found = next(json.loads(line) for line in summaries["run"].splitlines() if line.startswith("{"))
    expect(found["devices"][0]["allocation_count"] > 1000, f"the summary counts {found}")
    for way in ("run -m", "torchrun -m gpumem", "torchrun --no-python", "GPUMEM_INSTALL"):
        expect("times as much" in summaries[way], f"{way} has no summary: {summaries[way][-2000:]}")
    expect("forward" in summaries["run --stacks"], "no line of forward() is named")


def check_refusal(folder):
    (folder / "refused.py").write_text(REFUSED)
    done, _ = run(folder, sys.executable, "-m", "gpumem", "run", "--stacks", "--limit", "300MiB", "refused.py")
    print(done.stderr)
    expect(done.returncode == 1, f"the refused program ended with {done.returncode}")
    for text in ("torch.OutOfMemoryError: CUDA out of memory", "refused.py:4", "refused.py:5", 'refused.py", line 7, in <module>'):
        expect(text in done.stderr, f"the report lacks {text}")
    expect("gpumem/_run.py" not in done.stderr, "the traceback has frames of gpumem")


def check_costs(folder, python):
    (folder / "stacks.py").write_text(STACKS)
    done, _ = run(folder, sys.executable, "stacks.py")
    expect(done.returncode == 0, done.stderr[-2000:])
    if done.returncode == 0:
        off, on = map(float, done.stdout.split())
        print(f"torch.empty and its drop: {off:.0f} ns; with stacks {on:.0f} ns")
    start = next((folder / "venv").glob("lib/python*/site-packages/gpumem.pth"))
    text, times = start.read_text(), {"with": [], "without": []}
    for _ in range(20):
        for name, content in (("with", text), ("without", "")):
            start.write_text(content)
            times[name].append(run(folder, python, "-c", "pass")[1])
    print("start of Python, ms:", ", ".join(f"{name} the start file {1000 * statistics.median(found):.2f}" for name, found in times.items()))


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        python = environment_with_start(folder)
        check_training(folder, python)
        check_refusal(folder)
        check_costs(folder, python)
    print("all as expected" if not failures else f"{len(failures)} wrong: {failures}")
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main())
