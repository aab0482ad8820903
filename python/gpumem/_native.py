"""The C library: its functions with their types, and its errors as exceptions."""

from __future__ import annotations

import ctypes
import functools
import operator
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, ClassVar, SupportsIndex, TypeVar, Union

_Kept = TypeVar("_Kept")

FOLDER = Path(__file__).parent / "lib"
# The command.
PROGRAM = Path(__file__).parent / "bin" / "gpumem"

try:
    library = ctypes.CDLL(str(FOLDER / "libgpumem.so.0"))
    callbacks = ctypes.CDLL(str(FOLDER / "libgpumem_python.so"))
except OSError as error:
    raise ImportError(f"gpumem's library cannot be loaded: {error}; install the wheel that `cargo xtask wheel` makes") from error


class Error(RuntimeError):
    """A failed call. The text states the problem, the cause and the action."""


class InvalidArgument(Error, ValueError):
    """An invalid option or argument."""


class InvalidHandle(Error):
    """A pool or stream that was closed."""


class UnknownAddress(Error):
    """No live block begins at the address."""


class OutOfMemory(Error, MemoryError):
    """The device or a limit refused the request. The text is the report, with advice."""


class Unsupported(Error):
    """The device, the driver, the backend or the kind of memory does not support the call."""


class NoDevice(Error):
    """There is no driver, or no device with the ordinal."""


class DeviceLost(Error):
    """The device's context is lost. After a reset of the device, new pools work; otherwise restart the process."""


class DriverFailed(Error):
    """A driver call failed."""


class WrongState(Error):
    """The objects do not belong together or are in the wrong state."""


class Forked(Error):
    """The process was forked from one that uses the GPU. Start workers with `multiprocessing`'s method "spawn"."""


class Defect(Error):
    """A defect of gpumem."""


class InvalidEnvironment(InvalidArgument):
    """An environment variable GPUMEM_… is unknown or has an invalid value. The text names it, and the nearest known name."""


ERRORS: dict[int, type[Error]] = {
    1: InvalidArgument,
    2: InvalidHandle,
    3: UnknownAddress,
    4: OutOfMemory,
    5: Unsupported,
    6: NoDevice,
    7: DeviceLost,
    8: DriverFailed,
    9: WrongState,
    10: Defect,
    11: InvalidEnvironment,
    12: Forked,
}

FROM_ENVIRONMENT = 1
# The interfaces whose names texts use.
PYTHON, PYTORCH, CUPY, RMM = 1, 2, 3, 4
KEEP = {"host": 0, "nothing": 1}

OutOfMemoryFunction = ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_void_p)
ReclaimFunction = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_uint32, ctypes.c_void_p)

Limit = Union[int, str]


class PoolOptions(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("ordinal", ctypes.c_uint32),
        ("flags", ctypes.c_uint32),
        ("conf", ctypes.c_char_p),
        ("hard_limit_bytes", ctypes.c_uint64),
        ("soft_limit_bytes", ctypes.c_uint64),
        ("trace_path", ctypes.c_char_p),
        ("on_out_of_memory", OutOfMemoryFunction),
        ("user_data", ctypes.c_void_p),
        ("hard_limit", ctypes.c_char_p),
        ("soft_limit", ctypes.c_char_p),
        ("interface", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
        ("peers", ctypes.c_char_p),
    ]


_Figures = TypeVar("_Figures", bound="Figures")


class Figures:
    """Counters that the library writes into a structure whose fields are the annotations."""

    _structure: ClassVar[type[ctypes.Structure]]

    def __init_subclass__(cls) -> None:
        fields = [("struct_size", ctypes.c_size_t), *((name, ctypes.c_uint64) for name in cls.__annotations__)]
        cls._structure = type(f"{cls.__name__}Structure", (ctypes.Structure,), {"_fields_": fields})

    def __init__(self) -> None:
        vars(self).update(dict.fromkeys(type(self).__annotations__, 0))

    @classmethod
    def _read(cls: type[_Figures], write: Callable[[Any], int]) -> _Figures:
        structure = cls._structure(struct_size=ctypes.sizeof(cls._structure))
        check(write(ctypes.byref(structure)))
        figures = cls()
        vars(figures).update((name, getattr(structure, name)) for name in cls.__annotations__)
        return figures

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value}' for name, value in vars(self).items())})"


