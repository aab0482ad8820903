#!/usr/bin/env python3
"""Training steps whose saved tensors move to the host: `gpumem.torch.offload` beside plain steps, `save_on_cpu` and checkpoints.

    python3 bench/torch_offload.py                    # needs PyTorch and a GPU; about a minute
    python3 bench/torch_offload.py --allocator native # PyTorch's allocator instead of gpumem's

A row has the peak of allocated memory and the time of a step, both beside the plain step, the bytes that a step moves to the host, and
whether the losses are equal to the bit. Saved tensors go down in the forward pass and come up in the backward pass, so the bound is the sum
of two: the longer of the forward pass and the copies down, and the longer of the backward pass and the copies up.
"""

import argparse
import os
import time

RATIOS = (1.0, 0.75, 0.6, 0.5)
STEPS = 6


def programs(torch, names):
    nn = torch.nn

    class Block(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.attention = nn.MultiheadAttention(width, 16, batch_first=True)
            self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
            self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)

        def forward(self, x):
            y = self.before(x)
            x = x + self.attention(y, y, y, need_weights=False)[0]
            return x + self.feed(self.between(x))

    def transformer(width, layers, rows):
        return lambda: (nn.Sequential(*[Block(width) for _ in range(layers)]), torch.randn(rows, 1024, width, device="cuda"))

    def images():
        def stage(before, after):
            return nn.Sequential(nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU())

        stages = [stage(3, 64)] + [stage(64, 64) for _ in range(15)]
        return nn.Sequential(*stages), torch.randn(64, 3, 224, 224, device="cuda")

    known = {
        "transformer": transformer(1024, 24, 16),
        "wide transformer": transformer(4096, 8, 8),
        "images": images,
    }
    return {name: known[name] for name in names or known}


def link_rates(torch):
    """Bytes a second up and down."""
    host = torch.empty(1 << 28, dtype=torch.uint8, pin_memory=True)
    device = torch.empty(1 << 28, dtype=torch.uint8, device="cuda")
    rates = []
    for target, source in ((device, host), (host, device)):
        target.copy_(source, non_blocking=True)
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(8):
            target.copy_(source, non_blocking=True)
        torch.cuda.synchronize()
        rates.append(8 * (1 << 28) / (time.perf_counter() - begin))
    return rates


def measure(torch, make, wrap):
    """The peak, the seconds of the best step after three in its two halves, the losses, and what the last step moved."""
    from torch.utils.checkpoint import checkpoint_sequential

    torch.manual_seed(0)
    net, x = make()
    net = net.to("cuda")
    optimizer = torch.optim.AdamW(net.parameters(), fused=True)
    losses, best, forward, moved = [], float("inf"), 0.0, 0
    for step in range(STEPS):
        torch.cuda.synchronize()
        if step == 3:
            torch.cuda.reset_peak_memory_stats()
        begin = time.perf_counter()
        start = torch.cuda.Event(enable_timing=True)
        start.record()
        optimizer.zero_grad(set_to_none=True)
        context = wrap()
        with context as figures, torch.autocast("cuda", torch.bfloat16):
            y = checkpoint_sequential(net, len(net), x, use_reentrant=False) if figures == "checkpoints" else net(x)
            loss = y.float().square().mean()
        moved = getattr(figures, "moved_bytes", 0)
        between = torch.cuda.Event(enable_timing=True)
        between.record()
        loss.backward()
        optimizer.step()
        del y
        torch.cuda.synchronize()
        took = time.perf_counter() - begin
        if step >= 3 and took < best:
            best, forward = took, start.elapsed_time(between) / 1e3
        losses.append(float(loss.detach()))
    return torch.cuda.max_memory_allocated(), (forward, best - forward), losses, moved


def main():
    import contextlib

    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    import torch

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--allocator", choices=("gpumem", "native"), default="gpumem")
    parser.add_argument("--programs", type=lambda text: text.split(","))
    options = parser.parse_args()
    import gpumem.torch

    if options.allocator == "gpumem":
        gpumem.torch.install()
    # Without it, the backward pass of attention adds in any order, and no two runs are equal.
    torch.use_deterministic_algorithms(True, warn_only=True)
    up, down = link_rates(torch)
    machine = f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}, {options.allocator}"
    print(f"{machine}, link {up / 1e9:.1f} GB/s up, {down / 1e9:.1f} down")
    for name, make in programs(torch, options.programs).items():
        peak, halves, losses, _ = measure(torch, make, contextlib.nullcontext)
        plain = sum(halves)
        print(f"{name}: plain {peak / 2**30:.2f} GiB, {1e3 * plain:.1f} ms a step", flush=True)

        def row(label, wrap):
            torch.cuda.empty_cache()
            try:
                used, took, found, moved = measure(torch, make, wrap)
                took = sum(took)
            except torch.cuda.OutOfMemoryError as error:
                print(f"  {label:24} refused: {str(error).splitlines()[0]}", flush=True)
                return
            bound = max(halves[0], moved / down) + max(halves[1], moved / up)
            print(
                f"  {label:24} peak {used / 2**30:6.2f} GiB = {used / peak:.2f}, {1e3 * took:7.1f} ms = {took / plain:.2f} of plain, "
                f"{took / bound:.2f} of the bound, {moved / 2**30:.2f} GiB moved, losses equal: {found == losses}",
                flush=True,
            )

        # Where these losses differ, the program itself is not reproducible.
        row("plain again", contextlib.nullcontext)
        for ratio in RATIOS:
            # The margin that `offload` keeps is 1/16 of its limit.
            limit = int(ratio * peak) if ratio < 1 else None
            row(f"offload, {ratio:.2f} × the peak", lambda limit=limit: gpumem.torch.offload(limit))
        row("checkpoints", lambda: contextlib.nullcontext("checkpoints"))
        row("save_on_cpu", lambda: torch.autograd.graph.save_on_cpu(pin_memory=True))


if __name__ == "__main__":
    main()
