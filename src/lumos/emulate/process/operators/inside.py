"""What the kernels of some operators call besides computing: other operators, which appear below them in a profile.

Each function makes those calls on tensors without data, in their order. Its first argument runs a function whose operators are not
part of the profile; the others are the operator's own. The calls follow the functions of ATen/native of the same names in torch 2.13,
for one thread of the host.
"""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any

import torch

from lumos.emulate.process.operators import inside_device, inside_images

if TYPE_CHECKING:
    from collections.abc import Callable

    Hidden = Callable[[Callable[[], Any]], Any]

#: Elements from which a kernel of the host splits its work (at::internal::GRAIN_SIZE), and clears memory by filling it.
_GRAIN = 32768


def of(func: Any, device: str) -> Callable[..., Any] | None:
    """What an operator calls on `device` ("cpu", "cuda"); None where nothing."""
    if device == "cuda":
        return _ON_DEVICE.get(str(func))
    return _ON_HOST.get(str(func)) or (_promote if _base(func) in _ITERATED else None)


def after_the_data(func: Any, hidden: Hidden, args: Any, out: Any) -> None:
    """Call what an operator of the host calls after the point where it needs data, so that it could not be followed further."""
    if str(func) == "aten._convolution.default" and args[6]:
        inside_images.transposed(hidden, out, args[3])


def has_own_kernel(func: Any, device: str) -> bool:
    """Whether an operator of a device launches a kernel of its own besides what it calls."""
    return device == "cuda" and str(func) in _BESIDE_KERNEL


def _base(func: Any) -> str:
    return str(func._schema.name).removeprefix("aten::").rstrip("_")


#: Operators on elements whose operands are brought to one type first, where they stand on the host.
_ITERATED = frozenset(
    {"add", "sub", "mul", "div", "rsub", "eq", "ne", "lt", "le", "gt", "ge", "maximum", "minimum", "remainder", "fmod", "atan2", "hypot",
     "bitwise_and", "bitwise_or", "bitwise_xor", "floor_divide", "logaddexp", "copysign", "xlogy"}
)  # fmt: skip


def _promote(hidden: Hidden, *args: Any, **_: Any) -> None:
    """TensorIteratorBase::compute_types: an operand of another type than the common one is copied to it; a number is a tensor of one
    element, in double precision or 64-bit integers."""
    if len(args) < 2 or not isinstance(args[0], torch.Tensor) or not isinstance(args[1], (torch.Tensor, int, float)):
        return
    common = hidden(lambda: torch.result_type(args[0], args[1]))
    for each in args[:2]:
        operand = each if isinstance(each, torch.Tensor) else hidden(functools.partial(_number, each))
        if operand.dtype != common:
            operand.to(common)


def _number(value: Any) -> Any:
    kind = torch.bool if isinstance(value, bool) else torch.int64 if isinstance(value, int) else torch.float64
    return torch.scalar_tensor(value, dtype=kind)


def _zero_(_: Hidden, tensor: Any) -> None:
    if tensor.device.type != "cpu" or not 0 < tensor.numel() < _GRAIN or not tensor.is_contiguous():
        tensor.fill_(0)


def _addmm(hidden: Hidden, bias: Any, one: Any, other: Any, *, beta: Any = 1, **_: Any) -> None:
    result = hidden(lambda: one.new_empty(one.shape[0], other.shape[1]))
    if beta != 0:
        result.copy_(bias.expand(result.shape))
    _gemm(result, one, other)


def _mm(hidden: Hidden, one: Any, other: Any, *_: Any) -> None:
    _gemm(hidden(lambda: one.new_empty(one.shape[0], other.shape[1])), one, other)


def _gemm(result: Any, one: Any, other: Any) -> None:
    """addmm_impl_cpu_: the operands of a row-major result are swapped; each is used as it lies, transposed, or copied."""
    if 0 in (one.numel(), other.numel()):
        return
    result.resolve_conj()
    swapped = not (result.stride(0) == 1 and result.stride(1) >= max(1, result.shape[0]))
    first, second = (other, one) if swapped else (one, other)
    for operand in (first, second):
        rows, columns = (1, 0) if swapped else (0, 1)
        if operand.stride(rows) == 1 and operand.stride(columns) >= max(1, operand.shape[rows]):
            operand.resolve_conj()
        elif not (operand.stride(columns) == 1 and operand.stride(rows) >= max(1, operand.shape[columns])):
            operand.clone(memory_format=torch.contiguous_format)