class Status(Figures):
    """A pool's counters at one moment, in bytes unless they count."""

    # `cargo xtask wheel` writes the fields of gpumem_status here.


class ScopeUsage(Figures):
    """Allocations and frees of a thread in a scope."""

    # `cargo xtask wheel` writes the fields of gpumem_scope_usage here.


# The library version that these declarations describe. Later versions with the same minor number serve them too.
VERSION = 100


def version_text(number: int) -> str:
    return f"{number // 10_000}.{number // 100 % 100}.{number % 100}"


def serves(number: int, needed: int) -> bool:
    """True if a library serves programs made for the version `needed`: it has the same minor version and is not older."""
    return number // 100 == needed // 100 and number >= needed


def check_version(number: int) -> None:
    """Refuses a library of another version, whose functions may differ."""
    if not serves(number, VERSION):
        raise ImportError(
            f"gpumem's library has the version {version_text(number)} and its Python files {version_text(VERSION)}; "
            "install the wheel again"
        )


def check_size(name: str, value: SupportsIndex, limit: int = 2**64) -> int:
    """Checks a number, such as a size in bytes, which ctypes would silently wrap around."""
    number = operator.index(value)
    if not 0 <= number < limit:
        raise InvalidArgument(f"{name} is {number}; expected a number from 0 to {limit - 1}")
    return number


def text(name: str, value: str) -> bytes:
    """Returns a text for C, which would silently end at a zero byte."""
    if not isinstance(value, str):
        raise TypeError(f"{name} is of the type {type(value).__name__}; pass a str")
    if "\0" in value:
        raise InvalidArgument(f"{name} has a zero byte; remove it")
    try:
        return value.encode()
    except UnicodeEncodeError as error:
        raise InvalidArgument(f"{name} is not UTF-8 ({error.reason} at {error.start}); pass a text in that encoding") from error


def path_text(name: str, value: str | bytes | os.PathLike[Any]) -> bytes:
    """Returns a path for C."""
    return text(name, os.fsdecode(value))


def peers_text(value: str | Iterable[SupportsIndex]) -> bytes:
    """Returns the devices of the option `peers` in the library's format."""
    if not isinstance(value, str):
        if isinstance(value, (bytes, bytearray)) or not isinstance(value, Iterable):
            raise TypeError(f'peers is of the type {type(value).__name__}; pass "all", "none", or a list of ordinals')
        ordinals = [str(operator.index(peer)) for peer in value]
        value = f"[{','.join(ordinals)}]" if ordinals else "none"
    return text("peers", value)


def check_callable(name: str, value: object) -> None:
    """Refuses a value that cannot be called, before a request needs it."""
    if not callable(value):
        raise TypeError(f"{name} is of the type {type(value).__name__}; pass a function")


def limit_text(name: str, value: Limit | None) -> bytes | None:
    """Returns a limit in the library's format, and None for no limit. Only the library parses texts."""
    if isinstance(value, str):
        return text(name, value)
    number = 0 if value is None else check_size(name, value)
    return str(number).encode() if number else None


