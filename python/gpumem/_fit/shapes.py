"""Operations whose results have shapes that depend on values: of known values the real shape, else an assumption that the answer states."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Optional

import torch

from .temporaries import radix_bytes
from .values import Cell, is_on_device, made_up, set_value, tensors, twin_of, twins

if TYPE_CHECKING:
    from .mode import Mode

aten = torch.ops.aten


def _known(mode: Mode, func: Any, args: Any, kwargs: Any) -> Optional[list[torch.Tensor]]:
    """The results of an operation, if the values of its arguments are known."""
    sources = list(tensors([*args, *kwargs.values()]))
    if any(twin_of(tensor) is None for tensor in sources):
        return None
    found = func(*twins(args), **{name: twins(value) for name, value in kwargs.items()})
    note = _say(mode, sources)
    results = []
    for twin in tensors(found):
        made = mode.make(twin.shape, twin.dtype, twin.stride(), func.name().split("::")[1].split(".")[0])
        set_value(made, twin, Cell(note))
        results.append(made)
    return results


def _assumed(mode: Mode, what: str, count: int, of: str) -> int:
    """A size that is not known: a share of the most that it can be."""
    share = mode.share
    extent = "all" if share == 1.0 else f"{100 * share:g} %"
    mode.notes.add(f"the size of {what} depends on values: {extent} of its {of} are taken", mode.lines.current())
    return int(count * share)


def nonzero(mode: Mode, func: Any, args: Any, kwargs: Any) -> Any:
    mode.synchronize()
    known = _known(mode, func, args[:1], {})
    if known is not None:
        mode.temporary(1 << 16, "nonzero")
        return known[0]
    source = args[0]
    count = _assumed(mode, "nonzero", source.numel(), "elements")
    # CUDA's kernel writes one row a dimension.
    return mode.make((count, source.dim()), torch.int64, (1, max(count, 1)), "nonzero")


def _select(mode: Mode, indices: Any) -> list[Any]:
    """Masks as indices become the places where they are true."""
    found: list[Any] = []
    for index in indices:
        if isinstance(index, torch.Tensor) and index.dtype in (torch.bool, torch.uint8):
            if not is_on_device(index):
                index = mode.upload(index, index.dtype, index.stride())
            places = nonzero(mode, aten.nonzero.default, (index,), {})
            with mode:
                found.extend(places.select(1, dim) for dim in range(index.dim()))
        else:
            found.append(index)
    return found


def index(mode: Mode, func: Any, args: Any, kwargs: Any) -> Any:
    return mode.plain(func, (), (args[0], _select(mode, args[1]), *args[2:]), kwargs)


def masked_select(mode: Mode, func: Any, args: Any, kwargs: Any) -> Any:
    with mode:
        source, mask = torch.broadcast_tensors(args[0], args[1])
        return source[mask]


def unique(mode: Mode, func: Any, args: Any, kwargs: Any) -> Any:
    mode.synchronize()
    name = func.name().split("::")[1].split(".")[0].strip("_").rstrip("2")
    dim = _unique_dim(name, args, kwargs)
    return _unique_rows(mode, func, args, kwargs, name, dim) if dim is not None else _unique_elements(mode, func, args, kwargs, name)


def _unique_elements(mode: Mode, func: Any, args: Any, kwargs: Any, name: str) -> Any:
    """UniqueCub.cu. Values and counts are shortened at the end, and keep the memory of as many elements as the source has."""
    source, most = args[0], args[0].numel()
    is_sorted = "consecutive" in name
    first = 1 if is_sorted else 2
    has_inverse, has_counts = (bool(_argument(args, kwargs, first + index, key)) for index, key in enumerate(("return_inverse", "return_counts")))
    long = lambda count: mode.make((count,), torch.int64, None, name)
    kept = []
    if not is_sorted:
        kept = [mode.make((most,), source.dtype, None, name), long(most if has_inverse else 0)]
        places = long(most if has_inverse else 0)
        mode.temporary(radix_bytes(most, source.element_size() + (8 if has_inverse else 0)), name)
        del places
    inverse = mode.make(source.shape if has_inverse else (0,), torch.int64, None, name)
    if has_inverse:
        changes = [long(most), *([] if is_sorted else [long(most)])]
        mode.temporary(1 << 16, name)
        del changes
    values = mode.make((most,), source.dtype, None, name)
    counts = long(most if has_counts else 0)
    mode.temporary(1 << 16, name)
    del kept
    found = _unique_of_known(mode, func, args, kwargs)
    count = _assumed(mode, name, most, "elements") if found is None else found[0].shape[0]
    with mode:
        results = [values[:count], inverse, counts[:count] if has_counts else counts]
    for result, twin in zip(results, found or ()):
        set_value(result, twin, Cell(_note(args)))
    return tuple(results)


def _unique_rows(mode: Mode, func: Any, args: Any, kwargs: Any, name: str, dim: int) -> Any:
    source = args[0]
    most = source.shape[dim]
    # Places, and the places that are sorted with the values; behind the sort, the places by value.
    if "consecutive" not in name:
        mode.temporary(most * (source.element_size() + 16) + radix_bytes(most, source.element_size() + 8), name)
    found = _unique_of_known(mode, func, args, kwargs)
    if found is None:
        count = _assumed(mode, name, most, "elements")
        known: list[Any] = [None] * 3
        shapes = [tuple(count if one == dim else size for one, size in enumerate(source.shape)), (most,), (count,)]
    else:
        known = list(found)
        shapes = [tuple(twin.shape) for twin in found]
    results = []
    for index, (shape, twin) in enumerate(zip(shapes, known)):
        result = mode.make(shape, source.dtype if index == 0 else torch.int64, None, name)
        if twin is not None:
            set_value(result, twin, Cell(_note(args)))
        results.append(result)
    mode.temporary(most * (16 if "consecutive" in name else source.element_size() + 16), name)
    return tuple(results)


def _unique_dim(name: str, args: Any, kwargs: Any) -> Any:
    dim = args[1] if name in ("unique_dim", "unique_dim_consecutive") else _argument(args, kwargs, 3, "dim") if name == "unique_consecutive" else None
    return None if dim is None else dim % args[0].dim()


def _unique_of_known(mode: Mode, func: Any, args: Any, kwargs: Any) -> Optional[list[torch.Tensor]]:
    if twin_of(args[0]) is None:
        return None
    _say(mode, args)
    return list(func(*twins(args), **kwargs))


def _note(args: Any) -> str:
    return next((text for tensor in tensors(args) if is_on_device(tensor) and (text := made_up(tensor))), "")


def _say(mode: Mode, args: Any) -> str:
    note = _note(args)
    if note:
        mode.notes.add(f"a size depends on {note}", mode.lines.current())
    return note


def _argument(args: Any, kwargs: Any, index: int, name: str) -> Any:
    return args[index] if len(args) > index else kwargs.get(name)


def repeat_interleave(mode: Mode, func: Any, args: Any, kwargs: Any) -> Any:
    size = kwargs.get("output_size")
    known = _known(mode, func, args, kwargs)
    if known is not None:
        return known[0]
    if size is None:
        mode.synchronize()
        size = args[0].numel()
        mode.notes.add("the size of repeat_interleave depends on values: each is taken once", mode.lines.current())
    return mode.make((size,), torch.int64, None, "repeat_interleave")


def bincount(mode: Mode, func: Any, args: Any, kwargs: Any) -> Any:
    mode.synchronize()
    known = _known(mode, func, args, kwargs)
    if known is not None:
        return known[0]
    weights, least = _argument(args, kwargs, 1, "weights"), _argument(args, kwargs, 2, "minlength") or 0
    mode.notes.add("the size of bincount depends on values: minlength is taken", mode.lines.current())
    return mode.make((max(least, 1),), torch.int64 if weights is None else weights.dtype, None, "bincount")


SPECIAL: dict[Any, Callable[[Any, Any, Any, Any], Any]] = {
    aten.nonzero.default: nonzero,
    aten.index.Tensor: index,
    aten.index_put_.default: index,
    aten.index_put.default: index,
    aten._index_put_impl_.default: index,
    aten._unsafe_index.Tensor: index,
    aten.masked_select.default: masked_select,
    aten._unique2.default: unique,
    aten.unique_dim.default: unique,
    aten.unique_consecutive.default: unique,
    aten.unique_dim_consecutive.default: unique,
    aten.repeat_interleave.Tensor: repeat_interleave,
    aten.bincount.default: bincount,
}
