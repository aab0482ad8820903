"""RMM on gpumem: `import gpumem.rmm; gpumem.rmm.install()`.

RMM's buffers, and libraries above it such as cuDF and cuML, are then allocated from gpumem's pool of the device, in the order of the
stream that each request names.
"""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable
from typing import Any

import rmm

from . import Pool
from ._native import RMM, WrongState, check, keep, library

__all__ = ["install", "memory_pool", "resource"]

_log = logging.getLogger("gpumem")
_pools: dict[int, Pool] = {}


def install(device: int | None = None, **options: Any) -> None:
    """Makes a gpumem pool RMM's resource for a device, by its number; by default the current device.

    The options are those of `gpumem.Pool`; the environment sets the others. The pool is the device's default pool in this process, so
    PyTorch and CuPy on gpumem use it too; whichever of them comes first sets its options. Call it before the first request: RMM does
    not allow a new resource while memory of the old one is in use.
    """
    ordinal = _current_device() if device is None else int(device)
    pool = Pool._default(ordinal, RMM, **options)
    rmm.mr.set_per_device_resource(ordinal, resource(pool))
    _pools[ordinal] = pool


def memory_pool(device: int | None = None) -> Pool:
    """The `gpumem.Pool` that `install` created for a device: limits, status, trim."""
    ordinal = _current_device() if device is None else int(device)
    if ordinal not in _pools:
        raise WrongState(f"RMM has no pool of gpumem on device {ordinal}; call gpumem.rmm.install for it first")
    return _pools[ordinal]


def resource(pool: Pool) -> Any:
    """A `CallbackMemoryResource` over a `gpumem.Pool`, to pass to RMM or to one of its adaptors.

    It keeps the pool for the rest of the process, because RMM's C++ objects may still free memory when the resource is collected.
    """
    # While the process ends, Python may collect the pool before buffers are freed.
    pool._end = int
    callbacks = _Callbacks(pool)
    # RMM's C++ objects have the addresses of the functions but no references, and may free memory until the process ends.
    return rmm.mr.CallbackMemoryResource(*keep((callbacks.allocate, callbacks.deallocate)))


def _current_device() -> int:
    from cuda.bindings import runtime

    error, ordinal = runtime.cudaGetDevice()
    if error != runtime.cudaError_t.cudaSuccess:
        raise RuntimeError(f"cudaGetDevice failed: {error}")
    return int(ordinal)


def _raw(stream: Any) -> int:
    """The cudaStream_t of an RMM stream. Its owner may destroy it at any time, so no later call names it."""
    return int(stream.__cuda_stream__()[1])


class _Callbacks:
    """The two functions that RMM calls, on any thread. They keep no state, so calls need no lock. Everything that a free uses is stored
    here: when Python ends, it drops the contents of modules before the last buffers."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._free, self._last_error, self._log = library.gpumem_free_borrowed, library.gpumem_last_error_as, _log

    def allocate(self, size: int, stream: Any) -> int:
        address, raw = ctypes.c_void_p(), _raw(stream)
        try:
            check(library.gpumem_alloc_borrowed(self._pool._handle, size, raw, ctypes.byref(address)), RMM)
            return address.value or 0
        except BaseException:
            # An interrupt: RMM will not get the address.
            if address:
                self._free(address, raw)
            raise

    def deallocate(self, address: int, size: int, stream: Any, raw: Callable[[Any], int] = _raw, interface: int = RMM) -> None:
        """Frees memory behind the work on the stream of its allocation and on this one. It never raises: RMM's caller cannot receive
        an exception. Memory whose free fails stays allocated."""
        try:
            if self._free(address, raw(stream)) != 0:
                self._log.error("RMM's memory at %#x was not freed: %s", address, self._last_error(interface).decode())
        except Exception as error:
            self._log.error("RMM's memory at %#x was not freed: %s", address, error)
