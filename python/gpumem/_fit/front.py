"""Replaces what PyTorch's own code decides by the device of a tensor.

That code is not told that fake tensors are on a device (`mode.py` says why), so what it would do on CUDA is done here: casts of `autocast`,
the kernels of attention and dropout, `to` that changes nothing, and groups of tensors for the optimizers.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from typing import Any, Optional

import torch
from torch._subclasses.fake_tensor import FakeTensor

from .values import is_on_device

aten = torch.ops.aten

# ATen/autocast_mode.h: what runs in the narrow type, what in float, and what in the widest of its arguments.
_NARROW = (
    "_convolution", "_convolution.deprecated", "conv1d", "conv1d.padding", "conv2d", "conv2d.padding", "conv3d", "conv3d.padding", "conv_tbc",
    "conv_transpose1d", "conv_transpose2d.input", "conv_transpose3d.input", "convolution", "prelu", "addmm", "addmv", "addr", "matmul",
    "einsum", "mm", "mv", "linalg_vecdot", "linear", "addbmm", "baddbmm", "bmm", "chain_matmul", "linalg_multi_dot",
    "_thnn_fused_lstm_cell", "_thnn_fused_gru_cell", "lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell",
)
_FLOAT = (
    "acos", "asin", "cosh", "erfinv", "exp", "expm1", "log", "log10", "log2", "log1p", "reciprocal", "rsqrt", "sinh", "tan",
    "pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow.Scalar", "softplus", "layer_norm", "native_layer_norm", "group_norm", "frobenius_norm.dim",
    "nuclear_norm", "nuclear_norm.dim", "cosine_similarity", "poisson_nll_loss", "cosine_embedding_loss", "nll_loss", "nll_loss2d",
    "hinge_embedding_loss", "kl_div", "l1_loss", "smooth_l1_loss", "huber_loss", "mse_loss", "margin_ranking_loss", "multilabel_margin_loss",
    "soft_margin_loss", "triplet_margin_loss", "multi_margin_loss", "binary_cross_entropy_with_logits", "dist", "pdist", "cdist", "renorm",
    "logsumexp",
)
_FLOAT_RESULT = (
    "prod", "prod.dim_int", "softmax.int", "log_softmax.int", "cumprod", "cumsum", "sum", "sum.dim_IntList",
)
_WIDEST = (
    "addcdiv", "addcmul", "atan2", "bilinear", "cross", "dot", "vdot", "grid_sampler", "index_put", "tensordot", "scatter_add", "cat", "stack",
)


def install() -> None:
    _properties()
    _Autocast().install()
    _attention()
    _dropout()
    _groups()


def _properties() -> None:
    fake: Any = FakeTensor
    plain = torch.Tensor.to

    def to(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        device, dtype, _, memory_format = torch._C._nn._parse_to(*args, **{name: one for name, one in kwargs.items() if name != "copy"})
        is_copy = kwargs.get("copy", False) or (len(args) > 2 and args[-1] is True and isinstance(args[-2], bool))
        is_here = device is None or device.type == tensor.device.type
        if is_here and dtype in (None, tensor.dtype) and memory_format in (None, torch.preserve_format) and not is_copy:
            return tensor
        return plain(tensor, *args, **kwargs)

    fake.to = to
    fake.is_cuda = property(lambda tensor: tensor.fake_device.type == "cuda")
    fake.is_cpu = property(lambda tensor: tensor.fake_device.type == "cpu")
    fake.is_meta = property(lambda tensor: False)
    fake.type = lambda tensor, dtype=None, **options: (
        torch.Tensor.type(torch.empty(0, dtype=tensor.dtype)).replace("torch.", "torch.cuda.") if dtype is None
        else torch.Tensor.type(tensor, dtype, **options))
    fake.get_device = lambda tensor: tensor.fake_device.index if tensor.fake_device.type == "cuda" else -1
    fake.cpu = lambda tensor, memory_format=torch.preserve_format: plain(tensor, "cpu", memory_format=memory_format)


class _Autocast:
    """The casts of `torch.autocast("cuda")`."""

    def __init__(self) -> None:
        self._key = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCUDA)
        # Parameters in the narrow type, until the outermost `autocast` ends.
        self._cached: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._library: Any = None

    def install(self) -> None:
        self._library = torch.library.Library("aten", "IMPL")
        with warnings.catch_warnings():
            # Each replaces a kernel of PyTorch's, as it should.
            warnings.simplefilter("ignore")
            self._replace_all()
        clear = torch.clear_autocast_cache

        def cleared() -> None:
            self._cached.clear()
            clear()

        torch.clear_autocast_cache = cleared

    def _replace_all(self) -> None:
        for names, chosen in ((_NARROW, self._narrow), (_FLOAT, self._float), (_FLOAT_RESULT, self._float_result), (_WIDEST, self._widest)):
            for name in names:
                self._replace(name, chosen)

    def _replace(self, name: str, chosen: Any) -> None:
        packet, _, overload = name.partition(".")
        operation = getattr(getattr(aten, packet, None), overload or "default", None)
        # Not in every version of PyTorch.
        if operation is None:
            return
        names = [argument.name for argument in operation._schema.arguments]

        def kernel(*args: Any, **kwargs: Any) -> Any:
            with torch._C._ExcludeDispatchKeyGuard(self._key):
                args, kwargs = chosen(names, args, kwargs)
                return operation(*args, **kwargs)

        self._library.impl(name, kernel, "AutocastCUDA", allow_override=True)

    def _narrow(self, _: Any, args: Any, kwargs: Any) -> Any:
        dtype = torch.get_autocast_dtype("cuda")
        return self._cast(args, dtype), self._cast(kwargs, dtype)

    def _float(self, _: Any, args: Any, kwargs: Any) -> Any:
        return self._cast(args, torch.float32), self._cast(kwargs, torch.float32)

    def _float_result(self, names: list[str], args: Any, kwargs: Any) -> Any:
        source = args[0]
        place = names.index("dtype")
        given = args[place] if len(args) > place else kwargs.get("dtype")
        if given is None and _is_eligible(source):
            kwargs = {**kwargs, "dtype": torch.float32}
            args = args[:place]
        return args, kwargs

    def _widest(self, _: Any, args: Any, kwargs: Any) -> Any:
        found = [one for one in _flat([*args, *kwargs.values()]) if _is_eligible(one)]
        if not found or all(one.dtype == found[0].dtype for one in found):
            return args, kwargs
        dtype = torch.float32 if any(one.dtype == torch.float32 for one in found) else found[0].dtype
        return self._cast(args, dtype), self._cast(kwargs, dtype)

    def _cast(self, value: Any, dtype: torch.dtype) -> Any:
        if isinstance(value, torch.Tensor):
            return self._cast_tensor(value, dtype) if _is_eligible(value) and value.dtype != dtype else value
        if isinstance(value, (list, tuple)):
            return type(value)(self._cast(one, dtype) for one in value)
        if isinstance(value, Mapping):
            return {name: self._cast(one, dtype) for name, one in value.items()}
        return value

    def _cast_tensor(self, tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        is_kept = (
            dtype == torch.get_autocast_dtype("cuda") and tensor.dtype == torch.float32 and tensor.requires_grad and tensor.is_leaf
            and not tensor._is_view() and torch.is_autocast_cache_enabled()
        )
        if not is_kept:
            return tensor.to(dtype)
        found = self._cached.get(id(tensor))
        if found is None:
            found = self._cached[id(tensor)] = (tensor, tensor.to(dtype))
        return found[1]


def _flat(values: Any) -> list[Any]:
    return [one for value in values for one in (value if isinstance(value, (list, tuple)) else (value,))]


def _is_eligible(value: Any) -> bool:
    return is_on_device(value) and value.dtype.is_floating_point and value.dtype != torch.float64


def attention_choice(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: Optional[torch.Tensor]) -> str:
    """The kernel that PyTorch would choose (transformers/cuda/sdp_utils.cpp): flash, the memory-efficient one, or the sum of its parts."""
    backends = torch.backends.cuda
    width = query.shape[-1]
    is_narrow = query.dtype in (torch.float16, torch.bfloat16)
    is_even = query.dim() == 4 and width == key.shape[-1] == value.shape[-1]
    if backends.flash_sdp_enabled() and is_narrow and is_even and mask is None and width <= 256 and torch.cuda.get_device_capability()[0] >= 8:
        return "flash"
    is_aligned = width % (8 if is_narrow else 4) == 0 and value.shape[-1] % (8 if is_narrow else 4) == 0
    if backends.mem_efficient_sdp_enabled() and query.dim() == 4 and is_aligned and query.dtype != torch.float64:
        return "efficient"
    return "math"


def _attention() -> None:
    plain = torch.nn.functional.scaled_dot_product_attention

    def attention(query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, is_causal: bool = False,
                  scale: Optional[float] = None, enable_gqa: bool = False) -> Any:
        if not is_on_device(query):
            return plain(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
        if torch.is_autocast_enabled("cuda"):
            dtype = torch.get_autocast_dtype("cuda")
            query, key, value = (one.to(dtype) if _is_eligible(one) else one for one in (query, key, value))
            if attn_mask is not None and _is_eligible(attn_mask):
                attn_mask = attn_mask.to(dtype)
        # What the operation is made of is not cast again.
        with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCUDA)):
            return chosen(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)

    def chosen(query: Any, key: Any, value: Any, attn_mask: Any, dropout_p: float, is_causal: bool, scale: Optional[float],
               enable_gqa: bool) -> Any:
        choice = attention_choice(query, key, value, attn_mask)
        if choice == "math":
            return _plain_attention(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
        if enable_gqa and key.shape[1] != query.shape[1] and choice == "efficient":
            repeats = query.shape[1] // key.shape[1]
            key, value = key.repeat_interleave(repeats, 1), value.repeat_interleave(repeats, 1)
        if choice == "flash":
            width = query.shape[-1]
            scale = 1.0 / math.sqrt(width) if scale is None else scale
            if width % 8:
                query, key, value = (torch.nn.functional.pad(one, (0, 8 - width % 8)) for one in (query, key, value))
            out = aten._scaled_dot_product_flash_attention(query, key, value, dropout_p, is_causal, False, scale=scale)[0]
            return out[..., :width] if out.shape[-1] != width else out
        if attn_mask is not None:
            if attn_mask.dtype == torch.bool:
                attn_mask = torch.zeros_like(attn_mask, dtype=query.dtype).masked_fill_(attn_mask.logical_not(), -math.inf)
            attn_mask = attn_mask.expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2])
        needs_gradient = torch.is_grad_enabled() and any(one.requires_grad for one in (query, key, value))
        return aten._scaled_dot_product_efficient_attention(query, key, value, attn_mask, needs_gradient, dropout_p, is_causal, scale=scale)[0]

    torch.nn.functional.scaled_dot_product_attention = attention
    torch._C._nn.scaled_dot_product_attention = attention


def _plain_attention(query: Any, key: Any, value: Any, mask: Any, dropout_p: float, is_causal: bool, scale: Optional[float],
                     enable_gqa: bool) -> Any:
    """`_scaled_dot_product_attention_math` (transformers/attention.cpp), which adds the mask to fake tensors in another way than to others.
    Narrow types are computed in float."""
    dtype = query.dtype
    if dtype in (torch.float16, torch.bfloat16) and not torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed():
        query, key, value = query.float(), key.float(), value.float()
    factor = math.sqrt(1.0 / math.sqrt(query.shape[-1]) if scale is None else abs(scale))
    query = query * (-factor if scale is not None and scale < 0.0 else factor)
    if is_causal:
        mask = torch.ones((query.shape[-2], key.shape[-2]), dtype=torch.bool, device="cuda").tril()
    if mask is not None and mask.dtype == torch.bool:
        mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill_(mask.logical_not(), -math.inf)
    if enable_gqa and key.shape[-3] != query.shape[-3]:
        repeats = query.shape[-3] // key.shape[-3]
        key, value = key.repeat_interleave(repeats, -3), value.repeat_interleave(repeats, -3)
    scores = query @ (key.transpose(-2, -1) * factor)
    if mask is not None:
        scores.add_(mask)
    weights = aten._safe_softmax(scores, -1)
    del scores
    dropped = torch.dropout(weights, dropout_p, True) if dropout_p > 0.0 else weights
    result = (dropped @ value).to(dtype)
    # The operation returns the weights too.
    weights.to(dtype)
    return result


def _dropout() -> None:
    plain, plain_low = torch.nn.functional.dropout, torch.dropout

    def is_fused(source: Any, p: float, training: bool) -> bool:
        return is_on_device(source) and training and 0.0 < p < 1.0 and source.numel() > 0

    def dropout(input: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
        if not inplace and is_fused(input, p, training):
            return torch.native_dropout(input, p, True)[0]
        return plain(input, p, training, inplace)

    def low(input: Any, p: float, train: bool) -> Any:
        return torch.native_dropout(input, p, True)[0] if is_fused(input, p, train) else plain_low(input, p, train)

    torch.nn.functional.dropout = dropout
    torch.dropout = low


def _groups() -> None:
    """Optimizers work on lists of tensors of a device and a type; without these types they would take them one by one."""
    from torch.optim import optimizer

    optimizer._foreach_supported_types.append(FakeTensor)
    if hasattr(torch.utils._foreach_utils, "_foreach_supported_types"):
        torch.utils._foreach_utils._foreach_supported_types.append(FakeTensor)

    def group(lists: Any, with_indices: bool = False) -> Any:
        found: dict[Any, Any] = {}
        for index, first in enumerate(lists[0]):
            key = (first.device, first.dtype)
            if key not in found:
                found[key] = ([[] for _ in lists], [])
            for one, whole in zip(found[key][0], lists):
                if whole:
                    one.append(whole[index])
            found[key][1].append(index)
        return found

    torch._C._group_tensors_by_device_and_dtype = group
