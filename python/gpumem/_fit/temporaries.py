"""Memory that operations take inside, which no result shows: temporaries of kernels, and workspaces of libraries.

The sizes follow the sources of PyTorch (files below aten/src/ATen/native/cuda), except cuDNN's, which are a rule that was found in recorded programs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

aten = torch.ops.aten


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _up(count: int, to: int) -> int:
    return -(-count // to) * to


def _embedding_backward(args: tuple[Any, ...]) -> int:
    """Embedding.cu, EmbeddingBackwardKernel.cu: sorted indices with their places, and sums by segment in float."""
    gradient, indices = args[0], args[1]
    count, width = indices.numel(), gradient.shape[-1]
    # Below, a kernel without temporaries; deterministic algorithms take the sort as well.
    if count <= 3072 and not torch.are_deterministic_algorithms_enabled():
        return 0
    sort_bytes = 4 * count * indices.element_size() + radix_bytes(count, 2 * indices.element_size())
    segments = count // 10 + min(count, args[2])
    partial_bytes = 0 if gradient.dtype == torch.float64 else segments * _up(width, 32) * 4
    return max(sort_bytes, 2 * count * indices.element_size() + partial_bytes)


# Of pairs of 8 bytes each (cub's dispatch_radix_sort.cuh). Tiles of smaller ones are not much larger.
_SORTED_TILE = 4608


def radix_bytes(count: int, pair_bytes: int) -> int:
    """cub's radix sort: a second copy of keys and values, sums of 256 digits for each tile, and histograms."""
    return count * pair_bytes + -(-count // _SORTED_TILE) * 256 * 4 + (1 << 14)


def _sort(args: tuple[Any, ...]) -> int:
    """Sort.cpp, Sort.cu: keys of several segments carry the number of their segment."""
    source = args[0]
    count = source.numel()
    dim = args[1] if len(args) > 1 and isinstance(args[1], int) and not isinstance(args[1], bool) else -1
    length = source.shape[dim] if source.dim() else 1
    if length <= 1024:
        return 0
    own_bytes = count * (source.element_size() + 8)
    if length < count:
        # Segments: keys, values and segment numbers twice.
        return own_bytes + 2 * count * 8 + radix_bytes(count, source.element_size() + 16)
    return radix_bytes(count, source.element_size() + 8) + count * 8


def _index_put(args: tuple[Any, ...]) -> int:
    """Indexing.cu, index_put_with_sort_kernel: sums into repeated places sort them first."""
    accumulate = len(args) > 3 and bool(args[3])
    if not accumulate and not torch.are_deterministic_algorithms_enabled():
        return 0
    indices = [index for index in args[1] if isinstance(index, torch.Tensor)]
    if not indices:
        return 0
    count = torch.broadcast_shapes(*(index.shape for index in indices)).numel()
    return 4 * count * 8 + radix_bytes(count, 16)


def _index_add(args: tuple[Any, ...]) -> int:
    if not torch.are_deterministic_algorithms_enabled():
        return 0
    return 4 * args[2].numel() * 8 + radix_bytes(args[2].numel(), 16)


def _flash_backward(args: tuple[Any, ...]) -> int:
    """flash_api.cpp: the gradient of the queries is summed in float, with rows padded to 128 and widths to 32; and a number a row."""
    query, key = args[1], args[2]
    batch, heads, rows, width = query.shape
    padded = batch * heads * _up(rows, 128)
    repeated = 0 if key.shape[1] == heads else 2 * batch * heads * key.shape[2] * width * key.element_size()
    return padded * _up(width, 32) * 4 + padded * 4 + repeated


def _efficient_backward(args: tuple[Any, ...]) -> int:
    """attention_backward.cu: sums of rows, and gradients in float for narrow types."""
    query = args[1]
    batch, heads, rows, width = query.shape
    sums = batch * heads * _up(rows, 32) * 4
    return sums + (0 if query.dtype == torch.float32 else batch * heads * _up(rows, 64) * _up(width, 32) * 4)


def _sum(args: tuple[Any, ...]) -> int:
    """A sum of rows, such as the gradient of a bias: sums of parts in float, if the blocks of threads share an output (Reduce.cuh)."""
    source, dims = args[0], args[1] if len(args) > 1 else None
    if not isinstance(dims, (list, tuple)) or not dims or not source.is_contiguous() or source.numel() == 0:
        return 0
    reduced = sorted(dim % source.dim() for dim in dims)
    inputs = math.prod(source.shape[dim] for dim in reduced)
    return reduction_bytes(source.numel() // inputs, inputs, reduced[-1] == source.dim() - 1, source.element_size())


def reduction_bytes(outputs: int, inputs: int, is_innermost: bool, element_bytes: int) -> int:
    """The buffer of a reduction to `outputs` numbers, each of `inputs` (setReduceConfig in Reduce.cuh)."""
    device = torch.cuda.get_device_properties(0)
    wide = 4 if not is_innermost and outputs % 4 == 0 and element_bytes <= 4 else 1
    dim0, dim1 = (inputs, outputs) if is_innermost else (outputs // wide, inputs)
    most = 512 // wide
    powers = [min(1 << (max(size, 1).bit_length() - 1), most) for size in (dim0, dim1)]
    width = min(powers[0], 32)
    height = min(powers[1], most // width)
    width = min(powers[0], most // height)
    step = width if is_innermost else 1
    values = -(-inputs // step)
    if values < min(height * 16, 256):
        return 0
    values = -(-inputs // (step * height))
    grid = -(-(outputs // wide) // (1 if is_innermost else width))
    target = device.multi_processor_count * (device.max_threads_per_multi_processor // (width * height))
    if values < 256 or grid > target:
        return 0
    blocks = max(min(-(-target // grid), -(-values // 16)), -(-values // 256))
    return 4 * outputs * blocks * (1 if is_innermost else width * wide) if blocks > 1 else 0


def _group_norm(args: tuple[Any, ...]) -> int:
    """group_norm_kernel.cu: a scale and an offset for each image and channel."""
    return 2 * args[0].shape[0] * args[0].shape[1] * 4


def _convolution(args: tuple[Any, ...]) -> int:
    """cuDNN computes with channels last, and turns tensors around in its workspace."""
    source, weight = args[0], args[1]
    return _turned_bytes(source, weight, _convolution_out_bytes(source, weight, args[3:]))


def _convolution_backward(args: tuple[Any, ...]) -> int:
    gradient, source, weight = args[0], args[1], args[2]
    return _turned_bytes(source, weight, _bytes(gradient)) + weight.numel() * 4


def _turned_bytes(source: torch.Tensor, weight: torch.Tensor, out_bytes: int) -> int:
    if source.dim() != 4 or source.is_contiguous(memory_format=torch.channels_last):
        # Widths of narrow types are padded to 8.
        missing = _up(weight.shape[1], 8) / weight.shape[1]
        return 0 if source.dtype == torch.float32 or missing == 1.0 else int((_bytes(source) + _bytes(weight)) * missing)
    return _bytes(source) + _bytes(weight) + out_bytes


def _convolution_out_bytes(source: torch.Tensor, weight: torch.Tensor, rest: tuple[Any, ...]) -> int:
    strides, padding, dilation, is_transposed = rest[0], rest[1], rest[2], rest[3]
    if is_transposed:
        return _bytes(source) * 4
    count = source.shape[0] * weight.shape[0]
    for index, size in enumerate(source.shape[2:]):
        at = lambda values: values[index] if index < len(values) else values[-1]
        count *= (size + 2 * at(padding) - at(dilation) * (weight.shape[2 + index] - 1) - 1) // at(strides) + 1
    return count * source.element_size()


# What an operation takes inside, of its arguments by position.
TEMPORARIES: dict[Any, Callable[[tuple[Any, ...]], int]] = {
    aten.embedding_dense_backward.default: _embedding_backward,
    aten.sort.default: _sort,
    aten.sort.stable: lambda args: _sort((args[0], *args[2:])) if len(args) > 1 else _sort(args),
    aten.index_put_.default: _index_put,
    aten.index_put.default: _index_put,
    aten._index_put_impl_.default: _index_put,
    aten.index_add.default: _index_add,
    aten.index_add_.default: _index_add,
    aten._scaled_dot_product_flash_attention_backward.default: _flash_backward,
    aten._scaled_dot_product_efficient_attention_backward.default: _efficient_backward,
    aten.sum.dim_IntList: _sum,
    aten.mean.dim: _sum,
    aten.native_group_norm.default: _group_norm,
    aten.convolution.default: _convolution,
    aten.convolution_backward.default: _convolution_backward,
}

# Operations that use cuBLAS, whose workspace stays.
PRODUCTS = frozenset((
    aten.mm.default, aten.addmm.default, aten.bmm.default, aten.baddbmm.default, aten.addbmm.default, aten.mv.default, aten.addmv.default,
    aten.dot.default, aten.vdot.default, aten._scaled_mm.default, aten._addmm_activation.default,
    aten.mm.out, aten.addmm.out, aten.bmm.out, aten.baddbmm.out, aten.addmv.out,
))