def _bmm(_: Hidden, one: Any, other: Any) -> None:
    """baddbmm_mkl_, which small products do without."""
    if one.shape[1] * one.shape[2] * other.shape[2] >= 400:
        other.resolve_conj()
        one.resolve_conj()


def _reduced(hidden: Hidden, tensor: Any, dims: Any, keep: bool) -> Any:
    """The result of a reduction with all dimensions kept."""
    chosen = {each % max(tensor.dim(), 1) for each in dims} if dims else set(range(tensor.dim()))
    shape = [1 if place in chosen else size for place, size in enumerate(tensor.shape)]
    if keep or not tensor.dim():
        return hidden(lambda: tensor.new_empty(shape))
    made = hidden(lambda: tensor.new_empty([size for place, size in enumerate(tensor.shape) if place not in chosen]))
    left = iter(made.stride())
    strides = [0 if place in chosen else next(left) for place in range(tensor.dim())]
    return made.as_strided(shape, strides)


def _sum(hidden: Hidden, tensor: Any, dims: Any = None, keep: bool = False, *_: Any, **__: Any) -> None:
    made = _reduced(hidden, tensor, dims, keep)
    _as_wide_integers(tensor)
    made.fill_(0)


def _as_wide_integers(tensor: Any, *_: Any, **__: Any) -> None:
    """Integers and truth values are added up in 64 bits."""
    if not tensor.dtype.is_floating_point and not tensor.dtype.is_complex and tensor.dtype != torch.int64:
        tensor.to(torch.int64)


def _cumsum(_: Hidden, tensor: Any, *__: Any, **___: Any) -> None:
    _as_wide_integers(tensor)


def _divide(hidden: Hidden, one: Any, other: Any) -> None:
    """True division of integers is one of floats."""
    operands = [each if isinstance(each, torch.Tensor) else hidden(functools.partial(_number, each)) for each in (one, other)]
    if any(each.dtype.is_floating_point or each.dtype.is_complex for each in operands):
        _promote(hidden, one, other)
        return
    for each in operands:
        each.to(torch.get_default_dtype())


def _largest(hidden: Hidden, tensor: Any, dims: Any = (), keep: bool = False) -> None:
    _reduced(hidden, tensor, dims, keep).fill_(0)


def _fused_optimizer(_: Hidden, *given: Any, **__: Any) -> None:
    """Each parameter's count of steps is read: the last of the six lists of tensors."""
    for each in given[5]:
        each.item()


def _norm(hidden: Hidden, tensor: Any, _: Any = 2, dims: Any = None, keep: bool = False, *__: Any, **___: Any) -> None:
    _reduced(hidden, tensor, dims, keep)


def _all(hidden: Hidden, tensor: Any, dim: int | None = None, keep: bool = False, *_: Any) -> None:
    _reduced(hidden, tensor, None if dim is None else [dim], keep).fill_(1)


def _mean(hidden: Hidden, tensor: Any, dims: Any = None, keep: bool = False, *_: Any, **__: Any) -> None:
    out = hidden(lambda: torch.mean(tensor, dims, keep) if dims else torch.mean(tensor))
    torch.ops.aten.sum.IntList_out(tensor, dims, keep, out=out)
    count = math.prod(tensor.shape[each] for each in dims) if dims else tensor.numel()
    torch.ops.aten.div_.Scalar(out, count)


def _layer_norm(_: Hidden, tensor: Any, shape: Any, *__: Any) -> None:
    rows = tensor.numel() // max(math.prod(shape), 1)
    made = [torch.empty(each, dtype=tensor.dtype) for each in (tuple(tensor.shape), (rows,), (rows,))]
    kept = [*tensor.shape[: tensor.dim() - len(shape)], *[1] * len(shape)]
    for each in made[1:]:
        each.view(kept)


