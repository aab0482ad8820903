"""CuPy on gpumem: `import gpumem.cupy; gpumem.cupy.install()`.

Arrays then come from gpumem's pool of their device, in the order of CuPy's current stream.
"""

import ctypes

import cupy

from . import Error, Pool
from ._native import check, library

__all__ = ["install", "memory_pool"]

_allocator = None
_options = {}
_pools = {}
_streams = {}

# cudaStreamLegacy as null and by name, and cudaStreamPerThread: they live as long as the process.
_DEFAULT_STREAMS = (0, 1, 2)


def install(**options):
    """Makes gpumem CuPy's allocator. The options are those of `gpumem.Pool`; what they leave open, the environment configures."""
    global _allocator
    if _allocator is not None:
        raise Error("gpumem is installed already; set options in the first call")
    _options.update(options)
    _allocator = cupy.cuda.PythonFunctionAllocator(_malloc, _free)
    cupy.cuda.set_allocator(_allocator.malloc)


def memory_pool(device=None):
    """The `gpumem.Pool` of a device, by its number: limits, status, trim."""
    ordinal = cupy.cuda.runtime.getDevice() if device is None else int(device)
    pool = _pools.get(ordinal)
    if pool is None:
        # Another thread may have made it meanwhile.
        pool = _pools.setdefault(ordinal, Pool(ordinal, from_environment=True, **_options))
    return pool


def _malloc(size, device):
    pool = memory_pool(device)
    raw = cupy.cuda.get_current_stream().ptr
    address = ctypes.c_void_p()
    if raw in _DEFAULT_STREAMS:
        stream = pool.long_lived(raw) if raw == 2 else _default_stream(pool, device)
        check(library.gpumem_alloc(pool._handle, size, stream._handle, ctypes.byref(address)))
    else:
        # CuPy destroys its streams when they are collected, so none is named again in a later call.
        with pool.borrow(raw) as stream:
            check(library.gpumem_alloc(pool._handle, size, stream._handle, ctypes.byref(address)))
    return address.value or 0


def _default_stream(pool, device):
    stream = _streams.get(device)
    if stream is None:
        stream = _streams.setdefault(device, pool.long_lived(0))
    return stream


def _free(address, device):
    library.gpumem_free(address)
