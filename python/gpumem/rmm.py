"""RMM on gpumem: `import gpumem.rmm; gpumem.rmm.install()`.

RMM's buffers, and the libraries above it such as cuDF and cuML, then take their memory from gpumem's pool of the device, in the order of
the stream that each request names.
"""

import contextlib
import ctypes

import rmm

from . import Pool
from ._native import check, library

__all__ = ["install", "memory_pool", "resource"]

_pools = {}


def install(device=None, **options):
    """Makes a gpumem pool RMM's resource of a device, by its number; the current one if none is given.

    The options are those of `gpumem.Pool`; what they leave open, the environment configures. Call it before the first request: RMM
    does not allow another resource while memory of the one before is in use.
    """
    ordinal = _current_device() if device is None else int(device)
    pool = Pool(ordinal, from_environment=True, **options)
    rmm.mr.set_per_device_resource(ordinal, resource(pool))
    _pools[ordinal] = pool


def memory_pool(device=None):
    """The `gpumem.Pool` that `install` has made for a device: limits, status, trim."""
    return _pools[_current_device() if device is None else int(device)]


def resource(pool):
    """A `CallbackMemoryResource` over a `gpumem.Pool`, to pass to RMM or to an adaptor of RMM's."""
    callbacks = _Callbacks(pool)
    return rmm.mr.CallbackMemoryResource(callbacks.allocate, callbacks.deallocate)


def _current_device():
    from cuda.bindings import runtime

    error, ordinal = runtime.cudaGetDevice()
    if error != runtime.cudaError_t.cudaSuccess:
        raise RuntimeError(f"cudaGetDevice failed: {error}")
    return int(ordinal)


class _Callbacks:
    """The two functions that RMM calls, on any thread."""

    def __init__(self, pool):
        self._pool = pool
        self._default = pool.long_lived(0)
        # The streams of blocks that were allocated on another one than the default stream.
        self._streams = {}

    def allocate(self, size, stream):
        raw = _raw(stream)
        address = ctypes.c_void_p()
        with self._named(raw) as named:
            check(library.gpumem_alloc(self._pool._handle, size, named._handle, ctypes.byref(address)))
        if raw != 0 and address.value:
            self._streams[address.value] = raw
        return address.value or 0

    def deallocate(self, address, size, stream):
        raw = _raw(stream)
        if raw != self._streams.pop(address, 0) and address:
            # The free follows the work on the stream of the allocation, and now on this one.
            with self._named(raw) as named:
                check(library.gpumem_record_use(address, named._handle))
        check(library.gpumem_free(address))

    def _named(self, raw):
        if raw == 0:
            return contextlib.nullcontext(self._default)
        # Its owner may destroy it at any time, so no later call names it.
        return self._pool.borrow(raw)


def _raw(stream):
    """The handle of a stream: 0 is the default stream, which is also called 1."""
    raw = stream.__cuda_stream__()[1]
    return 0 if raw == 1 else raw
