"""Stand-ins for the parts of PyTorch that ask the driver: devices, streams, events, statistics, random states.

They replace PyTorch's functions in the process that `fit` starts for the script, and nowhere else.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
import time
import types
import warnings
from collections.abc import Iterator
from typing import Any, Optional

import torch

from . import front
from .clock import Clock
from .devices import Device
from .mode import Mode


def install(mode: Mode, device: Device, outside_bytes: int) -> None:
    """Makes `torch.cuda` answer for a device that is not there."""
    _Cuda(mode, device, outside_bytes).install()


class Stream:
    """A stream: a number that the record names."""

    _count = 0
    # Of the process.
    clock: Clock

    def __init__(self, device: Any = None, priority: int = 0, **_: Any) -> None:
        Stream._count += 1
        # The first one is the default stream.
        self.clock.is_running |= Stream._count > 1
        self.stream_id = self.cuda_stream = Stream._count
        self.priority, self.device, self.device_index, self.device_type = priority, torch.device("cuda", 0), 0, 1

    def wait_stream(self, stream: Any) -> None:
        self.clock.order(self.stream_id, self.clock.ready_s(stream.stream_id))

    def wait_event(self, event: Any) -> None:
        self.clock.order(self.stream_id, event.recorded_s)

    def record_event(self, event: Any = None) -> Any:
        event = Event() if event is None else event
        event.record(self)
        return event

    def query(self) -> bool:
        return True

    def is_capturing(self) -> bool:
        return False

    def synchronize(self) -> None:
        self.clock.wait(self.clock.ready_s(self.stream_id))

    def __enter__(self) -> Any:
        self._context = torch.cuda.stream(self)
        self._context.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._context.__exit__(*error)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and other.stream_id == self.stream_id

    def __hash__(self) -> int:
        return hash(self.stream_id)


class ExternalStream(Stream):
    def __init__(self, stream_ptr: int = 0, device: Any = None, **_: Any) -> None:
        super().__init__(device)


class Event:
    """An event: it has happened as soon as it is asked."""

    clock: Clock

    def __init__(self, *_: Any, **__: Any) -> None:
        self._time, self.recorded_s = time.perf_counter(), 0.0

    def record(self, stream: Any = None) -> None:
        self._time = time.perf_counter()
        self.recorded_s = self.clock.ready_s((stream or torch.cuda.current_stream()).stream_id)

    def wait(self, stream: Any = None) -> None:
        (stream or torch.cuda.current_stream()).wait_event(self)

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        self.clock.wait(self.recorded_s)

    def elapsed_time(self, end: Any) -> float:
        # Never 0: programs divide by it.
        return max(1000.0 * (end._time - self._time), 1e-3)


class _Cuda:
    def __init__(self, mode: Mode, device: Device, outside_bytes: int) -> None:
        self.mode, self.device, self.outside_bytes = mode, device, outside_bytes
        Stream.clock = Event.clock = mode.clock
        self.default = Stream()
        self.default.stream_id = self.default.cuda_stream = 0
        self.current = threading.local()
        major, minor = device.capability
        self.properties = types.SimpleNamespace(
            name=device.name, major=major, minor=minor, total_memory=device.total_bytes,
            multi_processor_count=device.multiprocessor_count, warp_size=32, is_integrated=0, is_multi_gpu_board=0,
            max_threads_per_multi_processor=2048 if (major, minor) in ((8, 0), (9, 0), (10, 0)) else 1536,
            regs_per_multiprocessor=65536, shared_memory_per_block=48 << 10, shared_memory_per_block_optin=99 << 10,
            shared_memory_per_multiprocessor=100 << 10, L2_cache_size=50 << 20, max_threads_per_block=1024, gcnArchName="", uuid="gpumem-fit",
        )

    # Streams.

    def stream(self) -> Stream:
        return getattr(self.current, "stream", self.default)

    def set_stream(self, stream: Any) -> None:
        self.current.stream = stream
        self.mode.state.stream = stream.stream_id

    def synchronize(self, *_: Any, **__: Any) -> None:
        self.mode.clock.synchronize()

    # Statistics.

    def statistics(self, *_: Any, **__: Any) -> dict[str, Any]:
        record = self.mode.record
        both = {"current": record.in_use_bytes, "peak": record.peak_bytes, "allocated": 0, "freed": 0}
        names = ("allocated_bytes", "active_bytes", "requested_bytes", "reserved_bytes", "inactive_split_bytes")
        found: dict[str, Any] = {f"{name}.all.{key}": value for name in names for key, value in both.items()}
        return {**found, "num_alloc_retries": 0, "num_ooms": 0, "num_sync_all_streams": 0}

    def memory_information(self, *_: Any, **__: Any) -> tuple[int, int]:
        total_bytes = self.device.total_bytes
        return max(total_bytes - self.outside_bytes - self.mode.record.in_use_bytes, 0), total_bytes

    # The replacement.

    def install(self) -> None:
        self._devices()
        self._streams()
        self._memory()
        self._random()
        self._tensors()
        self._loaders()
        self._fake_mode()
        self._compilers()
        warnings.filterwarnings("ignore", message="Accessing the data pointer of FakeTensor")
        front.install()

    def _devices(self) -> None:
        cuda, properties = torch.cuda, self.properties
        nothing = _nothing
        _replace(cuda, {
            "is_available": lambda: True,
            "is_initialized": lambda: True,
            "_is_compiled": lambda: True,
            "init": nothing,
            "_lazy_init": nothing,
            "_lazy_call": nothing,
            "device_count": lambda: 1,
            "current_device": lambda: 0,
            "set_device": nothing,
            "_exchange_device": lambda device: 0,
            "_maybe_exchange_device": lambda device: 0,
            "get_device_name": lambda device=None: properties.name,
            "get_device_capability": lambda device=None: (properties.major, properties.minor),
            "get_device_properties": lambda device=None: properties,
            "can_device_access_peer": lambda device, peer: False,
            "is_bf16_supported": lambda including_emulation=True: properties.major >= 8 or including_emulation,
            "is_tf32_supported": lambda: properties.major >= 8,
            "get_arch_list": lambda: [f"sm_{properties.major}{properties.minor}"],
            "_sleep": nothing,
            "is_current_stream_capturing": lambda: False,
            "ipc_collect": nothing,
            "set_sync_debug_mode": nothing,
            "get_sync_debug_mode": lambda: 0,
            "utilization": lambda device=None: 0,
            "temperature": lambda device=None: 0,
            "power_draw": lambda device=None: 0,
            "device": _DeviceContext,
            "device_of": _DeviceContext,
            "_DeviceGuard": _DeviceContext,
            "cudart": lambda: types.SimpleNamespace(cudaProfilerStart=nothing, cudaProfilerStop=nothing, cudaMemGetInfo=self.memory_information),
        })
        for name, function in {"range_push": nothing, "range_pop": nothing, "mark": nothing}.items():
            setattr(torch.cuda.nvtx, name, function)
        _replace(torch._C, {
            "_cuda_init": nothing,
            "_cuda_getDeviceCount": lambda: 1,
            "_cuda_getDevice": lambda: 0,
            "_cuda_setDevice": nothing,
            "_cuda_exchangeDevice": lambda device: 0,
            "_cuda_maybeExchangeDevice": lambda device: 0,
            "_cuda_isInBadFork": lambda: False,
            "_cuda_synchronize": self.synchronize,
            "_cuda_emptyCache": nothing,
            "_accelerator_getDeviceIndex": lambda: 0,
            "_accelerator_setDeviceIndex": nothing,
            "_accelerator_exchangeDevice": lambda device: 0,
            "_accelerator_maybeExchangeDevice": lambda device: 0,
            "_accelerator_getAccelerator": lambda: torch.device("cuda"),
            "_accelerator_synchronizeDevice": self.synchronize,
            "_accelerator_isAllocatorInitialized": lambda: False,
            "_accelerator_getStream": lambda device=0: self.stream(),
            "_accelerator_setStream": self.set_stream,
        })
        accelerator = getattr(torch, "accelerator", None)
        if accelerator is not None:
            _replace(accelerator, {
                "is_available": lambda: True,
                "device_count": lambda: 1,
                "current_accelerator": lambda check_available=False: torch.device("cuda"),
                "synchronize": self.synchronize,
            })

    def _streams(self) -> None:
        cuda = torch.cuda
        context = functools.partial(_stream_context, self)

        class StreamContext:
            """`torch.cuda.StreamContext`, of which `torch.cuda.stream` makes one."""

            def __init__(self, stream: Any) -> None:
                self._inner = context(stream)

            def __enter__(self) -> None:
                self._inner.__enter__()

            def __exit__(self, *error: Any) -> None:
                self._inner.__exit__(*error)

        found = {
            "Stream": Stream, "ExternalStream": ExternalStream, "Event": Event, "StreamContext": StreamContext,
            "stream": StreamContext,
            "current_stream": lambda device=None: self.stream(),
            "default_stream": lambda device=None: self.default,
            "set_stream": self.set_stream,
            "synchronize": self.synchronize,
        }
        _replace(cuda, found)
        _replace(cuda.streams, {name: found[name] for name in ("Stream", "ExternalStream", "Event")})

    def _memory(self) -> None:
        record, total_bytes = self.mode.record, self.device.total_bytes
        found = {
            "memory_allocated": lambda device=None: record.in_use_bytes,
            "max_memory_allocated": lambda device=None: record.peak_bytes,
            "memory_reserved": lambda device=None: record.in_use_bytes,
            "max_memory_reserved": lambda device=None: record.peak_bytes,
            "memory_stats": self.statistics,
            "memory_stats_as_nested_dict": lambda device=None: {},
            "mem_get_info": self.memory_information,
            "memory_summary": lambda device=None, abbreviated=False: "",
            "memory_snapshot": lambda *_, **__: [],
            "empty_cache": _nothing,
            "reset_peak_memory_stats": _nothing,
            "reset_accumulated_memory_stats": _nothing,
            "reset_max_memory_allocated": _nothing,
            "set_per_process_memory_fraction": _nothing,
            "get_per_process_memory_fraction": lambda device=None: 1.0,
            "_record_memory_history": _nothing,
            "_dump_snapshot": _nothing,
            "device_memory_used": lambda device=None: total_bytes - self.memory_information()[0],
        }
        _replace(torch.cuda.memory, found)
        _replace(torch.cuda, {name: value for name, value in found.items() if hasattr(torch.cuda, name)})

    def _random(self) -> None:
        state = torch.zeros(16, dtype=torch.uint8)
        found = {
            "get_rng_state": lambda device="cuda": state.clone(),
            "get_rng_state_all": lambda: [state.clone()],
            "set_rng_state": _nothing, "set_rng_state_all": _nothing,
            "manual_seed": _nothing, "manual_seed_all": _nothing, "seed": _nothing, "seed_all": _nothing,
            "initial_seed": lambda: 0,
        }
        _replace(torch.cuda.random, found)
        _replace(torch.cuda, found)
        class Generator(torch.Generator):
            """A generator of the host in place of one of the device, whose numbers are not needed."""

            def __new__(cls, device: Any = "cpu") -> Any:
                return super().__new__(cls, "cpu")

            def __init__(self, device: Any = "cpu") -> None: ...

        torch.Generator = Generator
        torch.cuda.default_generators = (Generator("cuda"),)

    def _tensors(self) -> None:
        mode = self.mode

        def record_stream(tensor: torch.Tensor, stream: Any) -> None:
            index = mode.block_of(tensor)
            if index is not None and mode.record.blocks[index].stream != stream.stream_id:
                mode.record.blocks[index].users.add(stream.stream_id)

        resize = torch.UntypedStorage.resize_

        def resize_storage(storage: Any, size: int) -> Any:
            resized = resize(storage, size)
            mode.resized(storage)
            return resized

        def cuda(tensor: torch.Tensor, device: Any = None, non_blocking: bool = False, memory_format: Any = torch.preserve_format) -> torch.Tensor:
            return tensor.to("cuda", non_blocking=non_blocking, memory_format=memory_format)

        torch.Tensor.record_stream = record_stream
        torch.Tensor.cuda = cuda
        torch.UntypedStorage.resize_ = resize_storage
        torch.Tensor.pin_memory = lambda tensor, device=None: tensor

        def save(*_: Any, **__: Any) -> None:
            mode.notes.add("torch.save writes nothing", mode.lines.current())

        torch.save = save

    def _loaders(self) -> None:
        """Loaders work in this process: their workers would not know the stand-ins, and their memory is the host's."""
        made = torch.utils.data.DataLoader.__init__

        @functools.wraps(made)
        def init(loader: Any, *args: Any, **kwargs: Any) -> None:
            args = (*args[:5], 0, *args[6:]) if len(args) > 5 else args
            kwargs = {name: value for name, value in kwargs.items() if name not in _WORKER_OPTIONS}
            made(loader, *args, **kwargs)

        torch.utils.data.DataLoader.__init__ = init

    def _fake_mode(self) -> None:
        from torch._subclasses import fake_tensor

        fake_mode: Any = fake_tensor.FakeTensorMode
        # As without a device, although `torch.cuda.is_available` says that there is one.
        fake_mode.avoid_device_init = property(lambda _: True)
        fake_mode.__deepcopy__ = lambda mode, memo: mode
        fake_tensor.init_gpu_context = _nothing
        torch._C._set_only_lift_cpu_tensors(True)
        torch._C._ensureCUDADeviceGuardSet()
        _give_autograd_an_accelerator()
        # A parameter that moves to the device stays the same object, which an optimizer may know already.
        torch.__future__.set_swap_module_params_on_conversion(True)
        torch.utils.swap_tensors = _swap

    def _compilers(self) -> None:
        """Compiled functions run as they are written."""

        def compile(model: Any = None, **_: Any) -> Any:
            self.mode.notes.add("torch.compile: the operations run one by one; compiled code takes less memory", self.mode.lines.current())
            return (lambda function: function) if model is None else model

        torch.compile = compile
        torch.nn.Module.compile = lambda module, *_, **__: compile(module) and None


