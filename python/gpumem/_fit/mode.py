"""Runs a script's operations on the device with fake tensors, and records the life of their memory.

Tensors of the host stay real, so that what a script reads from files and generators has its sizes. Tensors of the device are PyTorch's
FakeTensor: they have a shape, a type and a device, and no memory.
"""

from __future__ import annotations

import dataclasses
import sys
import threading
import types
import weakref
from collections.abc import Mapping, Sequence
from typing import Any, Callable, Optional

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from . import encoder, shapes
from .front import attention_choice
from .record import INSIDE, WORKSPACE, Place, Record
from .temporaries import PRODUCTS, TEMPORARIES
from .values import Values, is_on_device, made_up, tensors, twin_of

aten = torch.ops.aten


@dataclasses.dataclass
class State:
    """What the script is doing, and where."""

    phase: str = "setup"
    stream: int = 0
    # The line that called `backward`: its operations may run on a thread of their own.
    backward_line: str = ""


@dataclasses.dataclass(frozen=True)
class _Operation:
    """What is known of an operation from its schema."""

    name: str
    is_composite: bool
    mutated: tuple[int, ...]
    is_foreign: bool
    may_resize: bool


class Notes:
    """What was assumed, with the lines where."""

    def __init__(self) -> None:
        self.found: dict[tuple[str, str], int] = {}

    def add(self, text: str, line: str) -> None:
        self.found[text, line] = self.found.get((text, line), 0) + 1


class Lines:
    """The line of the script that runs: the innermost one outside of libraries."""

    def __init__(self, roots: Sequence[str], skipped: Sequence[str]) -> None:
        self._roots = tuple(roots)
        self._skipped = tuple(skipped)
        self._names: dict[str, Optional[str]] = {}

    def current(self) -> str:
        frame: Optional[types.FrameType] = sys._getframe(2)
        while frame is not None:
            file = frame.f_code.co_filename
            name = self._names.get(file, self)
            if name is self:
                name = self._names[file] = self.name(file)
            if name is not None:
                return f"{name}:{frame.f_lineno}"
            frame = frame.f_back
        return ""

    def name(self, file: str) -> Optional[str]:
        if file.startswith("<") or file.startswith(self._skipped):
            return None
        for root in self._roots:
            if file.startswith(root):
                return file[len(root):].lstrip("/")
        return file


