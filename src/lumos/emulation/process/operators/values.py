"""Stand-ins for values that a script reads from tensors, which have none here, and which operators run for real.

A number is 1, a truth value is False (no loss is ever nan) except where it says that something holds of all elements, a selection takes
every element: so that a loop runs as it does where nothing is unusual. Small tensors of the host have data, since what a script computes
there decides what it does: how a mesh is laid out, how long a batch is, which learning rate is due.
"""

from __future__ import annotations

import math
import operator
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from lumos.emulation.process.operators import recurrent, routing, shapes
from lumos.emulation.process.operators.routing import forget, know, value_of, written
from lumos.emulation.record import CallKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from lumos.emulation.process.streams import Streams

aten = torch.ops.aten

#: Operators that copy a value from the device to the process, which waits for it.
_READS = frozenset({
    aten._local_scalar_dense.default, aten.equal.default, aten.allclose.default, aten.nonzero.default, aten.masked_select.default,
    aten._unique2.default, aten.unique_dim.default, aten.unique_consecutive.default,
})  # fmt: skip


def note_read(func: Any, args: Any, streams: Streams) -> None:
    """Note that the thread waits for the device, where the operator makes it wait."""
    if func in _READS and args[0].device.type == "cuda":
        streams.call(CallKind.READ_VALUE, stream=streams.current, size=args[0].element_size())


#: Values that a script may read between two steps. A loop that waits for a value other than its stand-in would read for ever.
_MOST_READS = 20_000

#: Operators about pinned memory, which is ordinary memory here.
PINNED = frozenset({aten._pin_memory.default, aten.is_pinned.default})

#: Operators whose result stands for the same value as their first argument.
_PASS_ON = frozenset({
    aten.all.default, aten.any.default, aten._to_copy.default, aten.view.default, aten.detach.default, aten.clone.default,
    aten.squeeze.default, aten.unsqueeze.default, aten.reshape.default, aten.alias.default, aten.max.default, aten.min.default,
    aten.amax.default, aten.amin.default, aten.any.dim, aten.all.dim,
})  # fmt: skip
#: Operators that say whether something holds of all elements.
_ALL = frozenset({aten.all.default, aten.all.dim, aten.all.dims, aten._is_all_true.default})
_NOT = frozenset({aten.logical_not.default, aten.bitwise_not.default})
#: Operators that make a value that they are told, that follows from one that is known and a number, or from two.
_MADE: dict[Any, Callable[[Any], Any]] = {
    aten.zeros.default: lambda _: 0,
    aten.ones.default: lambda _: 1,
    aten.full.default: lambda args: args[1],
}
_COMPARED = {
    aten.eq.Scalar: operator.eq, aten.ne.Scalar: operator.ne, aten.lt.Scalar: operator.lt,
    aten.le.Scalar: operator.le, aten.gt.Scalar: operator.gt, aten.ge.Scalar: operator.ge,
}  # fmt: skip
#: Truth values, and numbers by their bits.
_BOTH: dict[Any, Callable[[Any, Any], Any]] = {
    aten.bitwise_or.Tensor: operator.or_, aten.logical_or.default: operator.or_, aten.bitwise_and.Tensor: operator.and_,
    aten.logical_and.default: operator.and_,
}  # fmt: skip


def from_data(tensor: Any, source: Any) -> Any:
    """A tensor without data that takes the place of `source`, which has data: a single value stays known, and that it is pinned."""
    if getattr(source, "pinned", False):
        tensor.pinned = True
    if source.numel() == 1 and not source.requires_grad and source.device.type == "cpu":
        know(tensor, source.item())
    return tensor


def pass_on(func: Any, args: Any, out: Any) -> None:
    """Let a known value survive the operators between where it arises and where the script reads it."""
    for each in written(func, args):
        if func is not aten.copy_.default or value_of(args[1]) is None:
            forget(each)
    routing.follow(func, args, out)
    first: Any = args[0] if args else None
    if func is aten._amp_foreach_non_finite_check_and_unscale_.default:
        know(args[1], 0.0)  # no gradient is infinite
    elif func is aten.copy_.default and value_of(args[1]) is not None:
        _copied(first, value_of(args[1]))
    elif not func._schema.is_mutable and isinstance(out, torch.Tensor):
        found = _MADE[func](args) if func in _MADE else _followed(func, args, out)
        if found is not None:
            know(out, found)
        elif func in _ALL or (func in _PASS_ON and getattr(first, "holds", False)):
            out.holds = True