_WORKER_OPTIONS = (
    "num_workers", "pin_memory", "pin_memory_device", "prefetch_factor", "persistent_workers", "multiprocessing_context", "timeout",
)


class _DeviceContext(contextlib.ContextDecorator):
    """`torch.cuda.device`: there is one device."""

    def __init__(self, device: Any = None) -> None:
        self.idx, self.prev_idx = 0, -1

    def __enter__(self) -> None: ...

    def __exit__(self, *error: Any) -> None: ...


@contextlib.contextmanager
def _stream_context(cuda: _Cuda, stream: Optional[Any]) -> Iterator[None]:
    before = cuda.stream()
    cuda.set_stream(before if stream is None else stream)
    try:
        yield
    finally:
        cuda.set_stream(before)


def _give_autograd_an_accelerator() -> None:
    """Autograd asks the accelerator that PyTorch is built for about its contexts, and CUDA's refuses without a driver. A backend that is
    registered comes first, and has none."""

    class Hooks(torch._C._acc.PrivateUse1Hooks):
        def is_available(self) -> bool:
            return True

        def has_primary_context(self, device: int) -> bool:
            return False

        def is_built(self) -> bool:
            return True

    class Guard(torch._C._acc.DeviceGuard):
        def type_(self) -> Any:
            return torch._C._autograd.DeviceType.PrivateUse1

    kept = (Hooks(), Guard())
    module = types.ModuleType("torch.gpumem_fit")
    vars(module).update(
        kept=kept, is_initialized=lambda: True, is_available=lambda: True, current_device=lambda: 0, device_count=lambda: 1,
        _is_in_bad_fork=lambda: False, manual_seed_all=_nothing,
    )
    torch.utils.rename_privateuse1_backend("gpumem_fit")
    torch._register_device_module("gpumem_fit", module)
    torch._C._acc.register_python_privateuseone_hook(kept[0])
    torch._C._acc.register_python_privateuseone_device_guard(kept[1])


def _swap(one: torch.Tensor, other: torch.Tensor) -> None:
    """`torch.utils.swap_tensors` without its checks, which refuse the weak references that fake tensors have."""
    one.__class__, other.__class__ = other.__class__, one.__class__
    one.__dict__, other.__dict__ = other.__dict__, one.__dict__
    torch._C._swap_tensor_impl(one, other)


def _nothing(*_: Any, **__: Any) -> None:
    return None


def _replace(module: Any, found: dict[str, Any]) -> None:
    for name, value in found.items():
        before = getattr(module, name, None)
        setattr(module, name, value)
        # Modules that were imported before have a name of their own for it.
        if before is not None and name in _IMPORTED:
            for other in list(sys.modules.values()):
                if getattr(other, "__name__", "").startswith("torch") and vars(other).get(name) is before:
                    setattr(other, name, value)


_IMPORTED = frozenset(("is_available", "_lazy_init", "current_device", "device_count", "get_device_capability", "get_device_properties"))
