"""Stand-ins for values that a script reads from tensors, which have none here, for shapes of results for which torch has no rule, and
operators that run for real.

A number is 1, a truth value is False (no loss is ever nan) except where it says that something holds of all elements, a selection takes
every element: so that a loop runs as it does where nothing is unusual. Small tensors of the host have data, since what a script computes
there decides what it does: how a mesh is laid out, how long a batch is, which learning rate is due. Shapes are those that the kernels
in ATen/native of torch 2.13 give their results. Each stand-in has the mode, the operator, its arguments and its keywords for arguments.
"""

from __future__ import annotations

import math
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from lumos.emulation.process.operators import sparse
from lumos.emulation.process.operators.compiled import PRODUCTS, is_view
from lumos.emulation.process.operators.known import is_pinned, pin, tensors_in, written
from lumos.emulation.record import CallKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lumos.emulation.process.streams import Streams

aten = torch.ops.aten

#: Operators whose answer, or the shape of whose result, depends on values; where these are known, so is it.
BY_VALUES = frozenset({
    aten._local_scalar_dense.default, aten.item.default, aten.is_nonzero.default, aten.equal.default, aten.allclose.default,
    aten.nonzero.default, aten.masked_select.default, aten.index.Tensor, aten._unique2.default, aten.unique_dim.default,
    aten.unique_consecutive.default, aten.repeat_interleave.Tensor, aten.bincount.default,
})  # fmt: skip


def note_read(func: Any, args: Any, streams: Streams) -> None:
    """Note that the thread waits for the device, where the operator makes it wait. One that indexes has asked for positions before."""
    if func in BY_VALUES and func is not aten.index.Tensor and args[0].device.type == "cuda":
        streams.call(CallKind.READ_VALUE, stream=streams.current, size=args[0].element_size())


#: Values that a script may read between two steps. A loop that waits for a value other than its stand-in would read for ever.
_MOST_READS = 20_000

#: Operators about pinned memory, which is ordinary memory here.
PINNED = frozenset({aten._pin_memory.default, aten.is_pinned.default})

#: Operators that say whether something holds of all elements.
_ALL = frozenset({aten.all.default, aten.all.dim, aten.all.dims, aten._is_all_true.default})
#: Operators of two sides of which one may decide, as True does of "or" and 0 of "and".
_DECIDES: dict[Any, bool] = {
    aten.bitwise_or.Tensor: True, aten.logical_or.default: True, aten.bitwise_and.Tensor: False, aten.logical_and.default: False,
}  # fmt: skip

