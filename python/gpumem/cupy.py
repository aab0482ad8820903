"""CuPy on gpumem: `import gpumem.cupy; gpumem.cupy.install()`.

Arrays are then allocated from gpumem's pool of their device, in the order of CuPy's current stream. For part of a program, use
`with cupy.cuda.using_allocator(gpumem.cupy.allocator):`.
"""

from __future__ import annotations

import ctypes
import threading
from typing import Any

import _gpumem_start
import cupy
import cupy_backends.cuda.stream

from . import Error, OutOfMemory, Pool, Stream, _checked_options
from ._native import CUPY, ERRORS, FOLDER, Unsupported, check, keep, library

__all__ = ["OutOfMemoryError", "allocator", "install", "memory_pool", "set_options"]

_is_installed = False
# True if `install` was called for the program, which may still call it once to set options.
_is_automatic = False
_options: dict[str, Any] = {}
_pools: dict[int, Pool] = {}
# The default stream of each device. The C++ entry has its handle, which lasts as long as the process.
_streams: dict[int, Stream] = {}
_lock = threading.Lock()


class OutOfMemoryError(cupy.cuda.memory.OutOfMemoryError, OutOfMemory):
    """A refused request: an error of both CuPy and gpumem. Its text is CuPy's sentence and the report."""

    def __init__(self, size: int, total: int, limit: int = 0, report: str = "") -> None:
        super().__init__(size, total, limit)
        self._report = report
        if report:
            self.args = (f"{self.args[0]}\n{report}",)

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self._size, self._total, self._limit, self._report))


def install(**options: Any) -> None:
    """Makes gpumem CuPy's allocator. The options are those of `gpumem.Pool`; the environment sets the others.

    The pool is the device's default pool in this process, so PyTorch and RMM on gpumem use it too. Whichever of them comes first sets
    its options. In a process of `python -m gpumem run`, GPUMEM_INSTALL or `%load_ext gpumem`, gpumem is installed already, and the first call
    sets options.
    """
    global _is_installed, _is_automatic
    if _is_installed and not _is_automatic:
        raise Error("gpumem is installed already; set options in the first call")
    set_options(**options)
    cupy.cuda.set_allocator(allocator)
    _is_installed, _is_automatic = True, False


def set_options(**options: Any) -> None:
    """Sets the options of pools that are created from now on: the first array on a device creates its pool."""
    _options.update(_checked_options(options))


def memory_pool(device: int | None = None) -> Pool:
    """The `gpumem.Pool` of a device, by its number: limits, status, trim."""
    ordinal = cupy.cuda.runtime.getDevice() if device is None else int(device)
    pool = _pools.get(ordinal)
    if pool is None:
        # In a forked child another thread may hold the lock forever.
        check(library.gpumem_check_process())
        with _lock:
            pool = _pools.get(ordinal)
            if pool is None:
                pool = Pool._default(ordinal, CUPY, **_options)
                _use(ordinal, pool)
    return pool


def _made_pools() -> dict[int, Pool]:
    return _pools


def _use(ordinal: int, pool: Pool) -> None:
    """Makes a pool the one that a device's arrays are allocated from."""
    _streams[ordinal] = pool.long_lived(0)
    _entry.gpumem_cupy_set_pool(ordinal, pool._handle, _streams[ordinal]._handle)
    _pools[ordinal] = pool


def _settle(result: int, size: int, device: int) -> None:
    """Creates the device's pool, after which the request is repeated, or raises the exception of the failed request."""
    if result == _NO_POOL:
        memory_pool(device)
    elif ERRORS.get(result) is OutOfMemory:
        report, status = library.gpumem_last_error_as(CUPY).decode(), _pools[device].status()
        limit = 0 if status.hard_limit_bytes == 2**64 - 1 else status.hard_limit_bytes
        raise OutOfMemoryError(size, status.in_use_bytes, limit, report)
    else:
        check(result, CUPY)


def _checked(size: int) -> Any:
    """The allocator for CuPy versions that accept null for an array without memory."""
    while True:
        memory = _functions.malloc(size)
        if memory.ptr or not size:
            return memory
        _settle(_entry.gpumem_cupy_last_result(), size, cupy.cuda.runtime.getDevice())


class _Functions(ctypes.Structure):
    """The functions that entry/cupy.cpp calls."""

    _fields_ = [(name, ctypes.c_void_p) for name in ("current_stream", "call", "decrease", "exception", "settle")]


def _address(function: Any) -> int | None:
    return ctypes.cast(function, ctypes.c_void_p).value


def _current_stream() -> int:
    """The address of CuPy's C function for the current stream, which its own extension modules import."""
    python, name = ctypes.pythonapi, b"intptr_t (void)"
    python.PyCapsule_GetPointer.restype, python.PyCapsule_GetPointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    try:
        return int(python.PyCapsule_GetPointer(cupy_backends.cuda.stream.__pyx_capi__["get_current_stream_ptr"], name))
    except (AttributeError, KeyError, ValueError) as error:
        raise Unsupported(
            f"CuPy {cupy.__version__} has no C function for the current stream that gpumem knows ({error}); gpumem is tested with CuPy 14"
        ) from error


def _load() -> ctypes.CDLL:
    """Loads the functions that CuPy calls, and passes them the functions of CuPy and Python."""
    entry = ctypes.CDLL(str(FOLDER / "libgpumem_cupy.so"))
    entry.gpumem_cupy_library.restype = ctypes.c_void_p
    if entry.gpumem_cupy_library() != _address(library.gpumem_alloc):
        raise Unsupported(
            "this process has loaded another libgpumem.so.0 than the one of the package; remove it, for example from LD_LIBRARY_PATH"
        )
    entry.gpumem_cupy_set_pool.argtypes, entry.gpumem_cupy_set_pool.restype = (ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p), None
    entry.gpumem_cupy_failed_frees.restype = ctypes.c_uint64
    python = ctypes.pythonapi
    functions = _Functions(
        _current_stream(), *map(_address, (python.PyObject_CallFunction, python.Py_DecRef, python.PyErr_Occurred)), id(keep(_settle))
    )
    entry.gpumem_cupy_set_functions(ctypes.byref(functions), _THROWS)
    return entry


# As in entry/cupy.cpp.
_NO_POOL = -1

# CuPy 14.1 and later turn a C++ exception into a Python exception. Earlier versions would end the process.
_THROWS = tuple(int(part) for part in cupy.__version__.split(".")[:2]) >= (14, 1)

_entry = _load()
_functions = cupy.cuda.CFunctionAllocator(0, _address(_entry.gpumem_cupy_alloc), _address(_entry.gpumem_cupy_free), None)

allocator = _functions.malloc if _THROWS else _checked
"""Allocates for CuPy: an argument of `cupy.cuda.using_allocator`, for one thread and part of a program."""


def _install_at_start() -> None:
    """Installs in a process of which `python -m gpumem run`, GPUMEM_INSTALL or a notebook asks it."""
    global _is_automatic
    request = _gpumem_start.request()
    if request is None or request.error or "cupy" not in request.libraries or _is_installed:
        return
    install()
    _is_automatic = True


_install_at_start()
