"""PyTorch on gpumem: `import gpumem.torch; gpumem.torch.install()` before the first CUDA tensor.

`install` makes gpumem the allocator of the whole process. `with gpumem.torch.pool():` instead lets PyTorch's own allocator take
its segments from gpumem, for allocations inside the block. docs/how-to/from-pytorch.md describes both, and what PyTorch refuses.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import sys
import sysconfig
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, SupportsIndex, Union

import _gpumem_start
import torch

from . import Pool, _out_of_memory_function
from ._native import (
    FOLDER,
    PYTORCH,
    Error,
    InvalidEnvironment,
    Limit,
    Status,
    Unsupported,
    WrongState,
    check,
    check_size,
    limit_text,
    path_text,
    peers_text,
    serves,
    text as _text,
    version_text,
)
from ._offload import Offload, _Home

__all__ = [
    "Offload",
    "install",
    "is_installed",
    "memory_fraction",
    "memory_pool",
    "memory_stats",
    "offload",
    "part",
    "pool",
    "reset_accumulated_memory_stats",
    "reset_peak_memory_stats",
    "retire_stream",
    "set_options",
    "way",
]

# PyTorch's constructor of exceptions, and its exception classes, with the libraries that contain them.
_CONSTRUCTOR = "_ZN3c105ErrorC1ENS_14SourceLocationENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"
_SYMBOLS = (
    ("libc10.so", _CONSTRUCTOR),
    ("libc10.so", "_ZTIN3c105ErrorE"),
    ("libc10_cuda.so", "_ZTIN3c1016OutOfMemoryErrorE"),
)

_entry: Any = None
_installed: Any = None
_way = ""
# True if `install` was called for the program, which may still call it once to set options.
_is_automatic = False
# By ordinal, what `offload` keeps.
_homes: dict[int, _Home] = {}
_segments: Any = None
# By thread and device, the parts that `part` has entered and not left.
_used = threading.local()
# By device, the peaks of allocated and reserved memory up to the last `reset_peak_memory_stats`.
_peaks: dict[int, tuple[int, int]] = {}
# By device, the counts at the last `reset_accumulated_memory_stats`.
_accumulated: dict[int, tuple[int, int, int, int]] = {}

_Device = Union[int, str, "torch.device", None]
_Path = Union[str, bytes, "os.PathLike[Any]", None]

_WAY_VARIABLE = "GPUMEM_TORCH"
_WAYS = ("full", "pluggable")
_DEFAULT_WAY = "pluggable"
_LATE = (
    "PyTorch's own allocator has memory already; call install() before the first CUDA tensor, in a notebook after a restart of its kernel"
)

# A fraction of 0 sets it (entry/torch.cpp).
_LIMIT_MIN = 2 << 20
# The devices that entry/torch.cpp serves.
_DEVICES_MAX = 64


def install(
    *,
    conf: str | None = None,
    hard_limit: Limit | None = None,
    soft_limit: Limit | None = None,
    peers: str | Iterable[SupportsIndex] | None = None,
    trace: _Path = None,
    on_out_of_memory: Callable[[str], object] | None = None,
    statistics: bool = True,
    stacks: bool = False,
) -> None:
    """Makes gpumem the allocator of this process's CUDA tensors. Call it before the first of them.

    The options are those of `gpumem.Pool`; the environment sets the others (GPUMEM_CONF, GPUMEM_HARD_LIMIT). The pool is the device's
    default pool in this process, so CuPy and RMM on gpumem use it too; whichever of them comes first sets its options. With
    `statistics`, torch.cuda.memory_stats, memory_allocated, memory_reserved, their peaks and memory_summary report gpumem's figures;
    PyTorch has none for other allocators.

    With `stacks`, each tensor counts for the line of Python that allocates it, in reports and in `status_text`: the innermost line of the
    program itself, or of a package other than PyTorch. The lines take the place of the program's own scopes. Each allocation takes
    Python's lock, as with PyTorch's memory history.

    In a process of `python -m gpumem run`, GPUMEM_INSTALL or `%load_ext gpumem`, gpumem is installed already, and the first call sets
    options.

    Raises `gpumem.Unsupported` for a PyTorch version that gpumem does not support, and `gpumem.WrongState` if PyTorch has already
    allocated.
    """
    global _installed, _is_automatic
    if _installed is not None and not _is_automatic:
        raise Error("gpumem is installed already; set options in the first call")
    entry = _load()
    options = {
        "conf": conf,
        "hard_limit": hard_limit,
        "soft_limit": soft_limit,
        "peers": peers,
        "trace": trace,
        "on_out_of_memory": on_out_of_memory,
    }
    given = {name: value for name, value in options.items() if value is not None}
    if given:
        if _is_automatic and _made_pools():
            raise WrongState("a pool exists already, and its options cannot change; call install() before the first CUDA tensor")
        set_options(**given)  # type: ignore[arg-type]
    if stacks:
        _name_lines(entry)
    if _is_automatic:
        _is_automatic = False
        return
    _installed = (entry, _install_full() or _install_pluggable())
    if statistics:
        _replace_statistics()


def _install_full() -> Any:
    """PyTorch's allocator, compiled against its headers. None if it is not asked for, or not available: then `way` says why."""
    global _way
    asked = os.environ.get(_WAY_VARIABLE, "").strip() or _DEFAULT_WAY
    if asked not in _WAYS:
        raise InvalidEnvironment(f"invalid {_WAY_VARIABLE}={asked[:200]!r}; set it to {' or '.join(_WAYS)}, or unset it")
    if asked == "pluggable":
        _way = "pluggable"
        return None
    try:
        from . import _full

        library = _full.load()
    except (Error, OSError, ImportError) as error:
        _way = f"pluggable, because {error}"
        print(f"gpumem: PyTorch's allocator is {_way}", file=sys.stderr)
        return None
    if not library.gpumem_torch_full_install():
        raise WrongState(_LATE)
    _way = f"full, for PyTorch {torch.__version__}"
    return library


