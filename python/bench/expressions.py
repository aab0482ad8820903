"""The expressions of `crates/gpumem-array/benches/operations.rs` in PyTorch (eager, and by `torch.compile`) and CuPy (fused kernels), beside
ours.

    cargo bench -p gpumem-array --bench operations > ours.txt
    python python/bench/expressions.py ours.txt

Prints GB/s of each work, with the ratios to a copy's rate and to the best peer's, then microseconds of the host for a call with 1,024
elements, with the ratios to the fastest peer, and to the driver's calls by hand: above 1, gpumem is faster. Needs PyTorch; CuPy is used if it
is installed, and `torch.compile` if it works (it needs Triton and a C compiler).
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
CHANNEL = [0.485, 0.456, 0.406]


# Other programs can only make a batch of calls slower.
BATCHES = 5


def milliseconds(work, rounds=20):
    """The best mean of calls in a row, by events."""
    for _ in range(3):
        work()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def batch():
        start.record()
        for _ in range(rounds):
            work()
        end.record()
        torch.cuda.synchronize()
        return start.elapsed_time(end) / rounds

    return min(batch() for _ in range(BATCHES))


def host_microseconds(work, rounds=500):
    """The best mean time of calls, of few enough for the stream's queue: the host never waits for the device."""
    for _ in range(200):
        work()

    def batch():
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(rounds):
            work()
        return (time.perf_counter() - start) / rounds * 1e6

    return min(batch() for _ in range(BATCHES))