def _layer_norm_backward(hidden: Hidden, _: Any, tensor: Any, shape: Any, *__: Any) -> None:
    size = math.prod(shape)
    for each in (tuple(tensor.shape), tuple(shape), tuple(shape)):
        torch.empty(each, dtype=tensor.dtype)
    partial = torch.empty(0, dtype=tensor.dtype)
    torch.ops.aten.resize_(partial, [2, torch.get_num_threads(), size])
    hidden(lambda: tensor.new_empty(2, torch.get_num_threads(), size)).zero_()


def _nll_loss_backward(hidden: Hidden, _: Any, tensor: Any, *__: Any) -> None:
    hidden(lambda: torch.empty_like(tensor)).zero_()


def _index_select(hidden: Hidden, tensor: Any, dim: int, index: Any) -> None:
    torch.empty(0, dtype=tensor.dtype)
    if tensor.dim() > 1:
        shape = [*tensor.shape[:dim], index.numel(), *tensor.shape[dim + 1 :]]
        result = hidden(lambda: tensor.new_empty(shape))
        tensor.select(dim, 0)
        result.select(dim, 0)


def _embedding_dense_backward(_: Hidden, grad: Any, indices: Any, weights: int, *__: Any) -> None:
    if not indices.is_contiguous():
        indices.contiguous()
    torch.zeros((weights, grad.shape[-1]), dtype=grad.dtype)
    contiguous = grad if grad.is_contiguous() else grad.contiguous()
    contiguous.view(indices.numel(), grad.shape[-1])


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


def _where(_: Hidden, __: Any, one: Any, *___: Any) -> None:
    torch.empty(0, dtype=one.dtype)


def _cat(hidden: Hidden, tensors: Any, dim: int = 0) -> None:
    """cat_out_cpu: inputs of one type go in one pass where they lie one after the other and are floats, or follow each other in the
    result; else through one slice of the result where they are alike, and a slice each where they are not."""
    filled = [each for each in tensors if each.numel()]
    if not filled:
        return
    one_type = len({each.dtype for each in filled}) == 1
    serial = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
    if one_type and all(each.is_contiguous() for each in filled) and (filled[0].dtype in serial or dim % filled[0].dim() == 0):
        return
    shape = list(filled[0].shape)
    shape[dim] = sum(each.shape[dim] for each in filled)
    kind = hidden(lambda: functools.reduce(torch.promote_types, (each.dtype for each in filled)))
    result, offset = hidden(lambda: filled[0].new_empty(shape, dtype=kind)), 0
    alike = one_type and len({(each.shape, each.stride()) for each in filled}) == 1
    for each in filled[:1] if alike else filled:
        result.narrow(dim, offset, each.shape[dim])
        offset += each.shape[dim]


def _arange(_: Hidden, *__: Any, out: Any, **___: Any) -> None:
    torch.ops.aten.resize_(out, list(out.shape))


def _relu(_: Hidden, tensor: Any) -> None:
    tensor.clamp_min(0)


def _recurrent_layer(hidden: Hidden, *given: Any) -> None:
    """mkldnn_rnn_layer: output, two final states, one bias, workspace."""
    for _place in range(3):
        torch.empty(0, dtype=given[0].dtype)
    _one_bias(hidden, given[3], given[4], given[12])
    torch.empty(0, dtype=torch.uint8)


def _one_bias(hidden: Hidden, bias: Any, other: Any, has_biases: bool) -> Any:
    """oneDNN adds one bias, which of a layer without any is zero; torch then gives the layer zeros of the weights' shapes for its own."""
    return hidden(lambda: bias).add(other) if has_biases else torch.zeros(bias.shape[0], dtype=bias.dtype)


def _recurrent_layer_backward(hidden: Hidden, *given: Any) -> None:
    """mkldnn_rnn_layer_backward: missing gradients are zeros, and each gradient has a buffer."""
    _, _, _, bias, other_bias, state, cell, _, _, _, *gradients = given
    has_biases = given[17]
    for gradient, like in zip(gradients[:3], (None, state, cell), strict=False):
        if gradient is None:
            torch.zeros_like(like, memory_format=torch.contiguous_format)
        elif not gradient.is_contiguous():
            gradient.contiguous()
    added = _one_bias(hidden, bias, other_bias, has_biases)
    for _place in range(6):
        torch.empty(0, dtype=bias.dtype)
    added.clone()


