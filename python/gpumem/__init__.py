"""Stream-ordered GPU memory, with exact limits and reports that explain refused requests.

One call makes PyTorch allocate from it: see `gpumem.torch`. The classes here are for programs that pass addresses to other
libraries::

    pool = gpumem.Pool(hard_limit=4 << 30)
    stream = pool.stream()
    with pool.alloc(1 << 20, stream) as block:
        ...  # queue work that uses block.address on stream.raw

Without a GPU they run on gpumem's simulator, installed as libcuda.so.1, with GPUMEM_DRIVER=drop-in. Importing this package needs no driver.
"""

from __future__ import annotations

import atexit
import ctypes
import logging
import operator
import os
from collections.abc import Callable, Iterable
from typing import Any, NoReturn, SupportsIndex

from ._native import (
    END_HOLDER,
    END_POOL,
    END_STREAM,
    FREE,
    FROM_ENVIRONMENT,
    KEEP,
    DeviceLost,
    DriverFailed,
    Defect,
    Error,
    Forked,
    InvalidArgument,
    InvalidEnvironment,
    InvalidHandle,
    Limit,
    NoDevice,
    OutOfMemory,
    OutOfMemoryFunction,
    PoolOptions,
    PYTHON,
    ReclaimFunction,
    ScopeUsage,
    Status,
    UnknownAddress,
    Unsupported,
    WrongState,
    callbacks,
    check,
    check_callable,
    check_size,
    ending,
    keep,
    library,
    limit_text,
    path_text,
    peers_text,
    text as _text,
    version_text,
)

__all__ = [
    "Block",
    "Defect",
    "DeviceLost",
    "DriverFailed",
    "Error",
    "Forked",
    "Holder",
    "InvalidArgument",
    "InvalidEnvironment",
    "InvalidHandle",
    "Limit",
    "NoDevice",
    "OutOfMemory",
    "Pool",
    "Scope",
    "ScopeUsage",
    "Status",
    "Stream",
    "UnknownAddress",
    "Unsupported",
    "WrongState",
    "__version__",
    "record_use",
    "version",
]

__version__ = version_text(library.gpumem_version())
_log = logging.getLogger("gpumem")


def load_ipython_extension(shell: Any) -> None:
    """`%load_ext gpumem` in a notebook."""
    from ._notebook import load

    load(shell)


def record_use(address: int, stream: Stream) -> None:
    """Records that work on another stream uses a pool's memory, such as an array's. The free waits, on the device, for that work."""
    check(library.gpumem_record_use(check_size("address", address), _handle_of(stream)))


