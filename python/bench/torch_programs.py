#!/usr/bin/env python3
"""PyTorch programs under PyTorch's own allocators and under gpumem, with results, memory and time beside each other.

    python3 bench/torch_programs.py --seconds 4 --windows 7            # all programs, all allocators
    python3 bench/torch_programs.py --programs resnet,kv --json out.jsonl
    python3 bench/torch_programs.py --limit-ratio 1.02  # of what native has allocated at its peak

Each allocator has one process for a program. The processes take turns, window by window, so that all of them see the machine in the
same state; a process that waits does nothing. For each allocator the table has the peak of reserved memory over the peak of allocated
memory, as that allocator counts it and as native counts it, the median time of a step, and its ratio to native's: the median over the
windows, which hold the same steps in every process, with the least and the greatest. `again` is native in a second process, which
shows how much the machine differs from itself. The losses of all allocators must be equal to the bit.

With `--limit-ratio` native and gpumem run first without a limit. All allocators then run the same steps within the limit; `free` is
gpumem without a limit, in a process that takes its turns with the others, and the times are compared with its own.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

ALLOCATORS = {
    "native": {},
    "again": {},
    "expandable": {"PYTORCH_ALLOC_CONF": "expandable_segments:True", "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
    "async": {"PYTORCH_ALLOC_CONF": "backend:cudaMallocAsync", "PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"},
    "gpumem": {},
    "fast": {"GPUMEM_PROFILE": "fast"},
    "tight": {"GPUMEM_PROFILE": "tight"},
    "free": {},
}


# ------------------------------------------------------------------------------------------------------------------- programs
# Each is a generator: a step of the program for each `next`, which yields the step's loss as a tensor.


def resnet(torch, device):
    """A convolutional network with residual blocks, whose images change their size from step to step."""
    nn = torch.nn

    class Block(nn.Module):
        def __init__(self, inner, outer, stride):
            super().__init__()
            self.body = nn.Sequential(
                nn.Conv2d(inner, outer // 4, 1, bias=False), nn.BatchNorm2d(outer // 4), nn.ReLU(inplace=True),
                nn.Conv2d(outer // 4, outer // 4, 3, stride, 1, bias=False), nn.BatchNorm2d(outer // 4), nn.ReLU(inplace=True),
                nn.Conv2d(outer // 4, outer, 1, bias=False), nn.BatchNorm2d(outer),
            )
            self.skip = nn.Conv2d(inner, outer, 1, stride, bias=False) if inner != outer or stride > 1 else nn.Identity()

        def forward(self, x):
            return torch.relu(self.body(x) + self.skip(x))

    def stage(inner, outer, count, stride):
        return [Block(inner if index == 0 else outer, outer, stride if index == 0 else 1) for index in range(count)]

    layers = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    layers += stage(64, 256, 3, 1) + stage(256, 512, 4, 2) + stage(512, 1024, 6, 2) + stage(1024, 2048, 3, 2)
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 1000)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    sizes = [128, 160, 192, 224, 256, 288, 320]
    random = torch.Generator().manual_seed(1)
    while True:
        size = sizes[int(torch.randint(len(sizes), (1,), generator=random))]
        batch = int(torch.randint(8, 33, (1,), generator=random))
        images = torch.randn(batch, 3, size, size, generator=random).to(device)
        labels = torch.randint(1000, (batch,), generator=random).to(device)
        with torch.autocast("cuda", torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        yield loss.detach()


class _Transformer:
    """GPT-2 medium: 24 layers of width 1024, with 16 heads."""

    @staticmethod
    def make(torch, device, layer_count=24, width=1024, heads=16, vocabulary=50257, length_max=1024):
        nn, functional = torch.nn, torch.nn.functional

        class Layer(nn.Module):
            def __init__(self):
                super().__init__()
                self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
                self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
                self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

            def forward(self, x, cache=None):
                batch, length, _ = x.shape
                q, k, v = (part.view(batch, length, heads, -1).transpose(1, 2) for part in self.qkv(self.norm_1(x)).chunk(3, -1))
                if cache is not None:
                    if cache:
                        k, v = torch.cat([cache[0], k], 2), torch.cat([cache[1], v], 2)
                    cache[:] = [k, v]
                # The fused kernels add in an order that differs from run to run.
                with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
                    attended = functional.scaled_dot_product_attention(q, k, v, is_causal=cache is None or length > 1)
                x = x + self.out(attended.transpose(1, 2).reshape(batch, length, width))
                return x + self.down(functional.gelu(self.up(self.norm_2(x))))

        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length_max, width)
                self.layers = nn.ModuleList(Layer() for _ in range(layer_count))
                self.norm = nn.LayerNorm(width)

            def forward(self, tokens, start=0, caches=None):
                x = self.tokens(tokens) + self.places(torch.arange(start, start + tokens.shape[1], device=tokens.device))
                for index, layer in enumerate(self.layers):
                    x = layer(x, None if caches is None else caches[index])
                return functional.linear(self.norm(x), self.tokens.weight)

        return Model().to(device)


def gpt2(torch, device):
    """GPT-2 medium, trained on sequences of 64 to 1024 tokens."""
    model = _Transformer.make(torch, device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    random = torch.Generator().manual_seed(2)
    while True:
        length = int(torch.randint(64, 1025, (1,), generator=random))
        batch = max(1, 4096 // length)
        tokens = torch.randint(50257, (batch, length), generator=random).to(device)
        with torch.autocast("cuda", torch.bfloat16):
            logits = model(tokens)
        loss = torch.nn.functional.cross_entropy(logits[:, :-1].float().reshape(-1, 50257), tokens[:, 1:].reshape(-1))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        yield loss.detach()


def prefetch(torch, device):
    """Batches of varied size that a side stream uploads and prepares two steps ahead, handed over by record_stream."""
    side = torch.cuda.Stream(device)
    random = torch.Generator().manual_seed(3)
    weights = torch.randn(4096, 4096, generator=random).to(device)

    def ahead():
        rows = int(torch.randint(1_000, 40_000, (1,), generator=random))
        host = torch.randn(rows, 1024, generator=random).pin_memory()
        with torch.cuda.stream(side):
            batch = host.to(device, non_blocking=True)
            prepared = torch.cat([batch, batch.square(), batch.abs(), batch.relu()], 1)
        return prepared, host

    waiting = [ahead(), ahead()]
    while True:
        batch, _ = waiting.pop(0)
        current = torch.cuda.current_stream()
        current.wait_stream(side)
        batch.record_stream(current)
        result = (batch @ weights).tanh()
        loss = result.mean()
        del batch, result
        waiting.append(ahead())
        yield loss


def kv(torch, device):
    """GPT-2 medium answering requests: caches of keys and values that grow by a token each step, of batches of varied length."""
    model = _Transformer.make(torch, device).to(torch.bfloat16)
    random = torch.Generator().manual_seed(4)
    with torch.no_grad():
        while True:
            batch = int(torch.randint(1, 33, (1,), generator=random))
            length = int(torch.randint(16, 512, (1,), generator=random))
            caches = [[] for _ in model.layers]
            tokens = torch.randint(50257, (batch, length), generator=random).to(device)
            for _ in range(24):
                logits = model(tokens, length - tokens.shape[1], caches)[:, -1]
                tokens = logits.argmax(-1, keepdim=True)
                length += 1
            yield logits.float().mean()


def frame(torch, device):
    """A data frame: sort, join, unique and sums by key, of columns of varied length."""
    random = torch.Generator().manual_seed(5)
    while True:
        rows = int(torch.randint(200_000, 6_000_000, (1,), generator=random))
        keys = torch.randint(rows // 8, (rows,), generator=random).to(device)
        values = torch.rand(rows, generator=random).to(device)
        order = keys.argsort()
        keys, values = keys[order], values[order]
        groups, inverse, counts = keys.unique_consecutive(return_inverse=True, return_counts=True)
        sums = torch.segment_reduce(values, "sum", lengths=counts)
        joined = torch.searchsorted(groups, torch.randint(rows // 8, (rows // 2,), generator=random).to(device)).clamp_(max=len(groups) - 1)
        picked = sums[joined]
        yield picked[: len(picked) // 2].double().mean()


def moe(torch, device, width=1024, expert_count=16, depth=6):
    """A mixture of experts: the tokens of each expert change from step to step."""
    nn, functional = torch.nn, torch.nn.functional

    class Experts(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.route = nn.LayerNorm(width), nn.Linear(width, expert_count)
            expert = lambda: nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
            self.experts = nn.ModuleList(expert() for _ in range(expert_count))

        def forward(self, x):
            inner = self.norm(x)
            weights, chosen = self.route(inner).softmax(-1).topk(2, -1)
            result = torch.zeros_like(x)
            for index, expert in enumerate(self.experts):
                token, place = (chosen == index).nonzero(as_tuple=True)
                result = result.index_add(0, token, expert(inner[token]) * weights[token, place, None])
            return x + result

    model = nn.Sequential(*(Experts() for _ in range(depth)), nn.Linear(width, 1)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    random = torch.Generator().manual_seed(6)
    while True:
        count = int(torch.randint(512, 8193, (1,), generator=random))
        loss = model(torch.randn(count, width, generator=random).to(device)).square().mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        yield loss.detach()


def sage(torch, device, node_count=2_000_000, width=128):
    """GraphSAGE: three hops of sampled neighbours on the GPU, so that every tensor's size depends on the sample."""
    nn = torch.nn
    random = torch.Generator().manual_seed(7)
    features = torch.randn(node_count, width, generator=random).to(device)
    layers = nn.ModuleList(nn.Linear(2 * inner, outer) for inner, outer in ((width, 256), (256, 256), (256, 47))).to(device)
    optimizer = torch.optim.Adam(layers.parameters(), lr=1e-3)
    while True:
        count = int(torch.randint(256, 1025, (1,), generator=random))
        nodes, hops = torch.randint(node_count, (count,), generator=random).to(device).unique(), []
        for fanout in (15, 10, 5):
            salt = torch.randint(1 << 30, (len(nodes), fanout), generator=random).to(device)
            # Low numbers are the neighbours of many nodes.
            neighbours = ((nodes[:, None] * 7919 + salt).remainder(node_count).double() ** 2 / node_count).long()
            more, place = torch.cat([nodes, neighbours.flatten()]).unique(return_inverse=True)
            hops.append((place[: len(nodes)], place[len(nodes):].view(len(nodes), fanout)))
            nodes = more
        hidden = features[nodes]
        for layer, (own, neighbours) in zip(layers, reversed(hops)):
            hidden = layer(torch.cat([hidden[own], hidden[neighbours].mean(1)], 1)).relu()
        labels = torch.randint(47, (len(hidden),), generator=random).to(device)
        loss = nn.functional.cross_entropy(hidden, labels)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        yield loss.detach()


