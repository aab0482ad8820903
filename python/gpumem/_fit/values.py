"""Values of fake tensors, where they are known.

Shapes may depend on values: `nonzero`, `unique`, a mask as an index. Integers that come from the host are therefore followed: each fake tensor
has a twin on the host as long as all of its inputs have one. Choices that a model makes of unknown values (`topk`, `argmax`) are drawn evenly,
and marked as made up.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Optional

import torch
from torch._subclasses.fake_tensor import FakeTensor

aten = torch.ops.aten

# The largest tensor whose integers are followed, and the largest of other numbers that come from the host or a constant.
_FOLLOWED_COUNT = 1 << 25
_SMALL_COUNT = 1 << 10
_ATTRIBUTE = "_gpumem_value"


class Cell:
    """What tensors share that share memory."""

    __slots__ = ("is_valid", "made_up")

    def __init__(self, made_up: str = "") -> None:
        self.is_valid = True
        # What was made up; empty if the values are those of the program.
        self.made_up = made_up


class Value:
    __slots__ = ("cell", "twin")

    def __init__(self, twin: torch.Tensor, cell: Cell) -> None:
        self.twin = twin
        self.cell = cell


def is_on_device(value: Any) -> bool:
    return isinstance(value, FakeTensor) and value.fake_device.type == "cuda"


def tensors(values: Any) -> Iterator[torch.Tensor]:
    """The tensors in arguments or results."""
    if isinstance(values, torch.Tensor):
        yield values
    elif isinstance(values, (list, tuple)):
        for value in values:
            yield from tensors(value)
    elif isinstance(values, dict):
        for value in values.values():
            yield from tensors(value)


def value_of(tensor: Any) -> Optional[Value]:
    found = getattr(tensor, _ATTRIBUTE, None)
    if found is None or not found.cell.is_valid:
        return None
    return found


def twin_of(tensor: torch.Tensor) -> Optional[torch.Tensor]:
    """A tensor on the host with the values of a fake one, if they are known. A tensor of the host is its own."""
    if not isinstance(tensor, FakeTensor):
        return tensor
    value = value_of(tensor)
    return None if value is None else value.twin


def made_up(tensor: torch.Tensor) -> str:
    """What was made up in the values of a tensor."""
    value = value_of(tensor)
    return "" if value is None else value.cell.made_up


def set_value(tensor: torch.Tensor, twin: torch.Tensor, cell: Optional[Cell] = None) -> None:
    setattr(tensor, _ATTRIBUTE, Value(twin, cell or Cell()))


def is_small(tensor: torch.Tensor) -> bool:
    """True if the values of a tensor from the host or of a constant are worth following."""
    is_counted = not (tensor.dtype.is_floating_point or tensor.dtype.is_complex)
    return tensor.numel() <= (_FOLLOWED_COUNT if is_counted else _SMALL_COUNT)


class Values:
    """Follows operations with the twins of their arguments."""

    def __init__(self) -> None:
        # Apart from the program's own generator, whose numbers must not change.
        self._random = torch.Generator().manual_seed(0)

    def uploaded(self, tensor: torch.Tensor, source: torch.Tensor) -> None:
        """A fake tensor is a copy of one of the host."""
        if is_small(source):
            set_value(tensor, source.detach().to(dtype=tensor.dtype, copy=True))

    def invalidate(self, tensor: Any) -> None:
        """The values of a tensor, and of all that share its memory, are not known any more."""
        found = getattr(tensor, _ATTRIBUTE, None)
        if found is not None:
            found.cell.is_valid = False

    def follow(self, func: Any, mutated: Sequence[int], args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> None:
        """Gives the results of an operation their values, if those of its arguments are known."""
        outs = [tensor for tensor in tensors(result) if is_on_device(tensor)]
        inputs = list(tensors(args)) + [one for name, one in kwargs.items() if name != "out" for one in tensors(one)]
        if inputs and any(twin_of(tensor) is None for tensor in inputs):
            self._unknown(func, mutated, args, kwargs, outs)
            return
        if not outs and not mutated:
            return
        is_random = torch.Tag.nondeterministic_seeded in func.tags
        if not inputs and not all(is_small(tensor) for tensor in outs):
            return
        if sum(tensor.numel() for tensor in outs) > _FOLLOWED_COUNT or func in _NOT_FOLLOWED:
            self._unknown(func, mutated, args, kwargs, outs)
            return
        sources = [source for tensor in inputs if (source := value_of(tensor)) is not None]
        note = next((source.cell.made_up for source in sources if source.cell.made_up), "")
        if is_random:
            note = note or "random numbers of the device"
        try:
            with torch.no_grad():
                found = list(tensors(self._on_host(func, args, kwargs)))
        except (RuntimeError, NotImplementedError, IndexError, ValueError):
            # The host has no such operation, or the made-up values do not suit it.
            self._unknown(func, mutated, args, kwargs, outs)
            return
        if len(found) != len(outs):
            return
        by_storage = {source.twin.untyped_storage()._cdata: source.cell for source in sources}
        for tensor, twin in zip(outs, found):
            if twin.shape == tensor.shape:
                shared = by_storage.get(twin.untyped_storage()._cdata)
                set_value(tensor, twin, shared or Cell(note))
                if shared is not None and note:
                    shared.made_up = note

    def _on_host(self, func: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
        named = {name: twins(value) for name, value in kwargs.items()}
        if named.get("device") is not None:
            named["device"] = torch.device("cpu")
        named.pop("pin_memory", None)
        if torch.Tag.nondeterministic_seeded in func.tags and "generator" in str(func._schema):
            named["generator"] = self._random
        return func(*twins(args), **named)

    def _unknown(self, func: Any, mutated: Sequence[int], args: tuple[Any, ...], kwargs: Mapping[str, Any], outs: list[torch.Tensor]) -> None:
        for index in mutated:
            for tensor in tensors(args[index] if index < len(args) else ()):
                self.invalidate(tensor)
        for tensor in tensors(kwargs.get("out", ())):
            self.invalidate(tensor)
        draw = _CHOICES.get(func)
        if draw is not None:
            draw(self, args, outs)

    # Choices of unknown values.

    def _topk(self, args: tuple[Any, ...], outs: list[torch.Tensor]) -> None:
        source, count = args[0], args[1]
        dim = args[2] if len(args) > 2 else -1
        if source.numel() <= 1 << 22 and source.dim() > 0:
            drawn = torch.rand(source.shape, generator=self._random).topk(count, dim).indices
            set_value(outs[1], drawn, Cell("the choice of topk, drawn evenly"))

    def _argmax(self, args: tuple[Any, ...], outs: list[torch.Tensor]) -> None:
        source, out = args[0], outs[-1]
        dim = args[1] if len(args) > 1 else None
        size = source.numel() if dim is None else (source.shape[dim] if source.dim() else 1)
        if size > 0 and out.numel() <= _FOLLOWED_COUNT:
            drawn = torch.randint(size, tuple(out.shape), generator=self._random)
            set_value(out, drawn, Cell("the choice of argmax, drawn evenly"))

    def _multinomial(self, args: tuple[Any, ...], outs: list[torch.Tensor]) -> None:
        drawn = torch.randint(args[0].shape[-1], tuple(outs[0].shape), generator=self._random)
        set_value(outs[0], drawn, Cell("the choice of multinomial, drawn evenly"))

    def _finite(self, args: tuple[Any, ...], outs: list[torch.Tensor], is_equal: bool) -> None:
        """`x == x` and `abs(x) != inf`, of which `isfinite`, `isnan` and `isinf` are made: all numbers are finite."""
        is_asked = args[1] is args[0] or (isinstance(args[1], float) and math.isinf(args[1]))
        if is_asked and outs and outs[0].numel() <= _SMALL_COUNT:
            answer = is_equal == (args[1] is args[0])
            set_value(outs[0], torch.full(tuple(outs[0].shape), answer), Cell("all numbers are finite"))


def twins(value: Any) -> Any:
    """Arguments with the twins of their tensors."""
    if isinstance(value, torch.Tensor):
        return twin_of(value)
    if isinstance(value, (list, tuple)):
        return type(value)(twins(one) for one in value) if type(value) in (list, tuple) else [twins(one) for one in value]
    return value


_Draw = Callable[[Values, tuple[Any, ...], list[torch.Tensor]], None]

_CHOICES: dict[Any, _Draw] = {
    aten.topk.default: Values._topk,
    aten.argmax.default: Values._argmax,
    aten.argmin.default: Values._argmax,
    aten.max.dim: Values._argmax,
    aten.min.dim: Values._argmax,
    aten.multinomial.default: Values._multinomial,
    aten.eq.Tensor: lambda values, args, outs: values._finite(args, outs, True),
    aten.ne.Tensor: lambda values, args, outs: values._finite(args, outs, False),
    aten.eq.Scalar: lambda values, args, outs: values._finite(args, outs, True),
    aten.ne.Scalar: lambda values, args, outs: values._finite(args, outs, False),
}

# Work that no shape depends on.
_NOT_FOLLOWED = frozenset((
    aten.mm.default, aten.addmm.default, aten.bmm.default, aten.baddbmm.default, aten.convolution.default, aten.empty.memory_format,
    aten.empty_strided.default, aten.empty_like.default, aten.new_empty.default, aten.new_empty_strided.default,
))
