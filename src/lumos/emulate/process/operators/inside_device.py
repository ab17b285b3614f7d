"""What the kernels of some operators call besides computing on an NVIDIA device, as `inside` says it for the host.

The calls follow the functions of ATen/native/cuda of the same names in torch 2.13, and what `versions` says of earlier ones.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from lumos.emulate.process import versions

if TYPE_CHECKING:
    from collections.abc import Callable

    Hidden = Callable[[Callable[[], Any]], Any]


def _addmm(_: Hidden, bias: Any, __: Any, other: Any, *, beta: Any = 1, **___: Any) -> None:
    """addmm_out_cuda_impl: a bias of one dimension is added by cuBLASLt, which is given memory to work in."""
    rows, columns = other.shape
    size = versions.workspace_of_linear(versions.TORCH_VERSION)
    if size and bias.dim() == 1 and bias.shape[0] == columns and bias.is_contiguous() and beta == 1 and min(rows, columns) > 1:
        torch.empty(size, dtype=torch.uint8, device=other.device)


def _index_select(_: Hidden, tensor: Any, dim: int, index: Any) -> None:
    out = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    shape = [*tensor.shape[:dim], index.numel(), *tensor.shape[dim + 1 :]]
    torch.ops.aten.resize_(out, shape)


def _layer_norm(_: Hidden, tensor: Any, shape: Any, *__: Any) -> None:
    rows = tensor.numel() // max(math.prod(shape), 1)
    wide = torch.float32 if tensor.dtype in (torch.float16, torch.bfloat16) else tensor.dtype
    torch.empty(tuple(tensor.shape), dtype=tensor.dtype, device=tensor.device)
    kept = [*tensor.shape[: tensor.dim() - len(shape)], *[1] * len(shape)]
    for each in [torch.empty(rows, dtype=wide, device=tensor.device) for _place in range(2)]:
        each.view(kept)


def _all(hidden: Hidden, tensor: Any) -> None:
    hidden(lambda: torch.empty((), dtype=torch.bool, device=tensor.device)).as_strided((), ())


def _flash(_: Hidden, query: Any, key: Any, value: Any, dropout: float = 0.0, causal: bool = False, *__: Any, **more: Any) -> None:
    """_scaled_dot_product_flash_attention_cuda: everything as [batch, tokens, heads, size], and back."""
    turned = [each.transpose(1, 2) for each in (query, key, value)]
    longest = query.shape[2], key.shape[2]
    out = torch.ops.aten._flash_attention_forward(*turned, None, None, *longest, dropout, causal, False, scale=more.get("scale"))[0]
    out.transpose(1, 2)


def _flash_forward(_: Hidden, query: Any, *__: Any, **___: Any) -> None:
    """mha_fwd: the result, the sums of each row, and the state of the random numbers."""
    out = torch.empty_like(query)
    for _place in range(4):
        torch.empty(0, dtype=torch.float32, device=query.device)
    del out


#: Operators that take memory or make views for a kernel of their own.
BESIDE_KERNEL: dict[str, Callable[..., Any]] = {
    "aten.addmm.default": _addmm,
    "aten.index_select.default": _index_select,
    "aten.native_layer_norm.default": _layer_norm,
    "aten.all.default": _all,
    "aten._flash_attention_forward.default": _flash_forward,
}
#: Operators that leave the kernel to another.
INSTEAD: dict[str, Callable[..., Any]] = {"aten._scaled_dot_product_flash_attention.default": _flash}
