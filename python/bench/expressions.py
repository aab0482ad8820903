"""The expressions of `crates/gpumem-array/benches/operations.rs` in PyTorch (eager) and CuPy (fused kernels), beside ours.

    cargo bench -p gpumem-array --bench operations > ours.txt
    python python/bench/expressions.py ours.txt

Prints GB/s of each work, then microseconds of the host for a call with 1,024 elements, and the ratio to the better peer: above 1, gpumem is
faster. Needs PyTorch; CuPy is used if it is installed.
"""

import sys
import time

import torch

try:
    import cupy
except ImportError:
    cupy = None

N = 1 << 28
SMALL = ", 1024"


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


def host_microseconds(work, rounds=500):
    """The mean time of a call, of few enough for the stream's queue: the host never waits for the device."""
    for _ in range(200):
        work()
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(rounds):
        work()
    taken = time.perf_counter() - start
    torch.cuda.synchronize()
    return taken / rounds * 1e6


def torch_works(shape):
    n = shape[0] * shape[1]
    side = int(n**0.5)
    a, b, c, m, v = (torch.full((n,), value, device="cuda") for value in (0.5, 0.25, 0.0, 0.0, 0.0))
    x, y, z = a.view(shape), b.view(shape), c.view(shape)
    square, sums = a[: side * side].view(side, side), c[: side * side].view(side, side)

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
    }


def torch_large():
    a, b, c = (torch.full((N,), value, device="cuda") for value in (0.5, 0.25, 0.0))
    count, rows = N // 256, N // 4096
    places = (torch.arange(count, device="cuda") * 2654435761 % rows).int()
    table, values = torch.zeros((rows, 64), device="cuda"), torch.full((count, 64), 0.5, device="cuda")
    mask = torch.rand(N, device="cuda")
    return {
        "sum, large": (4, lambda: a.sum()),
        "dot, large": (8, lambda: torch.dot(a, b)),
        "c += a, large": (12, lambda: c.add_(a)),
        "c *= 0.5, large": (8, lambda: c.mul_(0.5)),
        "cumsum, large": (8, lambda: a.cumsum(0)),
        "normal numbers": (4, lambda: c.normal_()),
        "rows by indices": (2, lambda: table.index_select(0, places)),
        "additions by indices": (1, lambda: table.index_add_(0, places, values)),
        "places above 0.5": (4, lambda: (mask > 0.5).nonzero()),
    }


def cupy_works(shape):
    n = shape[0] * shape[1]
    side = int(n**0.5)
    a, b, c, m, v = (cupy.full(n, value, "f") for value in (0.5, 0.25, 0.0, 0.0, 0.0))
    x, y, z = a.reshape(shape), b.reshape(shape), c.reshape(shape)
    square, sums = a[: side * side].reshape(side, side), c[: side * side].reshape(side, side)

    def each(inputs, outputs, text, *arrays):
        kernel = cupy.ElementwiseKernel(inputs, outputs, text, "bench")
        return lambda: kernel(*arrays)

    exp_sum = cupy.ReductionKernel("T value", "T sum", "exp(value)", "a + b", "sum = a", "0", "exp_sum")
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
        "sums of exp(x), rows": lambda: exp_sum(x, axis=1),
        "sums of x, columns": lambda: x.sum(axis=0),
        "argmin of x": lambda: x.argmin(),
        "column - row": lambda: cupy.subtract(x[:, :1], y[:1], out=z),
        "z += row": lambda: cupy.add(z, y[:1], out=z),
        "x + x.t()": lambda: cupy.add(square, square.T, out=sums),
    }


def cupy_large():
    import cupyx

    a, b, c = (cupy.full(N, value, "f") for value in (0.5, 0.25, 0.0))
    count, rows = N // 256, N // 4096
    places = (cupy.arange(count) * 2654435761 % rows).astype("i")
    table, values = cupy.zeros((rows, 64), "f"), cupy.full((count, 64), 0.5, "f")
    mask = cupy.random.random(N, "f")
    return {
        "sum, large": lambda: a.sum(),
        "dot, large": lambda: cupy.dot(a, b),
        "c += a, large": lambda: cupy.add(c, a, out=c),
        "c *= 0.5, large": lambda: cupy.multiply(c, 0.5, out=c),
        "cumsum, large": lambda: a.cumsum(),
        "normal numbers": lambda: cupy.random.standard_normal(N, "f"),
        "rows by indices": lambda: table.take(places, axis=0),
        "additions by indices": lambda: cupyx.scatter_add(table, places, values),
        "places above 0.5": lambda: cupy.flatnonzero(mask > 0.5),
    }


def ours(path):
    """GB/s and microseconds of the host by name, from the table that the bench prints."""
    found = {}
    for line in open(path):
        words = line.split()
        if len(words) > 4 and words[-1].isdigit():
            found[" ".join(words[:-4])] = (float(words[-1]), float(words[-3]))
    return found


def measured(works, figure):
    """A figure of each work, with the arrays of PyTorch and CuPy in turn."""
    of_torch, of_cupy = works
    peers = {}
    entries = of_torch()
    for name, (bytes_, work) in entries.items():
        peers[name] = [figure(bytes_, work)]
    sizes = {name: bytes_ for name, (bytes_, _) in entries.items()}
    del entries, work
    torch.cuda.empty_cache()
    if cupy is not None:
        with cupy.cuda.Stream.from_external(torch.cuda.current_stream()):
            for name, work in of_cupy().items():
                peers[name].append(figure(sizes[name], work))
            del work
            cupy.get_default_memory_pool().free_all_blocks()
    return peers


def show(title, peers, own, is_rate):
    print(f"\n{title:<34} {'gpumem':>8} {'PyTorch':>8} {'CuPy':>8} {'ratio':>6}")
    for name, found in peers.items():
        cells = " ".join(f"{value:>8.{0 if is_rate else 2}f}" for value in (found + [float("nan")])[:2])
        ratio = own[name] / max(found) if is_rate else min(found) / own[name]
        print(f"{name:<34} {own[name]:>8.{0 if is_rate else 2}f} {cells} {ratio:>6.2f}")


def main():
    own = ours(sys.argv[1])
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}, CuPy {cupy and cupy.__version__}")

    def rate(bytes_, work):
        return bytes_ * N / milliseconds(work) / 1e6

    large = (N // 1024, 1024)
    peers = measured((lambda: torch_works(large), lambda: cupy_works(large)), rate)
    peers.update(measured((torch_large, cupy_large), rate))
    show("GB/s", peers, {name: rate for name, (rate, _) in own.items()}, True)
    works = (lambda: torch_works((32, 32)), lambda: cupy_works((32, 32)))
    peers = measured(works, lambda _, work: host_microseconds(work))
    small = {name.removesuffix(SMALL): host for name, (_, host) in own.items() if name.endswith(SMALL)}
    show("host µs, 1,024 elements", peers, small, False)


if __name__ == "__main__":
    main()