def version() -> tuple[int, int, int]:
    """The library's version as (major, minor, patch)."""
    number: int = library.gpumem_version()
    return (number // 10_000, number // 100 % 100, number % 100)


class _Owner:
    """An object that ends what it holds. A copy would end it a second time, perhaps after another object got it."""

    # Ends what the object holds, and returns the library's result: nothing, unless a constructor sets it.
    _end: Callable[[], int] = int
    # A method would leave the memory allocated if an interrupt came before its first instruction.
    __del__ = property(operator.attrgetter("_end"))

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise TypeError(f"a {type(self).__name__} cannot be copied or pickled, because it ends what it holds; pass the object itself")


class Pool(_Owner):
    """A pool of a device's memory.

    `conf` sets options by name, like GPUMEM_CONF: "profile:fast". A limit is a number of bytes or a text: "2GiB", "50%" of the
    device's memory, or "80%free" of its free memory; None or 0 for none. `peers` are the other devices that may use
    the memory: "all" with a link, or their ordinals. `trace` is a file that records all requests.
    `on_out_of_memory` receives the report of each refused request before the request raises `OutOfMemory`; it may free
    blocks, and must not raise. The environment (GPUMEM_HARD_LIMIT, GPUMEM_CONF and the others) sets the options that are not given
    here, unless `from_environment` is False.
    """

    def __init__(
        self,
        ordinal: int = 0,
        *,
        conf: str | None = None,
        hard_limit: Limit | None = None,
        soft_limit: Limit | None = None,
        peers: str | Iterable[SupportsIndex] | None = None,
        trace: str | bytes | os.PathLike[Any] | None = None,
        on_out_of_memory: Callable[[str], object] | None = None,
        from_environment: bool = True,
        _interface: int = PYTHON,
    ) -> None:
        options = PoolOptions(
            struct_size=ctypes.sizeof(PoolOptions),
            ordinal=check_size("ordinal", ordinal, 2**32),
            flags=FROM_ENVIRONMENT if from_environment else 0,
            conf=None if conf is None else _text("conf", conf),
            hard_limit=limit_text("hard_limit", hard_limit),
            soft_limit=limit_text("soft_limit", soft_limit),
            trace_path=None if trace is None else path_text("trace", trace),
            interface=_interface,
            peers=None if peers is None else peers_text(peers),
        )
        if on_out_of_memory is not None:
            options.on_out_of_memory, options.user_data = _out_of_memory_function(on_out_of_memory)
        # Set before the call, because an interrupt may follow it.
        self._handle = ctypes.c_void_p()
        self._end = ending(self._handle, END_POOL)
        check(library.gpumem_pool_create(ctypes.byref(options), ctypes.byref(self._handle)), _interface)

    @classmethod
    def for_device(cls, ordinal: int = 0) -> Pool:
        """The device's default pool in this process. The first call creates it from the environment. It is never closed."""
        pool = cls.__new__(cls)
        pool._handle = ctypes.c_void_p()
        check(library.gpumem_pool_for_device(check_size("ordinal", ordinal, 2**32), ctypes.byref(pool._handle)))
        return pool

    @classmethod
    def _default(cls, ordinal: int, interface: int, **options: Any) -> Pool:
        """The device's default pool, for the allocators of other libraries. With options, it must not exist yet."""
        given = {name: value for name, value in _checked_options(options).items() if value is not None}
        if not given:
            return cls.for_device(ordinal)
        pool = cls(ordinal, _interface=interface, **given)
        check(library.gpumem_pool_set_default(pool._handle), interface)
        pool._end = int
        return pool

    @classmethod
    def _of(cls, handle: ctypes.c_void_p) -> Pool:
        pool = cls.__new__(cls)
        pool._handle = handle
        return pool

    def close(self) -> None:
        """Ends the use of the pool. Its memory returns to the driver once its last block is freed."""
        check(self._end())

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def stream(self) -> Stream:
        """Creates a stream on the pool's device."""
        return Stream._made(library.gpumem_stream_create, self._handle)

    def borrow(self, raw: int) -> Stream:
        """Wraps a cudaStream_t that another library created. Call `retire` before that library destroys it."""
        return Stream._made(library.gpumem_stream_borrow, self._handle, check_size("raw", raw))

    def long_lived(self, raw: int) -> Stream:
        """Wraps another library's cudaStream_t that lives as long as the process, such as PyTorch's; 0 is the default stream."""
        return Stream._made(library.gpumem_stream_long_lived, self._handle, check_size("raw", raw), is_own=False)

    def alloc(self, size: SupportsIndex, stream: Stream) -> Block:
        """Allocates bytes for work that is queued on the stream from now on. Raises `OutOfMemory` with the report."""
        block = Block(0, check_size("size", size))
        check(library.gpumem_alloc(self._handle, block.size, _handle_of(stream), ctypes.byref(block._place)))
        return block

    def scope(self, tag: str) -> Scope:
        """Counts the blocks that the calling thread allocates inside it for a tag, in `status_text` and in reports:

            with pool.scope("forward") as scope:
                ...
            print(scope.usage.peak_bytes)

        In nested scopes, the innermost tag counts. Scopes of one name share their tag, on all threads.
        """
        return Scope(self, tag)

    def on_shortage(self, name: str, release: Callable[[bool], object]) -> Holder:
        """Registers a function that frees memory when a request on the device would otherwise be refused, and in `reclaim`.

        It receives False to free memory that is cheap to recreate, such as a cache, and then, if that was not enough, True to free
        everything that the program can do without. It runs on the allocating thread. A report names a holder whose function raised.
        """
        return Holder(self, name, release)

    def status(self) -> Status:
        """The pool's counters."""
        return Status._read(lambda place: library.gpumem_pool_status(self._handle, place))

    def status_text(self) -> str:
        """The pool's counters as text."""
        return self._written(library.gpumem_pool_status_text)

    def status_json(self) -> str:
        """The pool's counters as JSON, those of tags and streams included."""
        return self._written(library.gpumem_pool_status_json)

    def explain_refusal(self, size: SupportsIndex) -> str:
        """The report of a request that the driver has refused to another library, which allocates from this pool: the memory in use and
        its holders, the limits, and advice. It describes the state at the call; no request is made."""
        return self._written(library.gpumem_pool_explain_refusal, check_size("size", size), PYTHON)

    def set_hard_limit(self, limit: Limit | None) -> None:
        """Changes the hard limit, bytes or a text such as "80%free"; None removes it."""
        self._set_limit(library.gpumem_pool_set_hard_limit, library.gpumem_pool_set_hard_limit_text, limit)

    def set_soft_limit(self, limit: Limit | None) -> None:
        """Changes the soft limit, above which cached memory is released; None removes it."""
        self._set_limit(library.gpumem_pool_set_soft_limit, library.gpumem_pool_set_soft_limit_text, limit)

    def _set_limit(self, set_bytes: Any, set_text: Any, limit: Limit | None) -> None:
        if isinstance(limit, str):
            check(set_text(self._handle, _text("limit", limit)))
        else:
            check(set_bytes(self._handle, _NO_LIMIT if limit is None else check_size("limit", limit)))

    def trim(self, keep: SupportsIndex = 0) -> int:
        """Releases cached memory until `keep` bytes are reserved, without waiting. Returns the bytes released."""
        return self._released(library.gpumem_pool_trim, check_size("keep", keep))

    def reclaim(self) -> int:
        """Waits for the device, then releases all memory that no block holds. Returns the bytes released."""
        return self._released(library.gpumem_pool_reclaim)

    def part(self, name: str) -> Pool:
        """Returns the part of this pool with this name, which the first call creates: a pool that sleeps and wakes separately.

        It has this pool's options and separate memory, which counts against this pool's hard limit.
        """
        text = _text("the name of a part", name)
        part = Pool.__new__(Pool)
        part._handle = ctypes.c_void_p()
        part._end = ending(part._handle, END_POOL)
        check(library.gpumem_pool_part(self._handle, text, ctypes.byref(part._handle)))
        return part

    def sleep(self, keep: str = "host") -> None:
        """Waits for the device, and releases the pool's memory to it. Blocks keep their addresses until `wake`.

        With "host", their contents are kept in pinned host memory; with "nothing" they are lost, and the memory is zero afterwards.
        Until `wake`, requests raise `WrongState`, blocks may be freed, and no work may use their memory.
        """
        if keep not in KEEP:
            raise InvalidArgument(f'keep is {keep!r}; expected "host" or "nothing"')
        check(library.gpumem_pool_sleep(self._handle, KEEP[keep]))

    def wake(self) -> None:
        """Creates the memory of a sleeping pool again, at the same addresses. Raises `OutOfMemory` if the device or a limit refuses."""
        check(library.gpumem_pool_wake(self._handle))

    def reset_peaks(self) -> None:
        """Resets the peaks that `status` reports."""
        check(library.gpumem_pool_reset_peaks(self._handle))

    def flush_trace(self, timeout_ms: SupportsIndex = 10_000) -> None:
        """Waits until everything that the pool has recorded is in its trace file."""
        check(library.gpumem_pool_flush_trace(self._handle, check_size("timeout_ms", timeout_ms)))

    def _written(self, function: Any, *arguments: int) -> str:
        length = ctypes.c_size_t()
        check(function(self._handle, *arguments, None, 0, ctypes.byref(length)))
        # The text may have grown since.
        text = ctypes.create_string_buffer(length.value + 256)
        check(function(self._handle, *arguments, text, len(text), None))
        return text.value.decode()

    def _released(self, function: Any, *arguments: int) -> int:
        released = ctypes.c_uint64()
        check(function(self._handle, *arguments, ctypes.byref(released)))
        return released.value


class Stream(_Owner):
    """A stream of a device."""

    _handle: ctypes.c_void_p

    @classmethod
    def _made(cls, function: Any, pool: ctypes.c_void_p, *arguments: int, is_own: bool = True) -> Stream:
        stream = cls.__new__(cls)
        stream._handle = ctypes.c_void_p()
        if is_own:
            stream._end = ending(stream._handle, END_STREAM)
        check(function(pool, *arguments, ctypes.byref(stream._handle)))
        return stream

    @property
    def raw(self) -> int:
        """The cudaStream_t as a number."""
        raw = ctypes.c_void_p()
        check(library.gpumem_stream_raw(self._handle, ctypes.byref(raw)))
        return raw.value or 0

    def wait_for(self, other: Stream) -> None:
        """Makes later work on this stream wait, on the device, for the work queued so far on `other`."""
        check(library.gpumem_stream_wait_for(self._handle, _handle_of(other)))

    def synchronize(self) -> None:
        """Waits on the host for the work queued so far."""
        check(library.gpumem_stream_synchronize(self._handle))

    def retire(self) -> None:
        """Declares that the owner of a borrowed or long-lived stream is about to destroy it."""
        check(library.gpumem_stream_retire(self._handle))

    def close(self) -> None:
        """Ends the use of the stream. A stream that this package created is destroyed."""
        check(ending(self._handle, END_STREAM)())

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _handle_of(stream: Stream) -> ctypes.c_void_p:
    """The handle of an argument that should be a stream."""
    if not isinstance(stream, Stream):
        raise TypeError(f"the stream is of the type {type(stream).__name__}; pass a gpumem.Stream")
    return stream._handle


class Block(_Owner):
    """Device memory, freed in stream order by `free`, at the end of a `with`, or with the object."""

    def __init__(self, address: int, size: int) -> None:
        self._place = ctypes.c_void_p(check_size("address", address))
        self._end = ending(self._place, FREE)
        self.size = size
        """The size in bytes."""

    @property
    def address(self) -> int:
        """The device address; 0 for an empty or freed block."""
        return self._place.value or 0

    def record_use(self, stream: Stream) -> None:
        """Records that work on another stream uses the block. The free waits, on the device, for that work."""
        address = self.address
        if not address and self.size:
            raise UnknownAddress("the block was freed before; record its uses before the free")
        record_use(address, stream)

    def free(self) -> None:
        """Frees the block; a second call does nothing."""
        check(self._end())

    def __enter__(self) -> Block:
        return self

    def __exit__(self, *_: object) -> None:
        self.free()


class Scope(_Owner):
    """A scope of `Pool.scope`, for a `with` on one thread."""

    def __init__(self, pool: Pool, tag: str) -> None:
        self._pool, self._tag, self._number = pool, _text("the tag", tag), ctypes.c_uint64()
        self.usage = ScopeUsage()
        """Allocations and frees of the thread inside, once the scope has ended."""

    def __enter__(self) -> Scope:
        if self._number:
            raise WrongState("the scope is open; make one for each `with`")
        check(library.gpumem_scope_begin(self._pool._handle, self._tag, ctypes.byref(self._number)))
        return self

    def __exit__(self, *_: object) -> None:
        self.usage = ScopeUsage._read(lambda place: library.gpumem_scope_end(self._number, place))
        self._number = ctypes.c_uint64()


class Holder(_Owner):
    """The registration of `Pool.on_shortage`. It ends with `close`, with a `with` block, or with the interpreter."""

    def __init__(self, pool: Pool, name: str, release: Callable[[bool], object]) -> None:
        def call(is_last_resort: int, _: int | None) -> int:
            try:
                release(is_last_resort != 0)
                return 0
            except BaseException:  # Even an interrupt may not pass through the library.
                _log.exception("the function of the holder %s has failed", name)
                return 1

        text = _text("the name of a holder", name)
        check_callable("release", release)
        # A call on another thread may still run when the registration ends.
        function = ctypes.cast(keep(ReclaimFunction(call)), ctypes.c_void_p)
        entry = ReclaimFunction(("gpumem_python_release", callbacks))
        self._handle = ctypes.c_void_p()
        atexit.register(self.close)
        try:
            check(library.gpumem_holder_register(pool._handle, text, entry, function, ctypes.byref(self._handle)))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Ends the registration; a second call does nothing."""
        atexit.unregister(self.close)
        check(ending(self._handle, END_HOLDER)())

    def __enter__(self) -> Holder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _out_of_memory_function(notify: Callable[[str], object]) -> tuple[Any, Any]:
    """The C function that passes reports to a Python function, and its user data."""
    check_callable("on_out_of_memory", notify)
    function = OutOfMemoryFunction(lambda report, _: notify(report.decode()))
    # Blocks may outlive the pool, and the callback is called while they live.
    return OutOfMemoryFunction(("gpumem_python_report", callbacks)), ctypes.cast(keep(function), ctypes.c_void_p)


def _checked_options(options: dict[str, Any]) -> dict[str, Any]:
    """Refuses unknown options, before the first request creates a pool with them."""
    known = [name for name in Pool.__init__.__kwdefaults__ or () if not name.startswith("_")]
    for name in options:
        if name not in known:
            raise TypeError(f"{name} is no option of a pool; the options are {', '.join(known)}")
    return options


_NO_LIMIT = 2**64 - 1
