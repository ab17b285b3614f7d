"""Stand-ins for values that a script reads from tensors, which have none here.

A number is 1, a truth value is False (no loss is ever nan), a selection takes every element: so that a loop runs as it does where
nothing is unusual. Each is noted with the line of the script that reads it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from lumos.emulate.process.operators import recurrent
from lumos.emulate.record import CallKind

if TYPE_CHECKING:
    from collections.abc import Callable

    from lumos.emulate.process.streams import Streams

aten = torch.ops.aten

#: Operators that copy a value from the device to the process, which waits for it.
_READS = frozenset({aten._local_scalar_dense.default, aten.equal.default, aten.nonzero.default, aten.masked_select.default})


def note_read(func: Any, args: Any, streams: Streams) -> None:
    """Note that the thread waits for the device, where the operator makes it wait."""
    if func in _READS and args[0].device.type == "cuda":
        streams.call(CallKind.READ_VALUE, stream=streams.current, size=args[0].element_size())


#: Operators whose result stands for the same value as their first argument.
_PASS_ON = frozenset({aten.all.default, aten.any.default, aten._to_copy.default, aten.view.default, aten.detach.default})
_NOT = frozenset({aten.logical_not.default, aten.bitwise_not.default})


def pass_on(func: Any, args: Any, out: Any) -> None:
    """Let a known stand-in survive the operators between where it arises and where the script reads it."""
    if func is aten._amp_foreach_non_finite_check_and_unscale_.default:
        args[1].stand_in = 0.0  # no gradient is infinite
    elif args and isinstance(args[0], torch.Tensor) and hasattr(args[0], "stand_in") and isinstance(out, torch.Tensor):
        if func in _PASS_ON:
            out.stand_in = args[0].stand_in
        elif func in _NOT:
            out.stand_in = not args[0].stand_in


def _item(mode: Any, _: Any, args: Any, __: Any) -> Any:
    (tensor,) = args
    constant = getattr(tensor, "constant", None)
    if constant is not None:
        return constant.item()
    if hasattr(tensor, "stand_in"):
        return tensor.stand_in
    mode.journal.assume("stand-in-value", "a value read from a tensor is 1, and a truth value False: tensors have no data here")
    if tensor.dtype == torch.bool:
        return False
    if tensor.dtype.is_complex:
        return complex(1.0)
    return 1.0 if tensor.dtype.is_floating_point else 1


def _equal(mode: Any, _: Any, __: Any, ___: Any) -> bool:
    mode.journal.assume("stand-in-equal", "tensors that are compared as a whole count as equal")
    return True


def _selected(mode: Any, mask: Any) -> int:
    mode.journal.assume("stand-in-selection", "a selection by values takes every element")
    return int(mask.numel())


def _nonzero(mode: Any, _: Any, args: Any, __: Any) -> Any:
    (tensor,) = args
    with mode:
        return tensor.new_empty((_selected(mode, tensor), tensor.dim()), dtype=torch.int64)


def _masked_select(mode: Any, _: Any, args: Any, __: Any) -> Any:
    tensor, mask = args
    with mode:
        tensor, mask = torch.broadcast_tensors(tensor, mask)
        return tensor.new_empty((_selected(mode, mask),))


def _index(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """Indices that are masks are the positions that these select."""
    tensor, indices, *rest = args
    positions: list[Any] = []
    with mode:
        for each in indices:
            if each is not None and each.dtype in (torch.bool, torch.uint8):
                positions += [each.new_empty((_selected(mode, each),), dtype=torch.int64) for _ in range(each.dim())]
            else:
                positions.append(each)
        return func(tensor, positions, *rest, **kwargs)


def _unique(mode: Any, _: Any, args: Any, __: Any) -> Any:
    tensor = args[0]
    mode.journal.assume("stand-in-unique", "the elements of a tensor count as all different")
    with mode:
        flat = tensor.reshape(-1)
        return flat, flat.new_empty(tensor.shape, dtype=torch.int64), flat.new_empty(flat.shape, dtype=torch.int64)


def _repeat_interleave(mode: Any, _: Any, args: Any, kwargs: Any) -> Any:
    counts = args[0]
    total = kwargs.get("output_size")
    if total is None:
        mode.journal.assume("stand-in-repeats", "elements that are repeated as often as a tensor says are repeated once")
        total = counts.numel()
    with mode:
        return counts.new_empty((total,), dtype=torch.int64)


def _bincount(mode: Any, _: Any, args: Any, kwargs: Any) -> Any:
    length = args[2] if len(args) > 2 else kwargs.get("minlength", 0)
    with mode:
        return args[0].new_empty((max(int(length), 1),), dtype=torch.int64)


def _host_convolution(mode: Any, _: Any, args: Any, __: Any) -> Any:
    """A convolution by oneDNN has the result of any other."""
    given, weight, bias, padding, stride, dilation, groups = args
    none = [0] * len(stride)
    return mode.dispatch(aten.convolution.default, (), (given, weight, bias, stride, padding, dilation, False, none, groups), {})


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


def _same(_: Any, __: Any, args: Any, ___: Any) -> Any:
    return args[0]


STAND_INS: dict[Any, Callable[[Any, Any, Any, Any], Any]] = {
    aten._local_scalar_dense.default: _item,
    aten.equal.default: _equal,
    aten.nonzero.default: _nonzero,
    aten.masked_select.default: _masked_select,
    aten.index.Tensor: _index,
    aten._unique2.default: _unique,
    aten.repeat_interleave.Tensor: _repeat_interleave,
    aten.bincount.default: _bincount,
    aten._cudnn_rnn_backward.default: recurrent.backward,
    aten._fused_rms_norm.default: _rms_norm,
    aten._fused_rms_norm_backward.default: _rms_norm_backward,
    aten.mkldnn_convolution.default: _host_convolution,
    aten._pin_memory.default: _same,
    aten.is_pinned.default: lambda *_: False,
}