def unet(torch, device, width=128):
    """Sampling with a U-Net, of images of varied resolution."""
    nn = torch.nn

    class Level(nn.Module):
        def __init__(self, inner, outer):
            super().__init__()
            self.body = nn.Sequential(
                nn.GroupNorm(32, inner), nn.SiLU(), nn.Conv2d(inner, outer, 3, 1, 1),
                nn.GroupNorm(32, outer), nn.SiLU(), nn.Conv2d(outer, outer, 3, 1, 1),
            )
            self.skip = nn.Conv2d(inner, outer, 1)

        def forward(self, x):
            return self.body(x) + self.skip(x)

    widths = [width, 2 * width, 4 * width, 4 * width]
    first, last = nn.Conv2d(4, width, 3, 1, 1), nn.Conv2d(width, 4, 3, 1, 1)
    down = nn.ModuleList(Level(inner, outer) for inner, outer in zip([width, *widths], widths))
    up = nn.ModuleList(Level(2 * outer, inner) for inner, outer in zip([width, *widths], widths))
    model = nn.ModuleList([first, last, down, up]).to(device, torch.bfloat16)
    random = torch.Generator().manual_seed(8)
    with torch.no_grad():
        while True:
            batch = int(torch.randint(1, 5, (1,), generator=random))
            height, breadth = (64 * int(torch.randint(1, 4, (1,), generator=random)) for _ in range(2))
            image = torch.randn(batch, 4, height, breadth, generator=random).to(device, torch.bfloat16)
            for _ in range(6):
                x, kept = model[0](image), []
                for level in model[2]:
                    x = level(x)
                    kept.append(x)
                    x = nn.functional.avg_pool2d(x, 2)
                for level in reversed(model[3]):
                    x = nn.functional.interpolate(x, scale_factor=2)
                    x = level(torch.cat([x, kept.pop()], 1))
                image = image - 0.1 * model[1](x)
            yield image.float().mean()