def _install_pluggable() -> Any:
    allocator = torch._C._cuda_customAllocator(_address("gpumem_torch_alloc"), _address("gpumem_torch_free"))
    for setter, function in (
        ("set_reset_fn", "gpumem_torch_empty_cache"),
        ("set_memory_fraction_fn", "gpumem_torch_memory_fraction"),
        ("set_record_stream_fn", "gpumem_torch_record_stream"),
        ("set_begin_allocate_to_pool", "gpumem_torch_begin_pool"),
        ("set_end_allocate_to_pool_fn", "gpumem_torch_end_pool"),
        ("set_release_pool", "gpumem_torch_release_pool"),
    ):
        if not hasattr(allocator, setter):
            raise Unsupported(f"PyTorch {torch.__version__} has no {setter} for allocators; {_TESTED}")
        getattr(allocator, setter)(_address(function))
    try:
        torch.cuda.memory.change_current_allocator(torch.cuda.memory._CUDAAllocator(allocator))
    except RuntimeError as error:
        raise WrongState(_LATE) from error
    return allocator


def is_installed() -> bool:
    """True after `install`."""
    return _installed is not None


def way() -> str:
    """How gpumem is PyTorch's allocator: "full" with all that PyTorch's own allocator offers, or "pluggable", with the reason. Empty
    before `install`.

    GPUMEM_TORCH chooses it: `full` is compiled against the installed PyTorch by the first `install`, and needs a C++ compiler;
    `pluggable`, the default, needs none.
    """
    return _way


@contextlib.contextmanager
def pool(mem_pool: Any = None, device: _Device = None) -> Iterator[Any]:
    """Routes this thread's allocations to a torch.cuda.MemPool that gets its segments from gpumem, and yields it.

    PyTorch's allocator stays in charge: its statistics, snapshots and graphs work, and it decides about memory use. Pass the same
    pool to use it again. Threads that are started inside, such as those of `backward`, allocate elsewhere.

    A segment that PyTorch requests during a capture, on a stream that gpumem has not seen, is refused. Allocate once on the capture's
    stream, inside `pool()`, before the capture begins.
    """
    if _installed is not None:
        raise Error("gpumem serves the whole process after install(); a pool is for processes without it")
    if mem_pool is None:
        mem_pool = torch.cuda.MemPool(_segment_allocator())
    with torch.cuda.use_mem_pool(mem_pool, device=device):
        yield mem_pool


