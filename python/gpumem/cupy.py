"""CuPy on gpumem: `import gpumem.cupy; gpumem.cupy.install()`.

Arrays then come from gpumem's pool of their device, in the order of CuPy's current stream. For a part of a program:
`with cupy.cuda.using_allocator(gpumem.cupy.allocator):`.
"""

from __future__ import annotations

import ctypes
import logging
import threading
from typing import Any

import cupy

from . import Error, OutOfMemory, Pool, Stream
from ._native import CUPY, check, library

__all__ = ["OutOfMemoryError", "allocator", "install", "memory_pool", "set_options"]

_log = logging.getLogger("gpumem")
_is_installed = False
_options: dict[str, Any] = {}
_pools: dict[int, Pool] = {}
_streams: dict[int, Stream] = {}
_lock = threading.Lock()

# cudaStreamLegacy as null and by name, and cudaStreamPerThread: they live as long as the process or the thread.
_DEFAULT_STREAMS = (0, 1, 2)
_PER_THREAD = 2


class OutOfMemoryError(cupy.cuda.memory.OutOfMemoryError, OutOfMemory):
    """A refused request: CuPy's error, and gpumem's, with CuPy's sentence and the report as its text."""

    def __init__(self, size: int, total: int, limit: int = 0, report: str = "") -> None:
        super().__init__(size, total, limit)
        self._report = report
        if report:
            self.args = (f"{self.args[0]}\n{report}",)

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self._size, self._total, self._limit, self._report))


def install(**options: Any) -> None:
    """Makes gpumem CuPy's allocator. The options are those of `gpumem.Pool`; what they leave open, the environment configures.

    The pool is the device's default pool in this process, so PyTorch and RMM on gpumem use it too. Its options are set once, in the first
    of these.
    """
    global _is_installed
    if _is_installed:
        raise Error("gpumem is installed already; set options in the first call")
    set_options(**options)
    cupy.cuda.set_allocator(allocator)
    _is_installed = True


def set_options(**options: Any) -> None:
    """Sets the options of pools that are made from now on: a device's pool is made by its first array."""
    _options.update(options)


def allocator(size: int) -> Any:
    """Allocates for CuPy: an argument of `cupy.cuda.using_allocator`, for a thread and a part of a program."""
    return _functions.malloc(size)


def memory_pool(device: int | None = None) -> Pool:
    """The `gpumem.Pool` of a device, by its number: limits, status, trim."""
    ordinal = cupy.cuda.runtime.getDevice() if device is None else int(device)
    pool = _pools.get(ordinal)
    if pool is None:
        with _lock:
            pool = _pools.get(ordinal)
            if pool is None:
                pool = _pools[ordinal] = Pool._default(ordinal, CUPY, **_options)
    return pool


def _malloc(size: int, device: int) -> int:
    pool = memory_pool(device)
    raw = cupy.cuda.get_current_stream().ptr
    try:
        if raw not in _DEFAULT_STREAMS:
            # CuPy destroys its streams when they are collected, so none is named again in a later call.
            with pool.borrow(raw) as stream:
                return _alloc(pool, size, stream)
        return _alloc(pool, size, pool.long_lived(raw) if raw == _PER_THREAD else _default_stream(pool, device))
    except OutOfMemory as error:
        status = pool.status()
        limit = 0 if status.hard_limit_bytes == 2**64 - 1 else status.hard_limit_bytes
        raise OutOfMemoryError(size, status.in_use_bytes, limit, str(error)) from None


def _alloc(pool: Pool, size: int, stream: Stream) -> int:
    address = ctypes.c_void_p()
    check(library.gpumem_alloc(pool._handle, size, stream._handle, ctypes.byref(address)), CUPY)
    return address.value or 0


def _default_stream(pool: Pool, device: int) -> Stream:
    stream = _streams.get(device)
    if stream is None:
        stream = _streams.setdefault(device, pool.long_lived(0))
    return stream


def _free(address: int, device: int) -> None:
    """Frees memory. It never raises: CuPy calls it at the end of an array. Memory whose free fails stays allocated."""
    try:
        check(library.gpumem_free(address))
    except Error as error:
        _log.error("CuPy's memory at %#x was not freed: %s", address, error)


_functions = cupy.cuda.PythonFunctionAllocator(_malloc, _free)
