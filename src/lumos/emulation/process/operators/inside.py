"""Operators that launch, called by the kernels of others: they appear below those in a profile.

Each function makes those calls on tensors without data, in their order; its arguments are the operator's own. The calls follow the
functions of ATen/native/cuda of the same names in torch 2.13. What else a kernel calls (memory, views) launches nothing and is left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable


def of(func: Any, device: str) -> Callable[..., Any] | None:
    """What an operator calls on `device` ("cpu", "cuda"); None where nothing."""
    return (_ON_DEVICE if device == "cuda" else ANYWHERE).get(str(func))


def _by_mask(_: Any, indices: Any, *__: Any, **___: Any) -> None:
    """expandTensors: the positions that a mask selects, and a list of them for each of its dimensions. A device tells how many they are."""
    for mask in (each for each in indices if each is not None and each.dtype in (torch.bool, torch.uint8)):
        positions = mask.nonzero()
        for dim in range(mask.dim()):
            positions.select(1, dim)


def _put_by_mask(tensor: Any, indices: Any, values: Any, accumulate: bool = False, *_: Any) -> None:
    """One number is filled in where the mask holds, without its positions."""
    if values.numel() > 1 or accumulate:
        _by_mask(tensor, indices)


def _flash(query: Any, key: Any, value: Any, dropout: float = 0.0, causal: bool = False, *_: Any, **more: Any) -> None:
    """_scaled_dot_product_flash_attention_cuda: everything as [batch, tokens, heads, size]."""
    turned = [each.transpose(1, 2) for each in (query, key, value)]
    longest = query.shape[2], key.shape[2]
    torch.ops.aten._flash_attention_forward(*turned, None, None, *longest, dropout, causal, False, scale=more.get("scale"))


#: On any device; on one with kernels of its own, beside them.
ANYWHERE: dict[str, Callable[..., Any]] = {"aten.index.Tensor": _by_mask, "aten._index_put_impl_.default": _put_by_mask}
#: Those, and operators of a device that leave the kernel to another.
_ON_DEVICE: dict[str, Callable[..., Any]] = ANYWHERE | {
    "aten.isnan.default": lambda tensor: tensor.ne(tensor), "aten.relu.default": lambda tensor: tensor.clamp_min(0),
    "aten.zero_.default": lambda tensor: tensor.fill_(0), "aten._scaled_dot_product_flash_attention.default": _flash,
}  # fmt: skip