@contextlib.contextmanager
def part(name: str, device: _Device = None) -> Iterator[Pool]:
    """Allocates this thread's tensors from a part of the device's pool, and yields the part, a `gpumem.Pool` that sleeps separately:

        with gpumem.torch.part("weights") as weights:
            model = Model().cuda()
        weights.sleep()  # another phase uses the memory
        weights.wake()

    The same name always means the same part. Threads that are started inside, such as those of `backward`, allocate from the device's
    pool. Within `pool()`, use one `MemPool` for each part: PyTorch keeps the segments of a `MemPool` for its next tensors.
    """
    entry, ordinal = _load(), _ordinal(device)
    chosen = memory_pool(device).part(name)
    used: list[Pool] = vars(_used).setdefault(str(ordinal), [])
    used.append(chosen)
    entry.gpumem_torch_use_pool(ordinal, chosen._handle)
    try:
        yield chosen
    finally:
        # Tasks of one thread may leave their parts in any order.
        if used is not vars(_used).get(str(ordinal)):
            raise WrongState(f"the part {name!r} was left on another thread, and stays on its own; leave it on the thread that entered it")
        used.remove(chosen)
        entry.gpumem_torch_use_pool(ordinal, used[-1]._handle if used else None)


def offload(limit: SupportsIndex | None = None, device: _Device = None) -> Offload:
    """Keeps what autograd saves on the device until memory is short, and moves only what has to go to pinned host memory:

        with gpumem.torch.offload():
            loss = model(batch)
        loss.backward()

    The oldest saved tensors move first, because the backward pass needs them last. Copies run on streams of their own, down during the
    forward pass and up ahead of the backward pass. What a pass had to move, the next one moves from its beginning.

    `limit` is the device memory that the program should stay below, in bytes. Without it, the limit of the device's pool counts, or the
    device's memory. Works with and without `install`, with autocast and checkpoints; captured
    work is left alone.

    A saved tensor that is written in place before the backward pass is an error, as without `offload`; PyTorch hides writes to the *result*
    of an operation from it, so these are not noticed.
    """
    ordinal = _ordinal(device)
    home = _homes.get(ordinal)
    if home is None:
        home = _homes.setdefault(ordinal, _Home(torch.device("cuda", ordinal), lambda: _in_use_bytes(ordinal)))
    return Offload(home, _offload_limit(limit, ordinal))


def _in_use_bytes(ordinal: int) -> int:
    if _installed is not None:
        return memory_pool(ordinal).status().in_use_bytes
    return int(torch.cuda.memory_allocated(ordinal))


def _offload_limit(limit: SupportsIndex | None, ordinal: int) -> int:
    total_bytes = int(torch.cuda.get_device_properties(ordinal).total_memory)
    if limit is not None:
        return min(check_size("limit", limit), total_bytes)
    hard_limit_bytes = memory_pool(ordinal).status().hard_limit_bytes if _installed is not None else 0
    return min(hard_limit_bytes or total_bytes, total_bytes)


def set_options(
    *,
    conf: str | None = None,
    hard_limit: Limit | None = None,
    soft_limit: Limit | None = None,
    peers: str | Iterable[SupportsIndex] | None = None,
    trace: _Path = None,
    on_out_of_memory: Callable[[str], object] | None = None,
) -> None:
    """Sets the options of pools that are created from now on: the first allocation on a device creates its pool.

    They replace the options of earlier calls; the options of `install` replace them.
    """
    texts = (
        None if conf is None else _text("conf", conf),
        None if trace is None else path_text("trace", trace),
        limit_text("hard_limit", hard_limit),
        limit_text("soft_limit", soft_limit),
        None if peers is None else peers_text(peers),
    )
    notify = (0, 0) if on_out_of_memory is None else _out_of_memory_function(on_out_of_memory)
    _load().gpumem_torch_set_options(*texts, *(ctypes.cast(value, ctypes.c_void_p) for value in notify))


def memory_pool(device: _Device = None) -> Pool:
    """The `gpumem.Pool` that a device's tensors are allocated from: limits, status, trim."""
    handle = ctypes.c_void_p()
    check(_load().gpumem_torch_pool(_ordinal(device), ctypes.byref(handle)), PYTORCH)
    return Pool._of(handle)


def retire_stream(stream: Any) -> None:
    """Declares that the owner of a torch.cuda.ExternalStream is about to destroy the stream."""
    check(_load().gpumem_torch_retire(stream.device_index, stream.cuda_stream), PYTORCH)