def _copied(target: Any, value: Any) -> None:
    """A copy of a known value: the whole memory of a tensor has it, or only the part that is shown."""
    whole = target.untyped_storage().nbytes() <= target.numel() * target.element_size()
    forget(target)
    if whole:
        know(target, value)


def _followed(func: Any, args: Any, out: Any) -> Any:
    """The value of all elements of a result, None where nothing is known of it."""
    if func in _BOTH:
        return _of_both(_BOTH[func], [value_of(each) if isinstance(each, torch.Tensor) else each for each in args[:2]])
    known = value_of(args[0]) if args else None
    if known is None:
        return False if func in _ALL and getattr(args[0], "share", 1) < 1 else None  # no text is at its end by chance
    if func in _PASS_ON:
        return known
    if func in _NOT:
        return not known if out.dtype == torch.bool else ~known
    return _COMPARED[func](known, args[1]) if func in _COMPARED else None


def _of_both(combine: Callable[[Any, Any], Any], sides: Sequence[Any]) -> Any:
    """What two sides give together: where both are known, or where one of them decides, as True does of "or" and 0 of "and"."""
    if None not in sides:
        return combine(*sides)
    decides = any(each is True for each in sides) if combine is operator.or_ else 0 in sides
    return combine is operator.or_ if decides else None


class EndlessReadsError(RuntimeError):
    """The script reads values in a loop that does not end."""


def _item(mode: Any, _: Any, args: Any, __: Any) -> Any:
    (tensor,) = args
    mode.journal.reads += 1
    if mode.journal.reads > _MOST_READS:
        raise EndlessReadsError(f"{_MOST_READS:,} values were read from tensors without a step of the optimizer")
    constant = getattr(tensor, "constant", None)
    if constant is not None:
        return constant.item()
    if hasattr(tensor, "stand_in"):
        return tensor.stand_in
    if getattr(tensor, "holds", False):
        mode.journal.assume("stand-in-all", "what a script asks of all elements of a tensor holds: tensors have no data here")
        return True
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
    if hasattr(mask, "share"):
        mode.journal.assume("balanced-experts", "experts get equal shares of the tokens: tensors have no data here to route them by")
    else:
        mode.journal.assume("stand-in-selection", "a selection by values takes every element")
    return _count(mask)


def _count(mask: Any) -> int:
    """How many elements a mask selects."""
    return round(int(mask.numel()) * float(getattr(mask, "share", 1)))


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
    """Indices that are masks are the positions that these select, which has been noted: `nonzero` is called for them."""
    tensor, indices, *rest = args
    positions: list[Any] = []
    with mode:
        for each in indices:
            if each is not None and each.dtype in (torch.bool, torch.uint8):
                positions += [each.new_empty((_count(each),), dtype=torch.int64) for _ in range(each.dim())]
            else:
                positions.append(each)
        return func(tensor, positions, *rest, **kwargs)


_ALL_DIFFERENT = ("stand-in-unique", "the elements of a tensor count as all different")


def _unique(mode: Any, _: Any, args: Any, __: Any) -> Any:
    tensor = args[0]
    mode.journal.assume(*_ALL_DIFFERENT)
    with mode:
        flat = tensor.reshape(-1)
        return flat, flat.new_empty(tensor.shape, dtype=torch.int64), flat.new_empty(flat.shape, dtype=torch.int64)


def _unique_dim(mode: Any, _: Any, args: Any, __: Any) -> Any:
    tensor, dim = args[0], args[1]
    mode.journal.assume(*_ALL_DIFFERENT)
    with mode:
        return tensor.clone(), *(tensor.new_empty(tensor.shape[dim], dtype=torch.int64) for _ in range(2))


