"""The C library: its functions, with their types, and its errors as exceptions."""

import ctypes
import operator
from pathlib import Path

FOLDER = Path(__file__).parent / "lib"

try:
    library = ctypes.CDLL(str(FOLDER / "libgpumem.so.0"))
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
    """The device's context is lost. Restart the process."""


class DriverFailed(Error):
    """A call of the driver failed."""


class WrongState(Error):
    """The objects do not fit together or are in the wrong state."""


class Defect(Error):
    """A defect of gpumem."""


class InvalidEnvironment(InvalidArgument):
    """An environment variable GPUMEM_… is unknown or has an invalid value. The text names it, and the nearest known name."""


ERRORS = {
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
}

FROM_ENVIRONMENT = 1
KEEP = {"host": 0, "nothing": 1}

OutOfMemoryFunction = ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_void_p)


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
    ]


class Status(ctypes.Structure):
    """A pool's counters at one moment, in bytes unless they count."""

    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("in_use_bytes", ctypes.c_uint64),
        ("reserved_bytes", ctypes.c_uint64),
        ("cached_bytes", ctypes.c_uint64),
        ("in_use_peak_bytes", ctypes.c_uint64),
        ("reserved_peak_bytes", ctypes.c_uint64),
        ("block_count", ctypes.c_uint64),
        ("allocation_count", ctypes.c_uint64),
        ("hard_limit_bytes", ctypes.c_uint64),
        ("soft_limit_bytes", ctypes.c_uint64),
        ("device_used_bytes", ctypes.c_uint64),
        ("device_total_bytes", ctypes.c_uint64),
        ("refusal_count", ctypes.c_uint64),
        ("slow_allocation_count", ctypes.c_uint64),
        ("trimmed_bytes", ctypes.c_uint64),
        ("driver_call_count", ctypes.c_uint64),
        ("inserted_wait_count", ctypes.c_uint64),
        ("host_wait_count", ctypes.c_uint64),
        ("asleep_bytes", ctypes.c_uint64),
    ]

    def __repr__(self):
        fields = ", ".join(f"{name}={getattr(self, name)}" for name, _ in self._fields_[1:])
        return f"Status({fields})"


# The version of the library that these declarations are of. Later ones of the same minor version serve them too.
VERSION = 100


def version_text(number):
    return f"{number // 10_000}.{number // 100 % 100}.{number % 100}"


def serves(number, needed):
    """Returns whether a library serves programs that were made for the version `needed`: one of its minor version that is not older."""
    return number // 100 == needed // 100 and number >= needed


def check_version(number):
    """Refuses a library of another version, whose functions may differ."""
    if not serves(number, VERSION):
        raise ImportError(
            f"gpumem's library has the version {version_text(number)} and its Python files {version_text(VERSION)}; "
            "install the wheel again"
        )


def check_size(name, value, limit=2**64):
    """Returns a number of bytes or the like, which ctypes would wrap around silently."""
    value = operator.index(value)
    if not 0 <= value < limit:
        raise InvalidArgument(f"{name} is {value}; expected a number from 0 to {limit - 1}")
    return value


def check(result):
    """Raises the exception of a result that is not a success."""
    if result != 0:
        raise ERRORS.get(result, Error)(library.gpumem_last_error().decode())


def _declare():
    handle, place = ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p)
    bytes_place = ctypes.POINTER(ctypes.c_uint64)
    functions = {
        "gpumem_pool_create": (ctypes.POINTER(PoolOptions), place),
        "gpumem_pool_destroy": (handle,),
        "gpumem_pool_for_device": (ctypes.c_uint32, place),
        "gpumem_pool_part": (handle, ctypes.c_char_p, place),
        "gpumem_pool_set_hard_limit": (handle, ctypes.c_uint64),
        "gpumem_pool_set_soft_limit": (handle, ctypes.c_uint64),
        "gpumem_pool_trim": (handle, ctypes.c_uint64, bytes_place),
        "gpumem_pool_reclaim": (handle, bytes_place),
        "gpumem_pool_sleep": (handle, ctypes.c_uint32),
        "gpumem_pool_wake": (handle,),
        "gpumem_pool_flush_trace": (handle, ctypes.c_uint64),
        "gpumem_pool_status": (handle, ctypes.POINTER(Status)),
        "gpumem_pool_status_text": (handle, ctypes.c_char_p, ctypes.c_size_t, ctypes.POINTER(ctypes.c_size_t)),
        "gpumem_pool_reset_peaks": (handle,),
        "gpumem_stream_create": (handle, place),
        "gpumem_stream_borrow": (handle, ctypes.c_void_p, place),
        "gpumem_stream_long_lived": (handle, ctypes.c_void_p, place),
        "gpumem_stream_retire": (handle,),
        "gpumem_stream_destroy": (handle,),
        "gpumem_stream_raw": (handle, place),
        "gpumem_stream_wait_for": (handle, handle),
        "gpumem_stream_synchronize": (handle,),
        "gpumem_alloc": (handle, ctypes.c_uint64, handle, place),
        "gpumem_free": (ctypes.c_void_p,),
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
    library.gpumem_last_error.argtypes, library.gpumem_last_error.restype = (), ctypes.c_char_p


library.gpumem_version.argtypes, library.gpumem_version.restype = (), ctypes.c_uint32
# First: another version may lack a function.
check_version(library.gpumem_version())
_declare()
