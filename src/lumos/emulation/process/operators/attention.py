"""Which kernel torch would choose for scaled dot-product attention on an NVIDIA device.

The rule is that of `sdp::select_sdp_backend` in ATen/native/transformers/cuda/sdp_utils.cpp with torch's default order: flash attention
where it can, memory-efficient attention where that can, else the plain formula. A build of torch without the device cannot be asked.
"""

from __future__ import annotations

from typing import Any

import torch

_ATTENTION = torch.ops.aten.scaled_dot_product_attention.default
_HALF = (torch.float16, torch.bfloat16)

#: The largest head that flash attention has a kernel for, and the multiple of elements to which both kernels want heads padded.
_LARGEST_HEAD = 256
_MULTIPLE = 8


def chooses(func: Any, device: str) -> bool:
    """Whether this is the operator that chooses, on a device that has the choice."""
    return func is _ATTENTION and device == "cuda"


def run(
    query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, is_causal: bool = False, *,
    scale: float | None = None, enable_gqa: bool = False,
) -> Any:  # fmt: skip
    """Attention of [batch, heads, tokens, size] tensors on the kernel that torch would choose."""
    if _flash(query, key, value, attn_mask):
        return _by_flash(query, key, value, dropout_p, is_causal, scale)
    if enable_gqa and key.shape[-3] != query.shape[-3]:
        key, value = (each.repeat_interleave(query.shape[-3] // each.shape[-3], -3) for each in (key, value))
    if _efficient(query, key, value):
        return _by_efficient(query, key, value, attn_mask, dropout_p, is_causal, scale)
    out, _ = torch.ops.aten._scaled_dot_product_attention_math(query, key, value, attn_mask, dropout_p, is_causal, scale=scale)
    return out


def _flash(query: Any, key: Any, value: Any, mask: Any) -> bool:
    return (
        torch.backends.cuda.flash_sdp_enabled()
        and mask is None
        and query.dim() == 4
        and query.dtype in _HALF
        and query.shape[-1] <= _LARGEST_HEAD
        and query.shape[-1] == key.shape[-1] == value.shape[-1]
    )


def _efficient(query: Any, key: Any, value: Any) -> bool:
    return (
        torch.backends.cuda.mem_efficient_sdp_enabled()
        and query.dim() == 4
        and query.dtype in (*_HALF, torch.float32)
        and query.shape[-1] == key.shape[-1]
        and query.shape[-1] % (4 if query.dtype == torch.float32 else _MULTIPLE) == 0
        and value.shape[-1] % (4 if query.dtype == torch.float32 else _MULTIPLE) == 0
    )


def _by_flash(query: Any, key: Any, value: Any, dropout: float, causal: bool, scale: float | None) -> Any:
    size = query.shape[-1]
    scale = size**-0.5 if scale is None else scale
    missing = -size % _MULTIPLE
    if missing:
        query, key, value = (torch.nn.functional.pad(each, (0, missing)) for each in (query, key, value))
    out = torch.ops.aten._scaled_dot_product_flash_attention(query, key, value, dropout, causal, False, scale=scale)[0]
    return out[..., :size] if missing else out


def _by_efficient(query: Any, key: Any, value: Any, mask: Any, dropout: float, causal: bool, scale: float | None) -> Any:
    if mask is not None and mask.dtype == torch.bool:
        zero = torch.scalar_tensor(0.0, dtype=query.dtype, device=query.device)
        low = torch.scalar_tensor(float("-inf"), dtype=query.dtype, device=query.device)
        mask = torch.where(mask, zero, low)
    if mask is not None:
        mask = mask.expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2])
    keeps = torch.is_grad_enabled() and (query.requires_grad or key.requires_grad or value.requires_grad)
    return torch.ops.aten._scaled_dot_product_efficient_attention(query, key, value, mask, keeps, dropout, causal, scale=scale)[0]


def choose_as_on_device(library: Any) -> None:
    """Let the operator choose so where autograd would call its parts."""
    library.impl("scaled_dot_product_attention", run, "AutogradCUDA")