PROGRAMS = {
    "resnet": resnet, "gpt2": gpt2, "prefetch": prefetch, "kv": kv, "frame": frame, "moe": moe, "sage": sage, "unet": unet,
}


# -------------------------------------------------------------------------------------------------------------- one process


def serve(allocator, program, limit):
    """Runs windows of a program as the parent asks: a line with seconds, or with a number of steps; answers with a line of JSON."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    import torch

    ours = allocator in ("gpumem", "fast", "tight", "free")
    if ours:
        import gpumem.torch

        gpumem.torch.install()
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False
    torch.backends.cudnn.benchmark = False
    torch.manual_seed(0)
    device = torch.device("cuda")
    if limit:
        torch.cuda.set_per_process_memory_fraction(limit / torch.cuda.get_device_properties(0).total_memory)
    steps = PROGRAMS[program](torch, device)
    losses = []
    for line in sys.stdin:
        request = json.loads(line)
        times, deadline = [], time.perf_counter() + request.get("seconds", 1e9)
        try:
            while len(times) < request.get("steps", 1 << 60) and time.perf_counter() < deadline:
                begin = time.perf_counter()
                losses.append(next(steps))
                torch.cuda.synchronize()
                times.append(time.perf_counter() - begin)
            failed = None
        except torch.OutOfMemoryError as error:
            failed = str(error)
        answer = {
            "times": times,
            "losses": [float(loss).hex() for loss in losses],
            "allocated": torch.cuda.max_memory_allocated(),
            "reserved": torch.cuda.max_memory_reserved(),
            "failed": failed,
        }
        print(json.dumps(answer), file=answers, flush=True)
        if failed:
            break


# ------------------------------------------------------------------------------------------------------------------- the parent


class Process:
    def __init__(self, allocator, program, limit):
        environment = {**os.environ, **ALLOCATORS[allocator], "PYTHONUNBUFFERED": "1"}
        command = [sys.executable, __file__, "--serve", allocator, "--programs", program, "--limit-bytes", str(limit)]
        self.process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, **request):
        print(json.dumps(request), file=self.process.stdin, flush=True)
        line = self.process.stdout.readline()
        return json.loads(line) if line else {"failed": f"the process ended with {self.process.wait()}", "times": [], "losses": []}

    def end(self):
        self.process.stdin.close()
        return self.process.wait()


def usual_time(times):
    return statistics.median(times[1:] or times)


def measure(program, allocators, limits, arguments):
    processes = {allocator: Process(allocator, program, limits.get(allocator, 0)) for allocator in allocators}
    # The same steps in every process, so that peaks and losses are of the same work.
    answers = {allocator: process.ask(steps=arguments.warm_steps) for allocator, process in processes.items()}
    alive = [allocator for allocator in allocators if not answers[allocator]["failed"]]
    step_count = window_steps(answers[alive[0]]["times"], arguments) if alive else 1
    windows = {allocator: [] for allocator in allocators}
    for turn in range(arguments.windows):
        for allocator in alive[turn % len(alive):] + alive[: turn % len(alive)] if alive else []:
            if answers[allocator]["failed"]:
                continue
            answers[allocator] = processes[allocator].ask(steps=arguments.steps or step_count)
            windows[allocator].append(statistics.mean(answers[allocator]["times"]) if answers[allocator]["times"] else None)
    exits = {allocator: process.end() for allocator, process in processes.items()}
    return answers, windows, exits


def window_steps(times, arguments):
    """The number of steps of a window."""
    return max(1, round(arguments.seconds / usual_time(times) / arguments.windows))


def measure_limited(program, allocators, arguments):
    """Finds the peak that native allocates, then runs the same steps within a limit close to it."""
    native = Process("native", program, 0)
    times = native.ask(steps=arguments.warm_steps)["times"]
    steps = window_steps(times, arguments)
    peak_bytes = native.ask(steps=steps * arguments.windows)["allocated"]
    native.end()
    limit_bytes = int(arguments.limit_ratio * peak_bytes)
    print(f"\n{program}: native has allocated {peak_bytes / (1 << 20):.0f} MiB, so the limit is {limit_bytes / (1 << 20):.0f} MiB")
    limits = {allocator: limit_bytes for allocator in allocators}
    fixed = argparse.Namespace(**{**vars(arguments), "steps": steps})
    return measure(program, ["free", *allocators], limits, fixed)


def report(program, answers, windows, exits, out):
    base_name = "free" if "free" in answers else "native"
    base = answers.get(base_name, {})
    base_windows = windows.get(base_name, [])
    print(f"\n{program}: {len(base.get('losses', []))} steps")
    print(f"{'allocator':>12} {'allocated':>11} {'reserved':>11} {'ratio':>7} {'of ' + base_name:>9} {'ms a step':>10} {'time':>6} {'least':>6} {'most':>6}  losses  exit")
    for allocator, answer in answers.items():
        times = [window for window in windows[allocator] if window]
        middle = statistics.median(times) if times else float("nan")
        equal = answer["losses"] == base.get("losses")
        row = {
            "program": program,
            "allocator": allocator,
            "allocated": answer.get("allocated"),
            "reserved": answer.get("reserved"),
            "windows_s": windows[allocator],
            "losses_equal": equal,
            "last_loss": answer["losses"][-1] if answer["losses"] else None,
            "exit": exits[allocator],
            "failed": answer["failed"],
        }
        if out:
            print(json.dumps(row), file=out, flush=True)
        if answer["failed"]:
            print(f"{allocator:>12} failed: {answer['failed'].strip().splitlines()[0][:110]}")
            continue
        ratio = answer["reserved"] / max(answer["allocated"], 1)
        of_native = answer["reserved"] / base["allocated"] if base.get("allocated") else float("nan")
        ratios = [one / other for one, other in zip(windows[allocator], base_windows) if one and other] or [float("nan")]
        compared = " ".join(f"{value:>6.3f}" for value in (statistics.median(ratios), min(ratios), max(ratios)))
        sizes = " ".join(f"{answer[name] / (1 << 20):>7.0f} MiB" for name in ("allocated", "reserved"))
        print(
            f"{allocator:>12} {sizes} {ratio:>7.3f} {of_native:>9.3f} {1000 * middle:>10.2f} {compared}"
            f"  {'equal' if equal else 'DIFFER':<7}  {exits[allocator]}"
        )


def host_time(allocators, rounds=5):
    """The host time of torch.empty and its drop, in nanoseconds: the median of interleaved processes."""
    code = (
        "import sys, time, torch\n"
        "if sys.argv[1] in ('gpumem', 'fast'):\n    import gpumem.torch; gpumem.torch.install()\n"
        "def pair(n):\n"
        "    begin = time.perf_counter_ns()\n"
        "    for _ in range(n): torch.empty(65536, device='cuda')\n"
        "    return (time.perf_counter_ns() - begin) / n\n"
        "pair(20000); print(min(pair(20000) for _ in range(15)))\n"
    )
    found = {allocator: [] for allocator in allocators}
    for _ in range(rounds):
        for allocator in allocators:
            run = subprocess.run(
                [sys.executable, "-c", code, allocator], env={**os.environ, **ALLOCATORS[allocator]}, capture_output=True, text=True
            )
            found[allocator].append(float(run.stdout) if run.returncode == 0 else float("nan"))
            if run.returncode != 0:
                print(run.stderr[-2000:], file=sys.stderr)
    print("\ntorch.empty(65536) and its drop, ns on the host:")
    for allocator, times in found.items():
        print(f"{allocator:>12} {statistics.median(times):>8.0f}   {' '.join(f'{value:.0f}' for value in times)}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", default=",".join(PROGRAMS), help="of " + ", ".join(PROGRAMS))
    parser.add_argument("--allocators", default="native,again,expandable,gpumem", help="of " + ", ".join(ALLOCATORS))
    parser.add_argument("--seconds", type=float, default=4.0, help="of steps for each allocator and program")
    parser.add_argument("--windows", type=int, default=7)
    parser.add_argument("--warm-steps", type=int, default=6, help="before the windows; they count for memory and losses")
    parser.add_argument("--limit-bytes", type=int, default=0, help="a limit for every allocator")
    parser.add_argument("--limit-ratio", type=float, help="a limit for every allocator, by native's peak of allocated memory")
    parser.add_argument("--steps", type=int, default=0, help="in a window, in place of --seconds")
    parser.add_argument("--json", help="a file for one line of JSON a row")
    parser.add_argument("--no-host-time", action="store_true", help="leave out the time of torch.empty")
    parser.add_argument("--only-host-time", action="store_true", help="print the time of torch.empty alone")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        return serve(arguments.serve, arguments.programs, arguments.limit_bytes)
    allocators = arguments.allocators.split(",")
    out = open(arguments.json, "a") if arguments.json else None
    for program in [] if arguments.only_host_time else arguments.programs.split(","):
        if arguments.limit_ratio:
            found = measure_limited(program, allocators, arguments)
        else:
            found = measure(program, allocators, dict.fromkeys(allocators, arguments.limit_bytes), arguments)
        report(program, *found, out)
        sys.stdout.flush()
    if not (arguments.no_host_time or arguments.limit_ratio):
        host_time([allocator for allocator in allocators if allocator != "again"])


if __name__ == "__main__":
    main()
