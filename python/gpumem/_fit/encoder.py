"""Layers of encoders in inference, which PyTorch runs as one operation without a rule for sizes: as the sequence that CUDA computes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Optional

import torch

from .front import attention_choice

if TYPE_CHECKING:
    from .mode import Mode

aten = torch.ops.aten
functional = torch.nn.functional


def _layer(mode: Mode, func: Any, args: Any, kwargs: Any) -> torch.Tensor:
    """transformers/transformer.cpp. A tensor is freed where the next one takes its name."""
    (source, width, heads, qkv_weight, qkv_bias, out_weight, out_bias, use_gelu, norm_first, epsilon, norm_weight_1, norm_bias_1,
     norm_weight_2, norm_bias_2, up_weight, up_bias, down_weight, down_bias) = args[:18]
    mask = _argument(args, kwargs, 18, "mask")

    def norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return aten.native_layer_norm(x, [width], weight, bias, epsilon)[0]

    with mode:
        x = norm(source, norm_weight_1, norm_bias_1) if norm_first else source
        x = _attend(x, x, x, heads, qkv_weight, qkv_bias, out_weight, out_bias, mask, False, True)[0]
        x.add_(source)
        if not norm_first:
            x = norm(x, norm_weight_1, norm_bias_1)
        before = x
        if norm_first:
            x = norm(x, norm_weight_2, norm_bias_2)
        flat = x.view(-1, width)
        x = aten._addmm_activation(up_bias, flat, up_weight.t(), use_gelu=use_gelu)
        del flat
        x = torch.addmm(down_bias, x, down_weight.t()).view(source.shape)
        x.add_(before)
        return x if norm_first else norm(x, norm_weight_2, norm_bias_2)


def _attention(mode: Mode, func: Any, args: Any, kwargs: Any) -> tuple[torch.Tensor, torch.Tensor]:
    query, key, value, _, heads, qkv_weight, qkv_bias, out_weight, out_bias = args[:9]
    mask = _argument(args, kwargs, 9, "mask")
    needs_weights, is_mean = (_argument(args, kwargs, index, name) for index, name in ((10, "need_weights"), (11, "average_attn_weights")))
    with mode:
        return _attend(
            query, key, value, heads, qkv_weight, qkv_bias, out_weight, out_bias, mask, needs_weights is not False, is_mean is not False)


def _attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, heads: int, qkv_weight: torch.Tensor, qkv_bias: torch.Tensor,
            out_weight: torch.Tensor, out_bias: torch.Tensor, mask: Optional[torch.Tensor], needs_weights: bool,
            is_mean: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """transformers/cuda/attention.cu."""
    batch, rows, width = query.shape
    is_own = query is key and key is value
    if is_own and mask is None and not needs_weights and width // heads % 8 == 0:
        split = query.view(batch, rows, heads, -1).transpose(1, 2)
        if attention_choice(split, split, split, None) != "math":
            parts = functional.linear(query, qkv_weight, qkv_bias).chunk(3, -1)
            q, k, v = (part.view(batch, rows, heads, -1).transpose(1, 2) for part in parts)
            out = functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, rows, width)
            return functional.linear(out, out_weight, out_bias), query.new_empty(0)
    if is_own:
        projected = [query.view(-1, width) @ qkv_weight.t()]
    else:
        projected = [one.reshape(-1, width) @ weight.t() for one, weight in zip((query, key, value), qkv_weight.chunk(3))]
    # Queries, keys and values are split among the heads in one copy, and the result is written over the queries.
    split = query.new_empty((3 * batch * heads, rows, width // heads)) if is_own else query.new_empty((3, query.numel()))
    del projected
    scores = query.new_empty((batch, heads, rows, key.shape[1]))
    # A mask changes no size.
    weights = torch.softmax(scores, -1)
    del scores
    if not needs_weights:
        del weights
    out = functional.linear(query.new_empty((batch, rows, width)), out_weight, out_bias)
    del split
    if not needs_weights:
        return out, query.new_empty(0)
    return out, weights.mean(1) if is_mean else weights


def _argument(args: Any, kwargs: Any, index: int, name: str) -> Any:
    return args[index] if len(args) > index else kwargs.get(name)


SPECIAL: dict[Any, Callable[[Any, Any, Any, Any], Any]] = {
    aten._transformer_encoder_layer_fwd.default: _layer,
    aten._native_multi_head_attention.default: _attention,
}