def memory_stats(device: _Device = None) -> dict[str, Any]:
    """A device's figures in the form of torch.cuda.memory_stats_as_nested_dict, limited to those that gpumem has."""
    status = memory_pool(device).status()
    before = _accumulated.get(_ordinal(device), (0, 0, 0, 0))
    allocated, freed, refusals, waits = (now - then for now, then in zip(_counters(status), before))
    counts = {"current": status.block_count, "allocated": allocated, "freed": freed}
    in_use = _stat(status.in_use_bytes, status.in_use_peak_bytes)
    return {
        "allocated_bytes": {"all": in_use},
        "active_bytes": {"all": in_use},
        "requested_bytes": {"all": in_use},
        "reserved_bytes": {"all": _stat(status.reserved_bytes, status.reserved_peak_bytes)},
        "inactive_split_bytes": {"all": {"current": status.reserved_bytes - min(status.in_use_bytes, status.reserved_bytes)}},
        "allocation": {"all": counts},
        "active": {"all": counts},
        "num_ooms": refusals,
        # Both indicate a shortage of memory: PyTorch's allocator then empties its cache, and gpumem waits for memory.
        "num_alloc_retries": waits,
        "num_sync_all_streams": waits,
    }


def memory_fraction(device: _Device = None) -> float:
    """The hard limit of a device's pool as a fraction of its memory; 1.0 without a limit, and 0.0 for the smallest limit, 2 MiB."""
    status = memory_pool(device).status()
    return 0.0 if status.hard_limit_bytes <= _LIMIT_MIN else min(1.0, status.hard_limit_bytes / status.device_total_bytes)


def reset_peak_memory_stats(device: _Device = None) -> None:
    """Resets the peaks of `memory_stats`."""
    chosen, ordinal = memory_pool(device), _ordinal(device)
    status, before = chosen.status(), _peaks.get(ordinal, (0, 0))
    _peaks[ordinal] = (max(status.in_use_peak_bytes, before[0]), max(status.reserved_peak_bytes, before[1]))
    chosen.reset_peaks()


def reset_accumulated_memory_stats(device: _Device = None) -> None:
    """Resets the counts of `memory_stats` that only grow: allocations, frees, refusals and waits."""
    _accumulated[_ordinal(device)] = _counters(memory_pool(device).status())


def _counters(status: Status) -> tuple[int, int, int, int]:
    return (
        status.allocation_count,
        status.allocation_count - status.block_count,
        status.refusal_count,
        status.host_wait_count,
    )


def _stat(current: int, peak: int) -> dict[str, int]:
    return {"current": current, "peak": peak}


def _ordinal(device: Any) -> int:
    if device is not None:
        device = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
    return int(torch.cuda.current_device() if device is None or device.index is None else device.index)


def _replace_statistics() -> None:
    """Replaces functions of PyTorch that raise an error for other allocators with gpumem's figures."""
    memory = torch.cuda.memory
    if _way.startswith("full"):
        # PyTorch's functions work. The summary of gpumem also says who holds memory.
        memory.memory_summary = torch.cuda.memory_summary = lambda device=None, abbreviated=False: memory_pool(device).status_text()
        return
    memory.memory_stats_as_nested_dict = lambda device=None: memory_stats(device) if torch.cuda.is_initialized() else {}
    replacements = {
        "memory_stats_as_nested_dict": memory.memory_stats_as_nested_dict,
        "reset_peak_memory_stats": lambda device=None: reset_peak_memory_stats(device),
        "reset_accumulated_memory_stats": lambda device=None: reset_accumulated_memory_stats(device),
        "get_per_process_memory_fraction": lambda device=None: memory_fraction(device),
        "memory_summary": lambda device=None, abbreviated=False: memory_pool(device).status_text(),
    }
    for name, function in replacements.items():
        for module in (memory, torch.cuda):
            if hasattr(module, name):
                setattr(module, name, function)


def _segment_allocator() -> Any:
    global _segments
    if _segments is None:
        _load()
        # Kept forever: pools refer to it.
        _segments = torch._C._cuda_customAllocator(_address("gpumem_torch_alloc_segment"), _address("gpumem_torch_free"))
    return _segments


_TESTED = "gpumem is tested with PyTorch 2.11; please report the version"