def _clamp(_: Hidden, tensor: Any, *__: Any) -> None:
    tensor.to(tensor.dtype)


def _isnan(_: Hidden, tensor: Any) -> None:
    tensor.ne(tensor)


def _flash(_: Hidden, query: Any, key: Any, value: Any, *__: Any, **___: Any) -> None:
    """flash_attention_kernel: everything as [batch, tokens, heads, size], and two buffers."""
    out = torch.empty_like(query).transpose(1, 2)
    sums = torch.empty((query.shape[0], query.shape[2], query.shape[1]), dtype=torch.float32)
    for each in (query, key, value):
        each.transpose(1, 2)
    for _place in range(2):
        torch.empty(0, dtype=query.dtype)
    out.transpose(1, 2)
    sums.transpose(1, 2)


def _flash_backward(_: Hidden, grad: Any, query: Any, key: Any, value: Any, out: Any, sums: Any, *__: Any, **___: Any) -> None:
    for each in (grad, query, key, value, out, sums):
        each.transpose(1, 2)
    made = [torch.zeros((each.shape[0], each.shape[2], each.shape[1], each.shape[3]), dtype=each.dtype) for each in (query, key, value)]
    for _place in range(3):
        torch.empty(0, dtype=query.dtype)
    for each in made:
        each.transpose(1, 2)


#: What operators call on any device.
_ANYWHERE: dict[str, Callable[..., Any]] = {
    "aten.index.Tensor": _by_mask,
    "aten._index_put_impl_.default": _put_by_mask,
}
_ON_HOST: dict[str, Callable[..., Any]] = (
    inside_images.ON_HOST
    | _ANYWHERE
    | {
        "aten.zero_.default": _zero_,
        "aten.addmm.default": _addmm,
        "aten.mm.default": _mm,
        "aten.bmm.default": _bmm,
        "aten.sum.dim_IntList": _sum,
        "aten.sum.IntList_out": _sum,
        "aten.linalg_vector_norm.default": _norm,
        "aten.sum.default": _sum,
        "aten.cumsum.default": _cumsum,
        "aten._fused_adam_.default": _fused_optimizer,
        "aten._fused_adamw_.default": _fused_optimizer,
        "aten.div.Tensor": _divide,
        "aten.amax.default": _largest,
        "aten.amin.default": _largest,
        "aten.all.dim": _all,
        "aten.all.default": _all,
        "aten.mean.dim": _mean,
        "aten.native_layer_norm.default": _layer_norm,
        "aten.native_layer_norm_backward.default": _layer_norm_backward,
        "aten.nll_loss_backward.default": _nll_loss_backward,
        "aten.index_select.default": _index_select,
        "aten.embedding_dense_backward.default": _embedding_dense_backward,
        "aten.pow.Tensor_Scalar": _pow,
        "aten.where.self": _where,
        "aten.cat.default": _cat,
        "aten.arange.start_out": _arange,
        "aten.clamp.default": _clamp,
        "aten.isnan.default": _isnan,
        "aten.relu.default": _relu,
        "aten.mkldnn_rnn_layer.default": _recurrent_layer,
        "aten.mkldnn_rnn_layer_backward.default": _recurrent_layer_backward,
        "aten._scaled_dot_product_flash_attention_for_cpu.default": _flash,
        "aten._scaled_dot_product_flash_attention_for_cpu_backward.default": _flash_backward,
    }
)

_BESIDE_KERNEL: dict[str, Callable[..., Any]] = (
    inside_device.BESIDE_KERNEL
    | _ANYWHERE
    | {
        "aten.pow.Tensor_Scalar": _pow,
        "aten.arange.start_out": _arange,
    }
)

_ON_DEVICE: dict[str, Callable[..., Any]] = (
    _BESIDE_KERNEL
    | inside_device.INSTEAD
    | {
        "aten.zero_.default": _zero_,
        "aten.isnan.default": _isnan,
        "aten.relu.default": _relu,
    }
)