#: Operators that choose by scores: their result with the choices, and how many there are to choose from.
_CHOOSE: dict[Any, Callable[[Any, Any], tuple[Any, int]]] = {
    aten.topk.default: lambda args, out: (out[1], args[0].shape[args[2] if len(args) > 2 else -1]),
    aten.max.dim: lambda args, out: (out[1], args[0].shape[args[1]]),
    aten.argmax.default: lambda args, out: (out, args[0].numel() // max(out.numel(), 1)),
    aten.multinomial.default: lambda args, out: (out, args[0].shape[-1]),
}
#: Operators that sort: their second result is where each element was.
_SORT = (aten.sort.default, aten.sort.stable)


def from_data(mode: Any, source: Any) -> Any:
    """A tensor without data that takes the place of `source`, which has data: its values stay known, and that it is pinned."""
    if source.layout is torch.sparse_coo:
        return sparse.without_data(source, lambda part: from_data(mode, part))
    tensor = mode.from_tensor(source)
    if is_pinned(source):
        pin(tensor)
    if source.device.type == "cpu" and not source.requires_grad:
        mode.known.forget(tensor)
        mode.known.know(tensor, source)
    return tensor


def pass_on(mode: Any, func: Any, args: Any, kwargs: Any, out: Any) -> None:
    """Note what follows for the results of an operator although not all that it was given is known."""
    if func in _CHOOSE and not mode.known.has(args[0]):
        _choose(mode, *_CHOOSE[func](args, out))
    elif func in _SORT and not mode.known.has(args[0]):
        _sorted(mode, out[1], kwargs.get("dim", args[1] if len(args) > 1 else -1))
    elif func is aten._amp_foreach_non_finite_check_and_unscale_.default:
        mode.known.know(args[1], 0.0)  # no gradient is infinite
    elif func in _DECIDES and (out.dtype == torch.bool or not _DECIDES[func]):
        if any(mode.known.count(side) == _DECIDES[func] * side.numel() for side in tensors_in(args[:2])):
            mode.known.know(out, _DECIDES[func])
    elif func in _ALL and not mode.known.has(out):
        mode.journal.assume("stand-in-all", "what a script asks of all elements of a tensor holds: tensors have no data here")
        mode.known.know(out, True)


def _choose(mode: Any, chosen: Any, count: int) -> None:
    """Choices are made in turn, so that each of `count` is made as often as any other. They begin in the middle, since the first and the
    last of a vocabulary often end a text."""
    mode.journal.assume("balanced-experts", "what is chosen by scores, such as experts, is chosen in turn: tensors have no data here")
    with mode.aside(hidden=True):
        mode.known.know(chosen, (torch.arange(chosen.numel()).reshape(tuple(chosen.shape)) + count // 2) % max(count, 1))


def _sorted(mode: Any, places: Any, dim: int) -> None:
    """What is sorted by values that nobody knows stays in its order."""
    mode.journal.assume("stand-in-order", "what is sorted by unknown values is in order already: tensors have no data here")
    if places.dim():
        with mode.aside(hidden=True):
            positions = torch.arange(places.shape[dim]).reshape(-1, *[1] * (places.dim() - 1 - dim % places.dim()))
            mode.known.know(places, positions.expand(tuple(places.shape)).contiguous())


#: Operators that may write elements more than once.
_AGAIN = frozenset({aten.index_put_, aten._index_put_impl_, aten.index_fill_, aten.masked_fill_, aten.fill_, aten.zero_, aten.set_})
#: Operators that take one type alone, which torch's rules for shapes do not look at.
_OF_ONE_TYPE = PRODUCTS | {aten.convolution, aten.index_add, aten.index_add_, aten.index_copy, aten.index_copy_}
#: Types for which the host has all kernels that the device has, as the table of operators in torch.testing says, but for some operators;
#: and operators whose kernels on the device take no whole numbers, as those on the host do. Narrower types stand for the first.
_PLAIN = frozenset({torch.float32, torch.float64, torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64})
_NARROWER = frozenset({torch.float16, torch.bfloat16})
_FEWER_ON_HOST = frozenset({aten.abs, aten.trace, aten.histc, aten.nansum})
_OF_FLOATS = PRODUCTS | {
    aten.convolution, aten.cudnn_convolution, aten.max_pool2d_with_indices, aten.max_pool3d_with_indices, aten.avg_pool2d, aten.avg_pool3d,
}  # fmt: skip
#: What is wrong with calls, by operator, types, dimensions and numbers.
_WRONG: dict[tuple[Any, ...], Exception | None] = {}


def check_kernel(mode: Any, func: Any, args: Any, kwargs: Any) -> None:
    """Raise the error of torch's kernel for tensors of a type that it lacks, a dimension that they have not, or a number that it refuses:
    the host's own kernel is tried on tensors of one element, once for each."""
    tensors = list(tensors_in((args, kwargs)))
    types = [torch.float32 if tensor.dtype in _NARROWER else tensor.dtype for tensor in tensors]
    if not tensors or not all(tensor.numel() for tensor in tensors) or not _is_tried(func) or not _PLAIN.issuperset(types):
        return  # no kernel runs for nothing
    if func.overloadpacket in _OF_FLOATS and tensors[0].is_cuda and not types[0].is_floating_point:
        raise RuntimeError(f"{func._schema.name}: not implemented for {types[0]}")
    call = func, *types, *(tensor.dim() for tensor in tensors), *(number for number in args if type(number) in (int, float))
    if call not in _WRONG:
        _WRONG[call] = _error(mode, func, args, kwargs, types)
    if (wrong := _WRONG[call]) is not None:
        raise type(wrong)(str(wrong))


@cache
def _is_tried(func: Any) -> bool:
    """Whether an operator has a kernel that draws nothing and makes new tensors. Those of a backward pass follow from what was checked."""
    if func.namespace != "aten" or func in PINNED or func.overloadpacket in _FEWER_ON_HOST or "backward" in func._schema.name:
        return False
    return torch.Tag.nondeterministic_seeded not in func.tags and not is_view(func)


def _error(mode: Any, func: Any, args: Any, kwargs: Any, types: list[Any]) -> Exception | None:
    """What the host's kernel says against types, dimensions or numbers: it says nothing where these are others, whatever the sizes."""

    def tried(numbers: Any, types: list[Any]) -> Exception | None:
        given = iter(types)
        with mode.aside(hidden=True), torch.no_grad():
            try:
                func(*_single(numbers, given), **dict(zip(kwargs, _single(kwargs.values(), given), strict=True)))
            except (RuntimeError, IndexError, TypeError, ValueError) as error:
                return error.with_traceback(None)  # whose frames would keep the tensors
        return None

    error = tried(args, types)
    if error is None or "ZeroDivisionError" in str(error):
        return None
    if "not implemented for '" in str(error) or str(error).startswith("Dimension out of range"):
        return error
    usual = [own.default_value if type(given) is float else given for own, given in zip(func._schema.arguments, args, strict=False)]
    others = [torch.float32] * len(types), [types[0], *[torch.int64] * (len(types) - 1)]  # all numbers, and numbers with indices
    is_at_fault = None in [tried(args, other) for other in others] or (None not in usual and tried(usual, types) is None)
    return error if is_at_fault else None


def _single(given: Any, types: Iterator[Any]) -> list[Any]:
    """Arguments with a tensor of one element in the place of each, of these types in turn."""
    return [
        torch.zeros([1] * argument.dim(), dtype=next(types)) if isinstance(argument, torch.Tensor)
        else _single(argument, types) if isinstance(argument, (list, tuple))
        else torch.device("cpu") if isinstance(argument, torch.device) else argument for argument in given
    ]  # fmt: skip


def check_memory(func: Any, args: Any, kwargs: Any) -> None:
    """Raise torch's error for elements that a call would write more than once, as of a dimension that is expanded."""
    if func.overloadpacket in _AGAIN or torch.Tag.inplace_view in func.tags:
        return
    every = ((size, by) for tensor in written(func, args, kwargs) for size, by in zip(tensor.shape, tensor.stride(), strict=True))
    if any(size > 1 and not by for size, by in every):
        said = "more than one element of the written-to tensor refers to a single memory location"
        raise RuntimeError(f"unsupported operation: {said}. Please clone() the tensor before performing the operation.")


def check_types(func: Any, args: Any) -> None:
    """Raise the error of torch's kernel for tensors whose types do not go together, or more draws than there are choices."""
    if func.overloadpacket in _OF_ONE_TYPE and func._overloadname == "default":
        types = [tensor.dtype for tensor in tensors_in(args) if tensor.is_floating_point() or tensor.is_complex()]
        other = next((dtype for dtype in types if dtype != types[0]), None)
        if other is not None:
            raise RuntimeError(f"{func._schema.name}: tensors must have the same dtype, but got {types[0]} and {other}")
    elif func is aten.multinomial.default and args[1] > args[0].shape[-1] and not any(args[2:]):
        raise RuntimeError(f"cannot sample {args[1]} of {args[0].shape[-1]} samples without replacement")


#: Operators of which an argument indexes the first one: its place, the dimension, and the place of an index that says that there is none.
_INDEXED = {aten.nll_loss_forward: (1, 1, 4), aten.nll_loss2d_forward: (1, 1, 4), aten.embedding: (1, 0, None)}


def check_indices(mode: Any, func: Any, args: Any) -> None:
    """Raise what the device says of known classes and rows beyond those that there are, unless something may have stood in for them."""
    place, dim, ignored = _INDEXED.get(func.overloadpacket, (0, 0, None))
    known = mode.known.of(args[place]) if place and not mode.journal.stands_in else None
    if known is not None:
        size = args[0].shape[min(dim, args[0].dim() - 1)]
        with mode.aside(hidden=True):
            outside = [value for value in known[(known < 0) | (known >= size)].tolist() if ignored is None or value != args[ignored]]
        if outside:
            raise RuntimeError(f"CUDA error: device-side assert triggered: index {outside[0]} is out of bounds of {size}")


class EndlessReadsError(RuntimeError):
    """The script reads values in a loop that does not end."""


def count_read(mode: Any, func: Any) -> None:
    """Count a value that the script reads. Raises EndlessReadsError where they do not end."""
    if func is aten._local_scalar_dense.default:
        mode.journal.reads += 1
        if mode.journal.reads > _MOST_READS:
            raise EndlessReadsError(f"{_MOST_READS:,} values were read from tensors without a step of the optimizer")


def _item(mode: Any, _: Any, args: Any, __: Any) -> Any:
    (tensor,) = args
    mode.journal.assume("stand-in-value", "a value read from a tensor is 1, and a truth value False: tensors have no data here")
    if tensor.dtype == torch.bool:
        return False
    return complex(1.0) if tensor.dtype.is_complex else 1.0 if tensor.dtype.is_floating_point else 1


def _equal(mode: Any, *_: Any) -> bool:
    mode.journal.assume("stand-in-equal", "tensors that are compared as a whole count as equal")
    return True


#: What is noted where a selection follows from values that nobody knows.
ALL_SELECTED = "stand-in-selection", "a selection by values takes every element"


def _selected(mode: Any, mask: Any) -> int:
    if not mode.known.has(mask):
        mode.journal.assume(*ALL_SELECTED)
    return _count(mode, mask)


def _count(mode: Any, mask: Any) -> int:
    """How many elements a mask selects."""
    known = mode.known.count(mask)
    return int(mask.numel() if known is None else known)


def _nonzero(mode: Any, _: Any, args: Any, __: Any) -> Any:
    (tensor,) = args
    with mode:
        return tensor.new_empty((_selected(mode, tensor), tensor.dim()), dtype=torch.int64)


def _masked_select(mode: Any, _: Any, args: Any, __: Any) -> Any:
    with mode:
        tensor, mask = torch.broadcast_tensors(*args)
        return tensor.new_empty((_selected(mode, mask),))


def _index(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """Indices that are masks are the positions that these select, which has been noted: `nonzero` is called for them."""
    tensor, indices, *rest = args
    positions: list[Any] = []
    with mode:
        for index in indices:
            if index is not None and index.dtype in (torch.bool, torch.uint8):
                if index.shape != tensor.shape[len(positions) : len(positions) + index.dim()]:
                    raise IndexError(f"the mask has shape {list(index.shape)}, the indexed tensor {list(tensor.shape)}")
                positions += [index.new_empty((_count(mode, index),), dtype=torch.int64) for _ in range(index.dim())]
            else:
                positions.append(index)
        return func(tensor, positions, *rest, **kwargs)


def _unique(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """Of a whole tensor, or along a dimension, which two of these operators may have."""
    mode.journal.assume("stand-in-unique", "the elements of a tensor count as all different")
    tensor, position = args[0], {aten.unique_dim.default: 1, aten.unique_consecutive.default: 3}.get(func, len(args))
    dim = args[position] if position < len(args) else kwargs.get("dim")
    with mode:
        if dim is not None:
            return tensor.clone(), *(tensor.new_empty(tensor.shape[dim], dtype=torch.int64) for _ in range(2))
        flat = tensor.reshape(-1)
        return flat, flat.new_empty(tensor.shape, dtype=torch.int64), flat.new_empty(flat.shape, dtype=torch.int64)


def _repeat_interleave(mode: Any, _: Any, args: Any, kwargs: Any) -> Any:
    total = kwargs.get("output_size")
    if total is None:
        mode.journal.assume("stand-in-repeats", "elements that are repeated as often as a tensor says are repeated once")
    with mode:
        return args[0].new_empty((args[0].numel() if total is None else total,), dtype=torch.int64)


def _bincount(mode: Any, _: Any, args: Any, kwargs: Any) -> Any:
    mode.journal.assume("stand-in-counts", "elements that are counted by their values are equally frequent")
    given = dict(zip(("weights", "minlength"), args[1:], strict=False)) | kwargs
    weights = given.get("weights")
    dtype = torch.int64 if weights is None else torch.float32 if weights.dtype == torch.float32 else torch.float64
    with mode:
        out = args[0].new_empty((max(int(given.get("minlength", 0)), 1),), dtype=dtype)
    if weights is None:
        mode.known.know(out, args[0].numel() // out.numel())
    return out


def _in_pinned_memory(mode: Any, _: Any, args: Any, __: Any) -> Any:
    """A copy in pinned memory, but of what lies there already."""
    if is_pinned(args[0]):
        return args[0]
    out = pin(args[0].clone())
    if mode is not None and (values := mode.known.copied(args[0])) is not None:
        mode.known.know(out, values)
    return out


def _convolution(*names: str) -> Callable[..., Any]:
    """The rule of a convolution by a library, which has the result of any other. names: of its arguments after image and weight."""

    def shape(mode: Any, _: Any, args: Any, __: Any) -> Any:
        given = dict(zip(names, args[2:], strict=False))
        bias, out_padding, sizes = given.get("bias"), given.get("output_padding"), (given["stride"], given["padding"], given["dilation"])
        more = *sizes, out_padding is not None, out_padding or [0] * len(given["stride"]), given["groups"]
        return mode.dispatch(aten.convolution.default, (), (*args[:2], bias, *more), {})

    return shape


def _grouped_mm(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """The device multiplies groups in other types than bfloat16 one after the other, which torch's rule for shapes does not know."""
    one, other, *rest = args
    if one.dtype == torch.bfloat16:
        return mode.dispatch(func, (), args, kwargs)
    with mode:
        return func(one.bfloat16(), other.bfloat16(), *rest, **kwargs).to(one.dtype)


_like = torch.empty_like
_SIZES = ("padding", "stride", "dilation", "groups")


def _sums(tensor: Any, *shape: int) -> Any:
    """A tensor in the precision in which sums are made."""
    return tensor.new_empty(shape, dtype=torch.float32 if tensor.dtype in (torch.float16, torch.bfloat16) else tensor.dtype)


def _ctc_loss(scores: Any, targets: Any, of_scores: Any, of_targets: Any, *_: Any, **__: Any) -> Any:
    """A loss for each sequence, and for each of its moments the states of its target: its letters, with a blank around each."""
    moments, sequences = scores.shape[0], scores.shape[1] if scores.dim() > 2 else 1
    if not len(of_scores) == len(of_targets) == sequences:
        raise RuntimeError(f"lengths must be of size batch_size ({sequences}), but are {len(of_scores)} and {len(of_targets)}")
    letters = targets.shape[1] if targets.dim() == 2 else targets.shape[0] // sequences
    return scores.new_empty(sequences), scores.new_empty(sequences, moments, 2 * letters + 1)


def _gru_backward(gradient: Any, _: Any, has_bias: bool) -> Any:
    """Gradients of the three gates of both sides, of the state, and of both biases."""
    gates = [gradient.new_empty(gradient.shape[0], 3 * gradient.shape[1]) for _ in range(2)]
    return *gates, _like(gradient), *(gate.new_empty(gate.shape[1]) if has_bias else None for gate in gates)


def _batch_norm_sums(_: Any, __: Any, mean: Any, ___: Any, weight: Any, of_input: bool, *wanted: bool) -> Any:
    """Two sums for each channel, and the gradients of weight and bias, of those that are wanted."""
    sums = [_like(mean) if of_input else None for _ in range(2)]
    return *sums, *(_like(weight) if is_wanted and weight is not None else None for is_wanted in wanted)


#: Results by the operator's own arguments.
_SHAPES: dict[str, Callable[..., Any]] = {
    "_cudnn_rnn_backward": lambda x, weights, _, __, h, cell, *___: (
        _like(x), _like(h), None if cell is None else _like(cell), [_like(weight) for weight in weights]
    ),
    # and the reciprocal root mean square of each row
    "_fused_rms_norm": lambda x, shape, *_: (_like(x), _sums(x, *x.shape[: x.dim() - len(shape)], *[1] * len(shape))),
    "_fused_rms_norm_backward": lambda _, x, __, ___, w, wanted: (_like(x), _like(w) if w is not None and wanted[1] else None),
    "_efficientzerotensor": torch.zeros,  # those without memory are meta tensors, which meet those of the device
    # and five values of each element of the state for the backward pass
    "_thnn_fused_gru_cell": lambda _, __, h, *___: (_like(h), h.new_empty(h.shape[0], 5 * h.shape[1])),
    "_thnn_fused_gru_cell_backward": _gru_backward,
    **dict.fromkeys(("_use_cudnn_ctc_loss", "_use_cudnn_ctc_loss.Tensor", "_use_miopen_ctc_loss", "_use_miopen_ctc_loss.Tensor"),
                    lambda *_: False),
    **dict.fromkeys(("_ctc_loss", "_ctc_loss.Tensor"), _ctc_loss), "batch_norm_elemt": lambda x, *_: _like(x),
    **dict.fromkeys(("_ctc_loss_backward", "_ctc_loss_backward.Tensor", "batch_norm_backward_elemt"), lambda _, x, *__, **___: _like(x)),
    # mean and reciprocal deviation of each channel
    **dict.fromkeys(("batch_norm_stats", "batch_norm_gather_stats_with_counts"),
                    lambda x, *_: (_sums(x, x.shape[1]), _sums(x, x.shape[1]))),
    "batch_norm_backward_reduce": _batch_norm_sums,
    # and which elements were inside of the range
    **dict.fromkeys((
        "fake_quantize_per_tensor_affine_cachemask", "fake_quantize_per_channel_affine_cachemask", "_fused_moving_avg_obs_fq_helper",
        "_fake_quantize_per_tensor_affine_cachemask_tensor_qparams",
    ), lambda x, *_: (_like(x), _like(x, dtype=torch.bool))),
}  # fmt: skip


def _shaped(rule: Callable[..., Any]) -> Callable[[Any, Any, Any, Any], Any]:
    def shaped(mode: Any, _: Any, args: Any, kwargs: Any) -> Any:
        with mode:
            return rule(*args, **kwargs)

    return shaped


_BY_NAME: dict[str, Callable[[Any, Any, Any, Any], Any]] = {
    "_local_scalar_dense": _item, "item": _item, "is_nonzero": lambda *given: bool(_item(*given)), "equal": _equal, "allclose": _equal,
    "nonzero": _nonzero, "masked_select": _masked_select, "index.Tensor": _index, "_unique2": _unique, "unique_dim": _unique,
    "unique_consecutive": _unique, "repeat_interleave.Tensor": _repeat_interleave, "bincount": _bincount,
    "record_stream": lambda mode, _, args, __: mode.storages.record_stream(*args),
    "_pin_memory": _in_pinned_memory, "is_pinned": lambda _, __, args, ___: is_pinned(args[0]),
    "mkldnn_convolution": _convolution("bias", *_SIZES), "cudnn_convolution": _convolution(*_SIZES), "_grouped_mm": _grouped_mm,
    "cudnn_convolution_transpose": _convolution("padding", "output_padding", *_SIZES[1:]),
    **{name: _shaped(rule) for name, rule in _SHAPES.items()}, sparse.MADE: sparse.made,
}  # fmt: skip
_operators = {name: getattr(getattr(aten, name.partition(".")[0], None), name.partition(".")[2] or "default", None) for name in _BY_NAME}
#: By operator, of those that this version of torch has.
STAND_INS = {_operators[name]: rule for name, rule in _BY_NAME.items() if _operators[name] is not None}

#: Elements of the largest tensor that an operator may make for real, so that memory stays bounded; and of what it may be given unasked.
_LARGEST, _SURELY_SMALL = 1 << 20, 1 << 13


def can_run_for_real(mode: Any, func: Any, args: Any, kwargs: Any) -> bool:
    """Whether an operator reads and makes tensors with data only."""
    tensors = list(tensors_in((*args, *kwargs.values())))
    if any(isinstance(tensor, FakeTensor) or tensor.device.type != "cpu" for tensor in tensors):
        return False
    device = kwargs.get("device")
    if device is not None and torch.device(device).type != "cpu":
        return False
    if func in STAND_INS or func is aten.lift_fresh.default:
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
    if sum(tensor.numel() for tensor in tensors_in((args, kwargs))) > _LARGEST:
        return False
    if is_view(func) or any(True for _ in written(func, args, kwargs)) or math.prod(map(_size, (*args, *kwargs.values()))) <= _SURELY_SMALL:
        return True
    return bool(mode.largest_result(func, args, kwargs) <= _LARGEST)


def _size(given: Any) -> float:
    """The elements of what is given, as often as any number says. Each with each, no operator makes more than their square of it."""
    if isinstance(given, torch.Tensor) or type(given) in (int, float):
        return float(max(1.0, given.numel() if isinstance(given, torch.Tensor) else abs(given)))
    if not isinstance(given, (list, tuple)):
        return 1.0
    return (sum if given and isinstance(given[0], torch.Tensor) else math.prod)(map(_size, given))