class Mode(TorchDispatchMode):
    """Serves the operations on the device."""

    def __init__(self, record: Record, state: State, lines: Lines, notes: Notes, options: Mapping[str, Any]) -> None:
        super().__init__()
        self.record, self.state, self.lines, self.notes = record, state, lines, notes
        self.clock = record.clock
        self.values = Values()
        self.fake = FakeTensorMode(allow_fallback_kernels=False, allow_non_fake_inputs=True)
        self.workspace_bytes: int = options["workspace_bytes"]
        self.light_workspace_bytes = _light_workspace_bytes(options["light_workspace"])
        self.made_up_number: float = options["number"]
        self.share: float = options["share"]
        self._live: dict[int, tuple[int, Any]] = {}
        self._operations: dict[Any, _Operation] = {}
        self._workspaces: set[tuple[str, int, str]] = set()
        self._main = threading.get_ident()

    # ---------------------------------------------------------------------------------------------------------- dispatch

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.prim.device.default:
            # PyTorch's own code asks here. Autograd would look for the streams of a device that is not there, so it is not told of one;
            # `front.py` replaces what depends on the answer. Python code asks `FakeTensor.device`.
            return _NOWHERE
        kwargs = kwargs or {}
        device = kwargs.get("device")
        if device == _NOWHERE:
            device = torch.device("cuda", 0)
            kwargs = {**kwargs, "device": device}
        is_made_here = device is not None and torch.device(device).type == "cuda"
        if not is_made_here and any(type(one) is torch.device for one in args):
            # Operations that `inference_mode` does not take apart.
            args = tuple(torch.device("cuda", 0) if type(one) is torch.device and one == _NOWHERE else one for one in args)
            is_made_here = any(type(one) is torch.device and one.type == "cuda" for one in args)
        if not is_made_here and not any(is_on_device(tensor) for tensor in tensors([*args, *kwargs.values()])):
            return self._on_host(func, args, kwargs)
        operation = self._operations.get(func)
        if operation is None:
            operation = self._operations[func] = _operation(func)
        if operation.is_composite:
            with self:
                result = func.decompose(*args, **kwargs)
            if result is not NotImplemented:
                return result
        if func in _COMPOSED:
            with self:
                return func._op_dk(torch._C.DispatchKey.CompositeExplicitAutograd, *args, **kwargs)
        special = _SPECIAL.get(func)
        if special is not None:
            return special(self, func, args, kwargs)
        return self.plain(func, types, args, kwargs)

    def _on_host(self, func: Any, args: Any, kwargs: Any) -> Any:
        # Pinning needs a driver, and takes no memory of the device.
        if func is aten._pin_memory.default:
            func = aten.clone.default
        if func is aten.is_pinned.default:
            return False
        if kwargs.get("pin_memory"):
            kwargs = {**kwargs, "pin_memory": False}
        result = func(*args, **kwargs)
        self.clock.compute(func, result)
        return result

    def plain(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """An operation whose results have shapes that follow from those of its arguments."""
        operation = self._operations.get(func) or _operation(func)
        place = self.place()
        if operation.is_foreign:
            self.notes.add(f"{operation.name}: what it takes inside is unknown", place.line)
        if func in PRODUCTS:
            self._workspace(func, args, place)
        result = self.fake.__torch_dispatch__(func, types, args, _without_generator(kwargs))
        result = self._keep_host_results(result)
        self.track(result, place, operation.name)
        if operation.may_resize:
            self._track_growth(args, kwargs, place, operation.name)
        self.temporary_of(func, args, operation.name, place)
        self.values.follow(func, operation.mutated, args, kwargs, result)
        self.clock.queue(self.state.stream, func, args, result)
        return result

    def make(self, shape: Sequence[int], dtype: torch.dtype, stride: Optional[Sequence[int]] = None, name: str = "") -> torch.Tensor:
        """A tensor of the device."""
        device = torch.device("cuda", torch.cuda.current_device())
        with self.fake:
            if stride is None:
                made = torch.empty(tuple(shape), dtype=dtype, device=device)
            else:
                made = torch.empty_strided(tuple(shape), tuple(stride), dtype=dtype, device=device)
        self.track(made, self.place(), name)
        return made

    # ------------------------------------------------------------------------------------------------------------ memory

    def place(self) -> Place:
        line = self.lines.current()
        return Place(line or self.state.backward_line or "the program", self.state.phase)

    def track(self, result: Any, place: Place, name: str) -> None:
        for tensor in tensors(result):
            if is_on_device(tensor):
                for part in _parts(tensor):
                    self._track_storage(part.untyped_storage(), place, name)

    def _track_storage(self, storage: Any, place: Place, name: str) -> None:
        key = storage._cdata
        if key in self._live:
            return
        size_bytes = storage.nbytes()
        if size_bytes == 0:
            return
        index = self.record.allocate(size_bytes, self.state.stream, place, name)
        self._live[key] = (index, weakref.ref(storage, lambda _: self._freed(key)))

    def _freed(self, key: int) -> None:
        found = self._live.pop(key, None)
        if found is not None:
            self.record.free(found[0])

    def _track_growth(self, args: Any, kwargs: Any, place: Place, name: str) -> None:
        """A storage that an operation has replaced or resized."""
        for tensor in tensors([*args, *kwargs.values()]):
            if not is_on_device(tensor):
                continue
            storage = tensor.untyped_storage()
            found = self._live.get(storage._cdata)
            if found is not None and self.record.blocks[found[0]].size_bytes != storage.nbytes():
                self._freed(storage._cdata)
            self._track_storage(storage, place, name)

    def block_of(self, tensor: torch.Tensor) -> Optional[int]:
        found = self._live.get(tensor.untyped_storage()._cdata)
        return None if found is None else found[0]

    def resized(self, storage: Any) -> None:
        """`UntypedStorage.resize_` was called."""
        if storage._cdata in self._live:
            self._freed(storage._cdata)
            self._track_storage(storage, self.place(), "resize_")

    def temporary(self, size_bytes: int, name: str, place: Optional[Place] = None) -> None:
        """Memory that an operation takes inside, and gives back at its end."""
        if size_bytes > 0:
            self.record.free(self.record.allocate(size_bytes, self.state.stream, place or self.place(), INSIDE + name))

    def temporary_of(self, func: Any, args: Any, name: str, place: Optional[Place] = None) -> None:
        size = TEMPORARIES.get(func)
        if size is None:
            return
        try:
            size_bytes = size(args)
        except (IndexError, TypeError, AttributeError):
            # Arguments by name, which PyTorch's own callers do not use.
            return
        self.temporary(size_bytes, name, place)

    def _workspace(self, func: Any, args: Any, place: Place) -> None:
        """cuBLAS has a workspace for each thread that computes and each stream; the backward pass has a thread of its own."""
        thread = "backward" if self.state.phase == "backward" else str(threading.get_ident() == self._main)
        wanted = [("cuBLAS", self.workspace_bytes)]
        has_epilogue = func is aten.addmm.default or func is aten._addmm_activation.default
        if self.light_workspace_bytes and has_epilogue and args[0].dim() == 1:
            wanted.append(("cuBLASLt", self.light_workspace_bytes))
        for library, size_bytes in wanted:
            key = (thread, self.state.stream, library)
            if size_bytes and key not in self._workspaces:
                self._workspaces.add(key)
                self.record.allocate(size_bytes, self.state.stream, place, WORKSPACE)

    def _keep_host_results(self, result: Any) -> Any:
        """Tensors of the host that come out of an operation on the device are real."""
        if isinstance(result, FakeTensor) and result.fake_device.type == "cpu":
            return torch.zeros(tuple(result.shape), dtype=result.dtype)
        if type(result) in (list, tuple):
            return type(result)(self._keep_host_results(one) for one in result)
        return result

    # ------------------------------------------------------------------------------------------------------------ values

    def synchronize(self) -> None:
        """The host waits for the stream that it works on."""
        self.clock.wait(self.clock.ready_s(self.state.stream))

    def note_values(self, tensor: torch.Tensor, what: str) -> None:
        """Says that values of the device were made up."""
        self.notes.add(what, self.lines.current())

    def upload(self, source: torch.Tensor, dtype: torch.dtype, stride: Sequence[int], is_awaited: bool = True) -> torch.Tensor:
        made = self.make(source.shape, dtype, stride, "to")
        self.values.uploaded(made, source)
        self.clock.copy(self.state.stream, source, is_awaited)
        return made

    def number(self, tensor: torch.Tensor) -> Any:
        """A tensor's only number."""
        self.synchronize()
        twin = twin_of(tensor)
        if twin is not None:
            self._say_made_up(tensor)
            return twin.item()
        number: Any = self.made_up_number
        if tensor.dtype == torch.bool:
            number = False
        elif not (tensor.dtype.is_floating_point or tensor.dtype.is_complex):
            number = int(number)
        self.note_values(tensor, f"a value of the device is read, which is taken to be {number}")
        return number

    def download(self, tensor: torch.Tensor, target: torch.Tensor, is_awaited: bool = True) -> None:
        """Copies a fake tensor into one of the host."""
        self.clock.copy(self.state.stream, target, is_awaited)
        twin = twin_of(tensor)
        if twin is not None:
            self._say_made_up(tensor)
            target.copy_(twin)
        else:
            target.zero_()
            self.note_values(tensor, "a tensor is copied from the device, whose values are taken to be 0")

    def _say_made_up(self, tensor: torch.Tensor) -> None:
        what = made_up(tensor)
        if what:
            self.notes.add(f"a value depends on {what}", self.lines.current())


def _parts(tensor: torch.Tensor) -> list[torch.Tensor]:
    if tensor.layout == torch.strided:
        return [tensor]
    if tensor.layout == torch.sparse_coo:
        return [tensor._values(), tensor._indices()]
    return []


def _operation(func: Any) -> _Operation:
    schema = func._schema
    mutated = tuple(
        index for index, argument in enumerate(schema.arguments) if argument.alias_info is not None and argument.alias_info.is_write
    )
    name = func.name().split("::", 1)[1].split(".")[0]
    return _Operation(
        name=name if func.namespace == "aten" else f"{func.namespace}.{name}",
        is_composite=torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd"),
        mutated=mutated,
        is_foreign=func.namespace not in ("aten", "prims", "profiler", "prim"),
        may_resize=name in ("resize_", "set_", "resize_as_") or any(argument.is_out for argument in schema.arguments),
    )


def _light_workspace_bytes(variable: str) -> int:
    """The workspace that cuBLASLt has apart from cuBLAS's: from 2.12 on they share one (ATen/cuda/CublasHandlePool.cpp)."""
    major, minor = (int(part) for part in torch.__version__.split(".")[:2])
    if (major, minor) >= (2, 12):
        return 0
    return (int(variable) if variable.isdigit() else 1024) << 10


def _without_generator(kwargs: Mapping[str, Any]) -> Mapping[str, Any]:
    return {**kwargs, "generator": None} if kwargs.get("generator") is not None else kwargs


# An index that no program uses: what PyTorch's own code makes there is made on the device.
_NOWHERE = torch.device("meta", 77)


# Operations with a gradient of their own that CUDA computes as a sequence of others.
_COMPOSED = frozenset((aten._safe_softmax.default, aten.binary_cross_entropy_with_logits.default))


# --------------------------------------------------------------------------------------------------------- special operations


def _to_copy(mode: Mode, func: Any, args: Any, kwargs: Any) -> Any:
    source, device = args[0], kwargs.get("device")
    is_from_device, is_to_device = is_on_device(source), device is None or torch.device(device).type == "cuda"
    if is_from_device and is_to_device:
        return mode.plain(func, (), args, {name: value for name, value in kwargs.items() if name != "pin_memory"})
    dtype, is_awaited = kwargs.get("dtype") or source.dtype, not kwargs.get("non_blocking")
    memory_format = kwargs.get("memory_format") or torch.preserve_format
    if not is_from_device:
        model = torch.empty_like(source, dtype=dtype, device="meta", memory_format=memory_format)
        return mode.upload(source, dtype, model.stride(), is_awaited)
    with mode.fake:
        model = torch.empty_like(source, dtype=dtype, memory_format=memory_format)
    target = torch.empty_strided(tuple(model.shape), model.stride(), dtype=dtype)
    mode.download(source, target, is_awaited)
    return target


def _copy(mode: Mode, func: Any, args: Any, kwargs: Any) -> Any:
    target, source = args[0], args[1]
    is_awaited = not (args[2] if len(args) > 2 else kwargs.get("non_blocking"))
    if is_on_device(target) and is_on_device(source):
        return mode.plain(func, (), args, kwargs)
    if is_on_device(source):
        twin = torch.empty(tuple(source.shape), dtype=source.dtype)
        mode.download(source, twin, is_awaited)
        target.copy_(twin)
    else:
        mode.clock.copy(mode.state.stream, source, is_awaited)
        twin = twin_of(target)
        if twin is not None:
            twin.copy_(source)
    return target


def _number(mode: Mode, func: Any, args: Any, kwargs: Any) -> Any:
    return mode.number(args[0])


def _equal(mode: Mode, func: Any, args: Any, kwargs: Any) -> Any:
    twins = [twin_of(tensor) for tensor in args[:2]]
    mode.synchronize()
    if twins[0] is not None and twins[1] is not None:
        return torch.equal(twins[0], twins[1])
    mode.note_values(args[0], "two tensors are compared, which are taken to be different")
    return False


def _attention_choice(mode: Mode, func: Any, args: Any, kwargs: Any) -> int:
    mask = args[3] if len(args) > 3 else kwargs.get("attn_mask")
    return ("math", "flash", "efficient").index(attention_choice(args[0], args[1], args[2], mask))


def _nothing(mode: Mode, func: Any, args: Any, kwargs: Any) -> None:
    return None


_Special = Callable[[Mode, Any, Any, Any], Any]

_SPECIAL: dict[Any, _Special] = {
    aten._to_copy.default: _to_copy,
    aten.copy_.default: _copy,
    aten._local_scalar_dense.default: _number,
    aten.equal.default: _equal,
    aten._fused_sdp_choice.default: _attention_choice,
    aten._linalg_check_errors.default: _nothing,
    aten.record_stream.default: _nothing,
    **encoder.SPECIAL,
    **shapes.SPECIAL,
}