def keep(value: _Kept) -> _Kept:
    """Keeps a value until the process ends, for C functions that have its address: Python drops the contents of modules earlier."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(value))
    return value


def check(result: int, interface: int = PYTHON) -> None:
    """Raises the exception for a result other than success."""
    if result != 0:
        raise ERRORS.get(result, Error)(library.gpumem_last_error_as(interface).decode())


def _declare() -> None:
    handle, place = ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p)
    bytes_place = ctypes.POINTER(ctypes.c_uint64)
    functions: dict[str, tuple[Any, ...]] = {
        "gpumem_check_process": (),
        "gpumem_pool_create": (ctypes.POINTER(PoolOptions), place),
        "gpumem_pool_destroy": (handle,),
        "gpumem_pool_for_device": (ctypes.c_uint32, place),
        "gpumem_pool_part": (handle, ctypes.c_char_p, place),
        "gpumem_pool_set_hard_limit": (handle, ctypes.c_uint64),
        "gpumem_pool_set_soft_limit": (handle, ctypes.c_uint64),
        "gpumem_pool_set_hard_limit_text": (handle, ctypes.c_char_p),
        "gpumem_pool_set_soft_limit_text": (handle, ctypes.c_char_p),
        "gpumem_pool_trim": (handle, ctypes.c_uint64, bytes_place),
        "gpumem_pool_reclaim": (handle, bytes_place),
        "gpumem_pool_sleep": (handle, ctypes.c_uint32),
        "gpumem_pool_wake": (handle,),
        "gpumem_pool_flush_trace": (handle, ctypes.c_uint64),
        "gpumem_pool_status": (handle, ctypes.POINTER(Status._structure)),
        "gpumem_pool_status_text": (handle, ctypes.c_char_p, ctypes.c_size_t, ctypes.POINTER(ctypes.c_size_t)),
        "gpumem_pool_status_json": (handle, ctypes.c_char_p, ctypes.c_size_t, ctypes.POINTER(ctypes.c_size_t)),
        "gpumem_pool_explain_refusal": (
            handle, ctypes.c_uint64, ctypes.c_uint32, ctypes.c_char_p, ctypes.c_size_t, ctypes.POINTER(ctypes.c_size_t),
        ),
        "gpumem_pool_reset_peaks": (handle,),
        "gpumem_scope_begin": (handle, ctypes.c_char_p, bytes_place),
        "gpumem_scope_end": (ctypes.c_uint64, ctypes.POINTER(ScopeUsage._structure)),
        "gpumem_holder_register": (handle, ctypes.c_char_p, ReclaimFunction, ctypes.c_void_p, place),
        "gpumem_holder_unregister": (handle,),
        "gpumem_stream_create": (handle, place),
        "gpumem_stream_borrow": (handle, ctypes.c_void_p, place),
        "gpumem_stream_long_lived": (handle, ctypes.c_void_p, place),
        "gpumem_stream_retire": (handle,),
        "gpumem_stream_destroy": (handle,),
        "gpumem_stream_raw": (handle, place),
        "gpumem_stream_wait_for": (handle, handle),
        "gpumem_stream_synchronize": (handle,),
        "gpumem_alloc": (handle, ctypes.c_uint64, handle, place),
        "gpumem_alloc_borrowed": (handle, ctypes.c_uint64, ctypes.c_void_p, place),
        "gpumem_free": (ctypes.c_void_p,),
        "gpumem_free_borrowed": (ctypes.c_void_p, ctypes.c_void_p),
        "gpumem_free_on": (ctypes.c_void_p, handle),
        "gpumem_record_use": (ctypes.c_void_p, handle),
        "gpumem_size": (ctypes.c_void_p, bytes_place),
    }
    for name, arguments in functions.items():
        try:
            function = getattr(library, name)
        except AttributeError as error:
            raise ImportError(f"gpumem's library has no function {name}; install the wheel again") from error
        function.argtypes, function.restype = arguments, ctypes.c_int
    library.gpumem_last_error_as.argtypes, library.gpumem_last_error_as.restype = (ctypes.c_uint32,), ctypes.c_char_p


def ending(place: ctypes.c_void_p, function: Any) -> Callable[[], int]:
    """Returns what ends the object in a place, once, with a function, and returns its result. It runs no instruction of Python."""
    return functools.partial(callbacks.gpumem_python_end, ctypes.byref(place), function)


library.gpumem_version.argtypes, library.gpumem_version.restype = (), ctypes.c_uint32
# This comes first: another version may lack a function.
check_version(library.gpumem_version())
_declare()
callbacks.gpumem_python_end.argtypes = (ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p)
END_POOL, END_STREAM, END_HOLDER, FREE = (
    ctypes.cast(function, ctypes.c_void_p)
    for function in (
        library.gpumem_pool_destroy,
        library.gpumem_stream_destroy,
        library.gpumem_holder_unregister,
        library.gpumem_free,
    )
)