def _load() -> Any:
    """Loads the functions that PyTorch calls, and passes them its exceptions."""
    global _entry
    if _entry is not None:
        return _entry
    entry = ctypes.CDLL(str(FOLDER / "libgpumem_torch.so"))
    entry.gpumem_torch_set_exceptions.argtypes = (ctypes.c_void_p,) * 3
    entry.gpumem_torch_set_options.argtypes = (*(ctypes.c_char_p,) * 5, *(ctypes.c_void_p,) * 2)
    entry.gpumem_torch_set_options.restype = None
    entry.gpumem_torch_pool.argtypes = (ctypes.c_int, ctypes.POINTER(ctypes.c_void_p))
    entry.gpumem_torch_made_pool.argtypes, entry.gpumem_torch_made_pool.restype = (ctypes.c_int,), ctypes.c_void_p
    entry.gpumem_torch_name_lines.argtypes = (ctypes.c_char_p,)
    entry.gpumem_torch_name_lines.restype = None
    entry.gpumem_torch_use_pool.argtypes = (ctypes.c_int, ctypes.c_void_p)
    entry.gpumem_torch_use_pool.restype = ctypes.c_void_p
    entry.gpumem_torch_retire.argtypes = (ctypes.c_int, ctypes.c_void_p)
    entry.gpumem_torch_failed_frees.restype = ctypes.c_uint64
    entry.gpumem_torch_compiled_version.restype = entry.gpumem_torch_loaded_version.restype = ctypes.c_uint32
    _check_versions(entry.gpumem_torch_compiled_version(), entry.gpumem_torch_loaded_version())
    if not entry.gpumem_torch_set_exceptions(*_exceptions()):
        raise Unsupported(f"the exceptions of PyTorch {torch.__version__} are not those that gpumem knows; {_TESTED}")
    _entry = entry
    return entry


def _made_pools() -> dict[int, Pool]:
    """The pools that tensors were allocated from, by device."""
    handles = {ordinal: _entry.gpumem_torch_made_pool(ordinal) for ordinal in range(_DEVICES_MAX)} if _entry is not None else {}
    return {ordinal: Pool._of(ctypes.c_void_p(handle)) for ordinal, handle in handles.items() if handle}


def _name_lines(entry: Any) -> None:
    """Has each allocation count for its line of Python. Files of packages (+) are named if no line of the program is running, and those
    of PyTorch, gpumem and Python itself (-) are not. The longest folder decides."""
    paths, packages = sysconfig.get_paths(), Path(torch.__file__).parents[1]
    folders = {f"+{folder}" for folder in (paths["purelib"], paths["platlib"], packages)}
    folders |= {f"-{folder}" for folder in (paths["stdlib"], paths["platstdlib"], packages / "torch", Path(__file__).parent)}
    entry.gpumem_torch_name_lines("\n".join(sorted(folders)).encode())
    # While Python ends, threads that ask for its lock end with it.
    atexit.register(entry.gpumem_torch_name_lines, None)


def _check_versions(compiled: int, loaded: int) -> None:
    """Refuses another library with the same name that the process has already loaded, unless it serves this one's programs."""
    if not serves(loaded, compiled):
        raise Unsupported(
            f"gpumem.torch needs the version {version_text(compiled)} of gpumem's library, and this process has loaded "
            f"{version_text(loaded)} from elsewhere; remove the other libgpumem.so.0, for example from LD_LIBRARY_PATH"
        )


def _exceptions() -> list[int | None]:
    """The addresses of PyTorch's constructor of exceptions and of its exception classes."""
    folder = Path(torch.__file__).parent / "lib"
    addresses = []
    for name, symbol in _SYMBOLS:
        try:
            addresses.append(ctypes.cast(getattr(ctypes.CDLL(str(folder / name)), symbol), ctypes.c_void_p).value)
        except (AttributeError, OSError) as error:
            raise Unsupported(
                f"PyTorch {torch.__version__} has no {symbol} in {name} ({error}); {_TESTED}, built with CUDA, on Linux"
            ) from error
    return addresses


def _address(name: str) -> int | None:
    return ctypes.cast(getattr(_load(), name), ctypes.c_void_p).value


def _install_at_start() -> None:
    """Installs in a process of which `python -m gpumem run`, GPUMEM_INSTALL or a notebook asks it."""
    global _is_automatic
    request = _gpumem_start.request()
    if request is None or request.error or "torch" not in request.libraries or _installed is not None:
        return
    install(stacks=request.has_stacks)
    _is_automatic = True


_install_at_start()
