"""The expressions of `crates/gpumem-array/benches/operations.rs` in PyTorch (eager) and CuPy (fused kernels), beside ours.

    cargo bench -p gpumem-array --bench operations > ours.txt
    python python/bench/expressions.py ours.txt

Prints GB/s of each work and the ratio to the better peer: above 1, gpumem is faster. Needs PyTorch; CuPy is used if it is installed.
"""

import sys

import torch

try:
    import cupy
except ImportError:
    cupy = None

N = 1 << 28
ROWS = (N // 1024, 1024)
SIDE = int(N**0.5)


def milliseconds(work, rounds=20):
    """The mean of calls in a row, by events."""
    for _ in range(3):
        work()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(rounds):
        work()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / rounds


def torch_works():
    a, b, c, m, v = (torch.full((N,), value, device="cuda") for value in (0.5, 0.25, 0.0, 0.0, 0.0))
    x, y, z = a.view(ROWS), b.view(ROWS), c.view(ROWS)
    square, sums = a[: SIDE * SIDE].view(SIDE, SIDE), c[: SIDE * SIDE].view(SIDE, SIDE)

    def adam():
        m.mul_(0.9).add_(a, alpha=0.1)
        v.mul_(0.999).addcmul_(a, a, value=0.001)
        c.sub_(m * 0.01 / (v.sqrt() + 1e-8))

    return {
        "copy": (8, lambda: c.copy_(a)),
        "(a * 2 + b) * 0.5 - a": (12, lambda: (a * 2 + b) * 0.5 - a),
        "max(a * exp(b * 0.1) - 0.6, 0)": (12, lambda: (a * (b * 0.1).exp() - 0.6).clamp_min(0)),
        "tanh(a) * ln(b + 1)": (12, lambda: a.tanh() * (b + 1).log()),
        "a if a > b, otherwise 0": (12, lambda: torch.where(a > b, a, 0.0)),
        "Adam, three arrays": (28, adam),
        "sums of exp(x), rows": (4, lambda: x.exp().sum(1)),
        "sums of x, columns": (4, lambda: x.sum(0)),
        "argmin of x": (4, lambda: x.argmin()),
        "column - row": (4, lambda: torch.sub(x[:, :1], y[:1], out=z)),
        "z += row": (8, lambda: z.add_(y[:1])),
        "x + x.t()": (12, lambda: torch.add(square, square.t(), out=sums)),
        "sum, large": (4, lambda: a.sum()),
        "dot, large": (8, lambda: torch.dot(a, b)),
        "c += a, large": (12, lambda: c.add_(a)),
        "c *= 0.5, large": (8, lambda: c.mul_(0.5)),
        **torch_indices(),
    }


def torch_indices():
    count, rows = N // 256, N // 4096
    places = (torch.arange(count, device="cuda") * 2654435761 % rows).int()
    table, values = torch.zeros((rows, 64), device="cuda"), torch.full((count, 64), 0.5, device="cuda")
    mask = torch.rand(N, device="cuda")
    return {
        "rows by indices": (2, lambda: table.index_select(0, places)),
        "additions by indices": (1, lambda: table.index_add_(0, places, values)),
        "places above 0.5": (4, lambda: (mask > 0.5).nonzero()),
    }


def cupy_works():
    a, b, c, m, v = (cupy.full(N, value, "f") for value in (0.5, 0.25, 0.0, 0.0, 0.0))
    x, y, z = a.reshape(ROWS), b.reshape(ROWS), c.reshape(ROWS)
    square, sums = a[: SIDE * SIDE].reshape(SIDE, SIDE), c[: SIDE * SIDE].reshape(SIDE, SIDE)

    def each(inputs, outputs, text, *arrays):
        kernel = cupy.ElementwiseKernel(inputs, outputs, text, "bench")
        return lambda: kernel(*arrays)

    return {
        "copy": lambda: cupy.copyto(c, a),
        "(a * 2 + b) * 0.5 - a": each("T a, T b", "T c", "c = (a * 2 + b) * 0.5f - a", a, b, c),
        "max(a * exp(b * 0.1) - 0.6, 0)": each(
            "T a, T b", "T c", "c = max(a * exp(b * 0.1f) - 0.6f, 0.0f)", a, b, c
        ),
        "tanh(a) * ln(b + 1)": each("T a, T b", "T c", "c = tanh(a) * log(b + 1)", a, b, c),
        "a if a > b, otherwise 0": each("T a, T b", "T c", "c = a > b ? a : 0", a, b, c),
        "Adam, three arrays": each(
            "T a",
            "T c, T m, T v",
            "m = m * 0.9f + a * 0.1f; v = v * 0.999f + a * a * 0.001f; c -= m * 0.01f / (sqrt(v) + 1e-8f)",
            a, c, m, v,
        ),
        "sums of exp(x), rows": lambda: cupy.ReductionKernel(
            "T value", "T sum", "exp(value)", "a + b", "sum = a", "0", "exp_sum"
        )(x, axis=1),
        "sums of x, columns": lambda: x.sum(axis=0),
        "argmin of x": lambda: x.argmin(),
        "column - row": lambda: cupy.subtract(x[:, :1], y[:1], out=z),
        "z += row": lambda: cupy.add(z, y[:1], out=z),
        "x + x.t()": lambda: cupy.add(square, square.T, out=sums),
        "sum, large": lambda: a.sum(),
        "dot, large": lambda: cupy.dot(a, b),
        "c += a, large": lambda: cupy.add(c, a, out=c),
        "c *= 0.5, large": lambda: cupy.multiply(c, 0.5, out=c),
        **cupy_indices(),
    }


def cupy_indices():
    import cupyx

    count, rows = N // 256, N // 4096
    places = (cupy.arange(count) * 2654435761 % rows).astype("i")
    table, values = cupy.zeros((rows, 64), "f"), cupy.full((count, 64), 0.5, "f")
    mask = cupy.random.random(N, "f")
    return {
        "rows by indices": lambda: table.take(places, axis=0),
        "additions by indices": lambda: cupyx.scatter_add(table, places, values),
        "places above 0.5": lambda: cupy.flatnonzero(mask > 0.5),
    }


def rates(path):
    """GB/s by name, from the table that the bench prints."""
    found = {}
    for line in open(path):
        words = line.split()
        if len(words) > 4 and words[-1].isdigit():
            found[" ".join(words[:-4])] = float(words[-1])
    return found


def main():
    ours = rates(sys.argv[1])
    peers = {name: [bytes_ * N / milliseconds(work) / 1e6] for name, (bytes_, work) in torch_works().items()}
    torch.cuda.empty_cache()
    if cupy is not None:
        stream = cupy.cuda.Stream.from_external(torch.cuda.current_stream())
        sizes = {name: bytes_ for name, (bytes_, _) in torch_works().items()}
        torch.cuda.empty_cache()
        with stream:
            for name, work in cupy_works().items():
                peers[name].append(sizes[name] * N / milliseconds(work) / 1e6)
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}, CuPy {cupy and cupy.__version__}")
    print(f"{'work':<34} {'gpumem':>8} {'PyTorch':>8} {'CuPy':>8} {'ratio':>6}   (GB/s)")
    for name, found in peers.items():
        own = ours.get(name, float("nan"))
        cells = " ".join(f"{rate:>8.0f}" for rate in (found + [float("nan")])[:2])
        print(f"{name:<34} {own:>8.0f} {cells} {own / max(found):>6.2f}")


if __name__ == "__main__":
    main()
