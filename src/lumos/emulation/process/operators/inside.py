"""What the kernels of some operators call besides computing on an NVIDIA device: other operators, which appear below them in a profile.

Each function makes those calls on tensors without data, in their order. Its first argument runs a function whose operators are not
part of the profile; the others are the operator's own. The calls follow the functions of ATen/native/cuda of the same names in torch 2.13,
and what `versions` says of earlier ones. Some launch the kernel in the operator's place; all take host time and memory of the device.

Of an operator of the host only the positions that a mask selects are followed, as their number is noted with them. What else its kernel
calls depends on the processor and is not recorded.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from lumos.emulation.process import versions

if TYPE_CHECKING:
    from collections.abc import Callable

    Hidden = Callable[[Callable[[], Any]], Any]


def of(func: Any, device: str) -> Callable[..., Any] | None:
    """What an operator calls on `device` ("cpu", "cuda"); None where nothing."""
    return (_ON_DEVICE if device == "cuda" else _ANYWHERE).get(str(func))


def has_own_kernel(func: Any, device: str) -> bool:
    """Whether an operator of a device launches a kernel of its own besides what it calls."""
    return device == "cuda" and str(func) in _BESIDE_KERNEL


def _by_mask(_: Hidden, __: Any, indices: Any, *___: Any, **____: Any) -> None:
    """expandTensors: the positions that a mask selects, and a list of them for each of its dimensions. A device tells how many they are."""
    for mask in (each for each in indices if each is not None and each.dtype in (torch.bool, torch.uint8)):
        positions = mask.nonzero()
        for dim in range(mask.dim()):
            positions.select(1, dim)


def _put_by_mask(hidden: Hidden, tensor: Any, indices: Any, values: Any, accumulate: bool = False, *_: Any) -> None:
    """One number is filled in where the mask holds, without its positions."""
    if values.numel() > 1 or accumulate:
        _by_mask(hidden, tensor, indices)


def _pow(hidden: Hidden, tensor: Any, exponent: Any, *__: Any) -> None:
    tensor.to(torch.result_type(tensor, exponent))
    if exponent == 1:
        hidden(lambda: torch.empty_like(tensor)).copy_(tensor)


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


#: What operators call on any device.
_ANYWHERE: dict[str, Callable[..., Any]] = {
    "aten.index.Tensor": _by_mask,
    "aten._index_put_impl_.default": _put_by_mask,
}
#: Operators of a device that take memory, or make views or copies, for a kernel of their own.
_BESIDE_KERNEL: dict[str, Callable[..., Any]] = _ANYWHERE | {
    "aten.addmm.default": _addmm,
    "aten.all.default": _all,
    "aten.arange.start_out": lambda _, *__, out, **___: torch.ops.aten.resize_(out, list(out.shape)),
    "aten.index_select.default": _index_select,
    "aten.native_layer_norm.default": _layer_norm,
    "aten.pow.Tensor_Scalar": _pow,
    "aten._flash_attention_forward.default": _flash_forward,
}
#: Those, and operators of a device that leave the kernel to another.
_ON_DEVICE: dict[str, Callable[..., Any]] = _BESIDE_KERNEL | {
    "aten.isnan.default": lambda _, tensor: tensor.ne(tensor),
    "aten.relu.default": lambda _, tensor: tensor.clamp_min(0),
    "aten.zero_.default": lambda _, tensor: tensor.fill_(0),
    "aten._scaled_dot_product_flash_attention.default": _flash,
}
