"""Shapes of results for which torch has no rule, or one for another device than is emulated.

Each function has the arguments of a stand-in: the mode, the operator, its arguments and its keywords. The shapes are those that the kernels
in ATen/native of torch 2.13 give their results.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    StandIn = Callable[[Any, Any, Any, Any], Any]

_aten = torch.ops.aten


def _convolution(*names: str) -> StandIn:
    """The rule of a convolution by a library, which has the result of any other. names: of its arguments after image and weight."""

    def shape(mode: Any, _: Any, args: Any, __: Any) -> Any:
        given = dict(zip(names, args[2:], strict=False))
        bias, out_padding, sizes = given.get("bias"), given.get("output_padding"), (given["stride"], given["padding"], given["dilation"])
        more = *sizes, out_padding is not None, out_padding or [0] * len(given["stride"]), given["groups"]
        return mode.dispatch(_aten.convolution.default, (), (*args[:2], bias, *more), {})

    return shape


def _rms_norm(mode: Any, _: Any, args: Any, __: Any) -> Any:
    """The result, and the reciprocal root mean square of each row in the precision that sums are made in."""
    tensor, shape = args[0], args[1]
    wide = torch.float32 if tensor.dtype in (torch.float16, torch.bfloat16) else tensor.dtype
    with mode:
        rows = (*tensor.shape[: tensor.dim() - len(shape)], *[1] * len(shape))
        return torch.empty_like(tensor), tensor.new_empty(rows, dtype=wide)


def _rms_norm_backward(mode: Any, _: Any, args: Any, __: Any) -> Any:
    tensor, weight, wanted = args[1], args[4], args[5]
    with mode:
        return torch.empty_like(tensor), torch.empty_like(weight) if weight is not None and wanted[1] else None


def _grouped_mm(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """The device multiplies groups in other types than bfloat16 one after the other, which torch's rule for shapes does not know."""
    one, other, *rest = args
    if one.dtype == torch.bfloat16:
        return mode.dispatch(func, (), args, kwargs)
    with mode:
        return func(one.bfloat16(), other.bfloat16(), *rest, **kwargs).to(one.dtype)


def _gru_cell(mode: Any, _: Any, args: Any, __: Any) -> Any:
    """The new state, and five values of each element of it for the backward pass."""
    state = args[2]
    with mode:
        return torch.empty_like(state), state.new_empty(state.shape[0], 5 * state.shape[1])


def _gru_cell_backward(mode: Any, _: Any, args: Any, __: Any) -> Any:
    """Gradients of the three gates of both sides, of the state, and of both biases."""
    gradient, has_bias = args[0], args[2]
    gates = gradient.shape[0], 3 * gradient.shape[1]
    with mode:
        biases = [gradient.new_empty(gates[1]) if has_bias else None for _ in range(2)]
        return gradient.new_empty(gates), gradient.new_empty(gates), torch.empty_like(gradient), *biases


def _ctc_loss(mode: Any, _: Any, args: Any, __: Any) -> Any:
    """A loss for each sequence, and for each of its moments the states of its target: its letters, with a blank around each."""
    scores, targets = args[0], args[1]
    moments, sequences = scores.shape[0], scores.shape[1] if scores.dim() > 2 else 1
    letters = targets.shape[1] if targets.dim() == 2 else targets.shape[0] // sequences
    with mode:
        return scores.new_empty(sequences), scores.new_empty(sequences, moments, 2 * letters + 1)


def _fake_quantized(mode: Any, _: Any, args: Any, __: Any) -> Any:
    """The result, and which elements were inside of the range."""
    with mode:
        return torch.empty_like(args[0]), torch.empty_like(args[0], dtype=torch.bool)


def _batch_statistics(mode: Any, _: Any, args: Any, __: Any) -> Any:
    """Mean and reciprocal deviation of each channel, in the precision that sums are made in. The tensor is the first argument, also where
    the statistics of all ranks are joined."""
    tensor = args[0]
    wide = torch.float32 if tensor.dtype in (torch.float16, torch.bfloat16) else tensor.dtype
    with mode:
        return tensor.new_empty(tensor.shape[1], dtype=wide), tensor.new_empty(tensor.shape[1], dtype=wide)


def _batch_norm_reduced(mode: Any, _: Any, args: Any, __: Any) -> Any:
    """Two sums for each channel, and the gradients of weight and bias, of those that are wanted."""
    mean, weight, (of_input, of_weight, of_bias) = args[2], args[4], args[5:]
    with mode:
        sums = [torch.empty_like(mean) if of_input else None for _ in range(2)]
        return *sums, *(torch.empty_like(weight) if wanted and weight is not None else None for wanted in (of_weight, of_bias))


def _like(place: int) -> StandIn:
    """The rule of an operator whose result is like one of its arguments."""

    def shape(mode: Any, _: Any, args: Any, __: Any) -> Any:
        with mode:
            return torch.empty_like(args[place])

    return shape


_SIZES = ("padding", "stride", "dilation", "groups")
#: By name and overload.
_BY_NAME: dict[str, StandIn] = {
    "mkldnn_convolution.default": _convolution("bias", *_SIZES), "cudnn_convolution.default": _convolution(*_SIZES),
    "cudnn_convolution_transpose.default": _convolution("padding", "output_padding", *_SIZES[1:]), "_fused_rms_norm.default": _rms_norm,
    "_fused_rms_norm_backward.default": _rms_norm_backward, "_grouped_mm.default": _grouped_mm,
    "_thnn_fused_gru_cell.default": _gru_cell, "_thnn_fused_gru_cell_backward.default": _gru_cell_backward,
    "_use_cudnn_ctc_loss.default": lambda *_: False, "_use_cudnn_ctc_loss.Tensor": lambda *_: False,
    "_use_miopen_ctc_loss.default": lambda *_: False, "_use_miopen_ctc_loss.Tensor": lambda *_: False, "_ctc_loss.default": _ctc_loss,
    "_ctc_loss.Tensor": _ctc_loss, "_ctc_loss_backward.default": _like(1), "_ctc_loss_backward.Tensor": _like(1),
    "batch_norm_stats.default": _batch_statistics, "batch_norm_gather_stats_with_counts.default": _batch_statistics,
    "batch_norm_elemt.default": _like(0), "batch_norm_backward_reduce.default": _batch_norm_reduced,
    "batch_norm_backward_elemt.default": _like(1), "fake_quantize_per_tensor_affine_cachemask.default": _fake_quantized,
    "fake_quantize_per_channel_affine_cachemask.default": _fake_quantized,
    "_fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default": _fake_quantized,
    "_fused_moving_avg_obs_fq_helper.default": _fake_quantized,
}  # fmt: skip


def rules() -> dict[Any, StandIn]:
    """The rule of each operator that has one, of those that this version of torch has."""
    found = ((name.partition("."), rule) for name, rule in _BY_NAME.items())
    known = ((getattr(getattr(_aten, name, None), overload, None), rule) for (name, _, overload), rule in found)
    return {operator: rule for operator, rule in known if operator is not None}