def _unique_consecutive(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    dim = args[3] if len(args) > 3 else kwargs.get("dim")
    if dim is not None:
        return _unique_dim(mode, func, (args[0], dim), kwargs)
    return _unique(mode, func, args, kwargs)


def _repeat_interleave(mode: Any, _: Any, args: Any, kwargs: Any) -> Any:
    counts = args[0]
    total = kwargs.get("output_size")
    if total is None and value_of(counts) is not None:
        total = int(value_of(counts)) * counts.numel()
    if total is None:
        mode.journal.assume("stand-in-repeats", "elements that are repeated as often as a tensor says are repeated once")
        total = counts.numel()
    with mode:
        return counts.new_empty((total,), dtype=torch.int64)


def _bincount(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    if not hasattr(args[0], "classes"):
        mode.journal.assume("stand-in-counts", "elements that are counted by their values are equally frequent")
    weights = args[1] if len(args) > 1 else kwargs.get("weights")
    length = args[2] if len(args) > 2 else kwargs.get("minlength", 0)
    dtype = torch.int64 if weights is None else torch.float32 if weights.dtype == torch.float32 else torch.float64
    with mode:
        out = args[0].new_empty((max(int(length), 1),), dtype=dtype)
    routing.follow(func, args, out)
    return out


def pin(tensor: Any) -> Any:
    """Let a tensor of the host say that its memory is pinned; returns it."""
    tensor.pinned = True
    return tensor


STAND_INS: dict[Any, Callable[[Any, Any, Any, Any], Any]] = shapes.rules() | {
    aten._local_scalar_dense.default: _item, aten.item.default: _item, aten.is_nonzero.default: lambda *given: bool(_item(*given)),
    aten.equal.default: _equal, aten.allclose.default: _equal, aten.nonzero.default: _nonzero,
    aten.masked_select.default: _masked_select, aten.index.Tensor: _index, aten._unique2.default: _unique,
    aten.unique_dim.default: _unique_dim, aten.unique_consecutive.default: _unique_consecutive,
    aten.repeat_interleave.Tensor: _repeat_interleave, aten.bincount.default: _bincount,
    aten._cudnn_rnn_backward.default: recurrent.backward, aten.record_stream.default: lambda *_: None,
    aten._pin_memory.default: lambda _, __, args, ___: pin(args[0]),
    aten.is_pinned.default: lambda _, __, args, ___: getattr(args[0], "pinned", False),
}  # fmt: skip


#: Elements of the largest tensor that an operator may make for real, so that memory stays bounded.
_LARGEST = 1 << 20


def can_run_for_real(mode: Any, func: Any, args: Any, kwargs: Any) -> bool:
    """Whether an operator reads and makes tensors with data only."""
    tensors = list(_tensors((*args, *kwargs.values())))
    if any(isinstance(each, FakeTensor) or each.device.type != "cpu" for each in tensors):
        return False
    device = kwargs.get("device")
    if device is not None and torch.device(device).type != "cpu":
        return False
    if func in STAND_INS or func is torch.ops.aten.lift_fresh.default:
        return bool(tensors)
    return _is_small(mode, func, args, kwargs)


def run_for_real(func: Any, args: Any, kwargs: Any) -> Any:
    """The result of an operator on tensors with data. Pinned memory is ordinary memory that says it is pinned: a build of torch for CPUs
    has no other."""
    if func in PINNED:
        return STAND_INS[func](None, func, args, kwargs)
    out = func(*args, **{name: value for name, value in kwargs.items() if name != "pin_memory"})
    if kwargs.get("pin_memory"):
        pin(out)
    return out


def _is_small(mode: Any, func: Any, args: Any, kwargs: Any) -> bool:
    """Whether the results are, which an operator on tensors without data tells; one that cannot tell depends on data and is run."""
    shapes = [each.shape for each in _tensors((*args, *kwargs.values()))]
    if not shapes and args and isinstance(args[0], (list, tuple)) and all(isinstance(each, int) for each in args[0]):
        return math.prod(args[0]) <= _LARGEST
    if sum(math.prod(shape) for shape in shapes) > _LARGEST:
        return False
    return bool(mode.largest_result(func, args, kwargs) <= _LARGEST)


def _tensors(values_given: Any) -> Iterator[Any]:
    for each in values_given:
        if isinstance(each, torch.Tensor):
            yield each
        elif isinstance(each, (list, tuple)):
            yield from _tensors(each)