def torch_works(shape):
    """The bytes of a work for each element of `shape`, its function, and the function's arguments."""
    n = shape[0] * shape[1]
    side = int(n**0.5)
    a, b, c, m, v = (torch.full((n,), value, device="cuda") for value in (0.5, 0.25, 0.0, 0.0, 0.0))
    x, y, z = a.view(shape), b.view(shape), c.view(shape)
    square, sums = a[: side * side].view(side, side), c[: side * side].view(side, side)
    points = min(n // 16, 1 << 22)
    table, centres = a.view(-1, 16)[:points], b.view(-1, 16)[:16].clone()
    pixels = min(n // 3, 1 << 26)
    image = (torch.arange(3 * pixels, device="cuda", dtype=torch.int32) % 251).to(torch.uint8).view(-1, 3)
    channel = torch.tensor(CHANNEL, device="cuda")
    coloured = torch.zeros((pixels, 3), device="cuda")

    def adam(a, c, m, v):
        m.mul_(0.9).add_(a, alpha=0.1)
        v.mul_(0.999).addcmul_(a, a, value=0.001)
        c.sub_(m * 0.01 / (v.sqrt() + 1e-8))

    def normalised(image, channel, coloured):
        return coloured.copy_((image.float() / 255 - channel) / channel)

    return {
        "copy": (8, lambda a, c: c.copy_(a), (a, c)),
        "(a * 2 + b) * 0.5 - a": (12, lambda a, b: (a * 2 + b) * 0.5 - a, (a, b)),
        "max(a * exp(b * 0.1) - 0.6, 0)": (12, lambda a, b: (a * (b * 0.1).exp() - 0.6).clamp_min(0), (a, b)),
        "tanh(a) * ln(b + 1)": (12, lambda a, b: a.tanh() * (b + 1).log(), (a, b)),
        "a if a > b, otherwise 0": (12, lambda a, b: torch.where(a > b, a, 0.0), (a, b)),
        "Adam, three arrays": (28, adam, (a, c, m, v)),
        "sums of exp(x), rows": (4, lambda x: x.exp().sum(1), (x,)),
        "sums of x, columns": (4, lambda x: x.sum(0), (x,)),
        "argmin of x": (4, lambda x: x.argmin(), (x,)),
        "column - row": (4, lambda x, y, z: torch.sub(x[:, :1], y[:1], out=z), (x, y, z)),
        "z += row": (8, lambda y, z: z.add_(y[:1]), (y, z)),
        "x + x.t()": (12, lambda square, sums: torch.add(square, square.t(), out=sums), (square, sums)),
        "softmax, rows": (8, lambda x: x.softmax(1), (x,)),
        "distances of 16 from 16": (
            points * 128 / n,
            lambda table, centres: ((table[:, None] - centres[None]) ** 2).sum(2),
            (table, centres),
        ),
        "images, bytes by channel": (pixels * 15 / n, normalised, (image, channel, coloured)),
    }


def torch_large():
    a, b, c = (torch.full((N,), value, device="cuda") for value in (0.5, 0.25, 0.0))
    count, rows = N // 256, N // 4096
    places = (torch.arange(count, device="cuda") * 2654435761 % rows).int()
    table, values = torch.zeros((rows, 64), device="cuda"), torch.full((count, 64), 0.5, device="cuda")
    mask = torch.rand(N, device="cuda")
    return {
        "sum, large": (4, lambda a: a.sum(), (a,)),
        "dot, large": (8, lambda a, b: torch.dot(a, b), (a, b)),
        "c += a, large": (12, lambda a, c: c.add_(a), (a, c)),
        "c *= 0.5, large": (8, lambda c: c.mul_(0.5), (c,)),
        "cumsum, large": (8, lambda a: a.cumsum(0), (a,)),
        "normal numbers": (4, lambda c: c.normal_(), (c,)),
        "rows by indices": (2, lambda table, places: table.index_select(0, places), (table, places)),
        "additions by indices": (1, lambda table, places, values: table.index_add_(0, places, values), (table, places, values)),
        "places above 0.5": (4, lambda mask: (mask > 0.5).nonzero(), (mask,)),
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

    points, pixels = min(n // 16, 1 << 22), min(n // 3, 1 << 26)
    table, centres = a.reshape(-1, 16)[:points, None], b.reshape(-1, 16)[None, :16].copy()
    image, channel = cupy.full((pixels, 3), 100, "u1"), cupy.array(CHANNEL, "f")
    coloured = cupy.zeros((pixels, 3), "f")
    exp_sum = cupy.ReductionKernel("T value", "T sum", "exp(value)", "a + b", "sum = a", "0", "exp_sum")
    apart = cupy.ReductionKernel("T a, T b", "T sum", "(a - b) * (a - b)", "a + b", "sum = a", "0", "apart")
    above = cupy.ReductionKernel("T x, T top", "T sum", "exp(x - top)", "a + b", "sum = a", "0", "above")

    @cupy.fuse()
    def divided(x, top, sums):
        return cupy.exp(x - top) / sums

    def softmax():
        top = x.max(axis=1, keepdims=True)
        return divided(x, top, above(x, top, axis=1, keepdims=True))

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
        "softmax, rows": softmax,
        "distances of 16 from 16": lambda: apart(table, centres, axis=2),
        "images, bytes by channel": each(
            "uint8 image, float32 channel", "float32 coloured", "coloured = (image / 255.0f - channel) / channel", image, channel, coloured
        ),
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
    """A figure of each work in PyTorch, compiled and in CuPy, whose arrays are there in turn."""
    of_torch, of_cupy = works
    entries = of_torch()
    peers = {name: [figure(bytes_, lambda: work(*arrays))] for name, (bytes_, work, arrays) in entries.items()}
    for name, (bytes_, work, arrays) in entries.items():
        torch._dynamo.reset()
        try:
            compiled = torch.compile(work, dynamic=False)
            compiled(*arrays)
            if name.startswith("images") and not torch.equal(work(*arrays).clone(), compiled(*arrays)):
                print(f"torch.compile, {name}: other bits than eager PyTorch", file=sys.stderr)
            peers[name].append(figure(bytes_, lambda: compiled(*arrays)))
        except Exception as error:
            print(f"torch.compile, {name}: {str(error).strip().splitlines()[0]}", file=sys.stderr)
            peers[name].append(float("nan"))
    sizes = {name: bytes_ for name, (bytes_, _, _) in entries.items()}
    del entries, work, arrays
    torch._dynamo.reset()
    torch.cuda.empty_cache()
    if cupy is not None:
        with cupy.cuda.Stream.from_external(torch.cuda.current_stream()):
            for name, work in of_cupy().items():
                peers[name].append(figure(sizes[name], work))
            del work
            cupy.get_default_memory_pool().free_all_blocks()
    return peers


def best(peers, choose):
    return choose(figure for figure in peers if figure == figure)


def show_large(peers, own):
    print(f"\n{'GB/s':<34} {'gpumem':>8} {'PyTorch':>8} {'compiled':>8} {'CuPy':>8} {'/ copy':>7} {'/ best':>7}")
    for name, found in peers.items():
        cells = " ".join(f"{value:>8.0f}" for value in found)
        print(f"{name:<34} {own[name]:>8.0f} {cells} {own[name] / own['copy']:>7.2f} {own[name] / best(found, max):>7.2f}")


# What the driver's calls by hand are for our works; `assign_expr` and updates need a launch alone.
NEW = {"sums of exp(x), rows", "sums of x, columns", "argmin of x", "softmax, rows", "distances of 16 from 16"}


def show_small(peers, own):
    print(f"\n{'host µs, 1,024 elements':<34} {'gpumem':>8} {'PyTorch':>8} {'compiled':>8} {'CuPy':>8} {'peer /':>7} {'hand /':>7}")
    for name, found in peers.items():
        cells = " ".join(f"{value:>8.2f}" for value in found)
        call = "copy" if name == "copy" else "allocate and launch" if name in NEW else "launch"
        hand = own[f"by hand: {call}"] / own[name]
        print(f"{name:<34} {own[name]:>8.2f} {cells} {best(found, min) / own[name]:>7.2f} {hand:>7.2f}")
    print("\ngpumem alone, host µs")
    for name, host in own.items():
        if name not in peers:
            print(f"{name:<34} {host:>8.2f}")


def main():
    own = ours(sys.argv[1])
    torch.set_grad_enabled(False)
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}, CuPy {cupy and cupy.__version__}")

    def rate(bytes_, work):
        return bytes_ * N / milliseconds(work) / 1e6

    large = (N // 1024, 1024)
    peers = measured((lambda: torch_works(large), lambda: cupy_works(large)), rate)
    peers.update(measured((torch_large, cupy_large), rate))
    show_large(peers, {name: rate for name, (rate, _) in own.items()})
    works = (lambda: torch_works((32, 32)), lambda: cupy_works((32, 32)))
    peers = measured(works, lambda _, work: host_microseconds(work))
    show_small(peers, {name.removesuffix(SMALL): host for name, (_, host) in own.items() if name.endswith(SMALL)})


if __name__ == "__main__":
    main()
