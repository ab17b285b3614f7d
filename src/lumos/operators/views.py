"""What operators make of the axes of their inputs where the values of their arguments decide: views, parts, joins, sums, windows.

Each function takes the call, the tensors of its inputs and the symbols, and gives the results as shapes with axes; None where the recording
does not have the values.
"""

from __future__ import annotations

import json
from math import prod
from typing import TYPE_CHECKING, NamedTuple

from lumos.operators.symbols import ONE, Axis, Symbols, Window
from lumos.operators.table import convolution_windows, own_name

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from lumos.operators.table import Shape


class Sized(NamedTuple):
    """The shape of a tensor with its axes. strides: how far apart the neighbours along each axis lie in memory, in elements; () where that
    is not known."""

    shape: Shape
    axes: tuple[Axis, ...]
    strides: Shape = ()


class CallArguments(NamedTuple):
    """What an operator was called with. values: of its arguments, as the profiler writes them. tensors: by the argument's place. lists:
    the tensors of those arguments that are lists."""

    name: str
    values: Sequence[str]
    tensors: Mapping[int, Sized]
    lists: Mapping[int, Sequence[Sized]]
    symbols: Symbols

    def numbers(self, argument: int) -> list[int] | None:
        """The whole numbers of an argument; None where the recording has none."""
        text = self.values[argument] if argument < len(self.values) else ""
        try:
            value = json.loads(text) if text else None
        except (ValueError, RecursionError):  # no JSON, too many digits, or nested without end
            return None
        numbers = [x for x in (value if isinstance(value, list) else [value]) if type(x) is int]
        return numbers if len(numbers) == (len(value) if isinstance(value, list) else 1) else None

    def number(self, argument: int) -> int | None:
        """One whole number."""
        numbers = self.numbers(argument)
        return numbers[0] if numbers and len(numbers) == 1 else None

    def axis(self, argument: int, axes: int, default: int | None = None) -> int | None:
        """The place of an axis, counted from the first."""
        number = self.number(argument)
        number = default if number is None else number
        return None if number is None or not -axes <= number < axes else number % axes


Results = list[Sized] | None


def _changed(tensor: Sized, at: int, size: int, axis: Axis) -> Sized:
    return Sized((*tensor.shape[:at], size, *tensor.shape[at + 1 :]), (*tensor.axes[:at], axis, *tensor.axes[at + 1 :]))


def _part(tensor: Sized, at: int, size: int, axis: Axis) -> Sized:
    """So many neighbours along an axis of a tensor, where they lie."""
    return _changed(tensor, at, size, axis)._replace(strides=tensor.strides)


def _taken(tensor: Sized, places: Sequence[int]) -> Sized:
    strides = tuple(tensor.strides[i] for i in places) if tensor.strides else ()
    return Sized(tuple(tensor.shape[i] for i in places), tuple(tensor.axes[i] for i in places), strides)


def in_order(shape: Shape) -> Shape:
    """The strides of a tensor whose elements lie one after the other."""
    return tuple(prod(shape[i + 1 :]) for i in range(len(shape)))


# ---------------------------------------------------------------- views


def seen_as(tensor: Sized, sizes: Sequence[int], symbols: Symbols) -> Sized | None:
    """A tensor seen with other sizes, of as many elements."""
    if prod(sizes) != prod(tensor.shape) or not prod(sizes):
        return None
    out: list[Axis] = []
    i = j = 0
    shape, axes = tensor.shape, tensor.axes
    while i < len(shape) or j < len(sizes):
        if i < len(shape) and j < len(sizes) and shape[i] == sizes[j]:
            out.append(axes[i])
            i, j = i + 1, j + 1
            continue
        first, begin, held, wanted = i, j, 1, 1
        while i == first or j == begin or held != wanted:
            if (held <= wanted and i < len(shape)) or j >= len(sizes):
                if i >= len(shape):
                    break
                held, i = held * shape[i], i + 1
            else:
                wanted, j = wanted * sizes[j], j + 1
        while i < len(shape) and shape[i] == 1 and not (j < len(sizes) and sizes[j] == 1):
            i += 1
        while j < len(sizes) and sizes[j] == 1 and not (i < len(shape) and shape[i] == 1):
            j += 1
        whole = symbols.product(*axes[first:i])
        out += [whole] if j - begin == 1 else symbols.viewed(whole, sizes[begin:j])
    return Sized(tuple(sizes), tuple(out), in_order(tuple(sizes)) if tensor.strides == in_order(tensor.shape) else ())


def _view(call: CallArguments) -> Results:
    tensor, sizes = call.tensors[0], call.numbers(1)
    if sizes is None:
        return None
    known = prod(size for size in sizes if size != -1)
    sizes = [prod(tensor.shape) // max(known, 1) if size == -1 else size for size in sizes]
    seen = seen_as(tensor, sizes, call.symbols)
    return None if seen is None else [seen]


def _view_as(call: CallArguments) -> Results:
    seen = seen_as(call.tensors[0], call.tensors[1].shape, call.symbols)
    return None if seen is None else [seen]


def _transposed(call: CallArguments) -> Results:
    tensor = call.tensors[0]
    a, b = (call.axis(argument, len(tensor.shape)) for argument in (1, 2))
    if own_name(call.name) == "t":
        a, b = 0, len(tensor.shape) - 1
    if a is None or b is None:
        return None
    order = list(range(len(tensor.shape)))
    order[a], order[b] = b, a
    return [_taken(tensor, order)]


def _permuted(call: CallArguments) -> Results:
    tensor, order = call.tensors[0], call.numbers(1)
    return None if order is None else [_taken(tensor, [i % len(tensor.shape) for i in order])]


def _unsqueezed(call: CallArguments) -> Results:
    tensor = call.tensors[0]
    at = call.axis(1, len(tensor.shape) + 1)
    return None if at is None else [_inserted(tensor, at, 1, ONE)]


def _inserted(tensor: Sized, at: int, size: int, axis: Axis) -> Sized:
    return Sized((*tensor.shape[:at], size, *tensor.shape[at:]), (*tensor.axes[:at], axis, *tensor.axes[at:]))


def _as_real(call: CallArguments) -> Results:
    tensor = call.tensors[0]
    return [_inserted(tensor, len(tensor.shape), 2, call.symbols.number(2))]


def _squeezed(call: CallArguments) -> Results:
    tensor, asked = call.tensors[0], call.numbers(1)
    axes = len(tensor.shape)
    gone = range(axes) if asked is None else [i % axes for i in asked]
    return [_taken(tensor, [i for i in range(axes) if tensor.shape[i] != 1 or i not in gone])]


def _expanded(call: CallArguments) -> Results:
    tensor, sizes = call.tensors[0], call.numbers(1)
    if sizes is None:
        return None
    new = len(sizes) - len(tensor.shape)
    strides = (0,) * new + (tensor.strides or (0,) * len(tensor.shape))
    out = [
        (tensor.shape[i - new], tensor.axes[i - new], strides[i])
        if i >= new and size in (-1, tensor.shape[i - new])
        else (size, call.symbols.copies(size), 0)
        for i, size in enumerate(sizes)
    ]
    shape, axes, apart = map(tuple, zip(*out, strict=True)) if out else ((), (), ())
    return [Sized(shape, axes, apart if tensor.strides else ())]


def _flattened(call: CallArguments) -> Results:
    tensor = call.tensors[0]
    axes = len(tensor.shape)
    a, b = call.axis(1, axes, 0), call.axis(2, axes, -1)
    if a is None or b is None:
        return None
    sizes = [*tensor.shape[:a], prod(tensor.shape[a : b + 1]), *tensor.shape[b + 1 :]]
    seen = seen_as(tensor, sizes, call.symbols)
    return None if seen is None else [seen]


def _unflattened(call: CallArguments) -> Results:
    tensor, sizes = call.tensors[0], call.numbers(2)
    at = call.axis(1, len(tensor.shape))
    if sizes is None or at is None:
        return None
    known = prod(size for size in sizes if size != -1)
    sizes = [tensor.shape[at] // max(known, 1) if size == -1 else size for size in sizes]
    seen = seen_as(tensor, [*tensor.shape[:at], *sizes, *tensor.shape[at + 1 :]], call.symbols)
    return None if seen is None else [seen]


def _strided(call: CallArguments) -> Results:
    tensor, sizes = call.tensors[0], call.numbers(1)
    if sizes is None or prod(sizes) != prod(tensor.shape):
        return None
    strides = tuple(call.numbers(2) or ())
    if sorted(sizes) == sorted(tensor.shape):
        if len(set(sizes)) < len(sizes):
            return None  # which of two axes of one size is which, the view that calls this one says
        return [Sized(tuple(sizes), tuple(tensor.axes[tensor.shape.index(size)] for size in sizes), strides)]
    found_view = seen_as(tensor, sizes, call.symbols)
    return None if found_view is None else [found_view._replace(strides=strides)]


# ---------------------------------------------------------------- parts


#: By how many elements a part may be shorter than the whole axis to be the whole but for so many, and no fraction of it.
_FEW = 3


def _part_of(symbols: Symbols, axis: Axis, size: int, wanted: int) -> Axis:
    """A part of an axis that does not say which part: nearly all, one element, a fraction, or else anything."""
    if wanted == size:
        return axis
    if wanted == 1:
        return ONE
    if 0 < size - wanted <= _FEW:
        return symbols.sum([(1, axis)], wanted - size)
    return symbols.divided(axis, size // wanted) if wanted and size % wanted == 0 else symbols.plain(wanted)


def _sliced(call: CallArguments) -> Results:
    tensor = call.tensors[0]
    at = call.axis(1, len(tensor.shape), 0)
    if at is None:
        return None
    size = tensor.shape[at]
    begin, end, step = call.number(2) or 0, call.number(3), call.number(4) or 1
    low, high = (max(0, x + size) if x < 0 else min(x, size) for x in (begin, size if end is None else end))
    wanted = max(0, -(-(high - low) // step))
    axis = _part_of(call.symbols, tensor.axes[at], size, wanted)
    return [(_part if step == 1 else _changed)(tensor, at, wanted, axis)]


def _narrowed(call: CallArguments) -> Results:
    tensor, wanted = call.tensors[0], call.number(3)
    at = call.axis(1, len(tensor.shape))
    if at is None or wanted is None:
        return None
    return [_part(tensor, at, wanted, _part_of(call.symbols, tensor.axes[at], tensor.shape[at], wanted))]


def _selected(call: CallArguments) -> Results:
    tensor = call.tensors[0]
    at = call.axis(1, len(tensor.shape), 0)
    return None if at is None else [_taken(tensor, [i for i in range(len(tensor.shape)) if i != at])]


def _unbound(call: CallArguments) -> Results:
    tensor = call.tensors[0]
    at = call.axis(1, len(tensor.shape), 0)
    if at is None:
        return None
    return [_taken(tensor, [i for i in range(len(tensor.shape)) if i != at])] * tensor.shape[at]


def _split(call: CallArguments) -> Results:
    tensor, asked = call.tensors[0], call.numbers(1)
    at = call.axis(2, len(tensor.shape), 0)
    if at is None or not asked:
        return None
    size = tensor.shape[at]
    if own_name(call.name) in ("chunk", "tensor_split"):
        asked = [-(-size // max(asked[0], 1))]
    whole, rest = divmod(size, asked[0]) if len(asked) == 1 and asked[0] > 0 else (0, 0)
    sizes = [asked[0]] * whole + [rest] * (rest > 0) if len(asked) == 1 else asked
    if not sizes or sum(sizes) != size:
        return None
    if len(set(sizes)) == 1:
        return [_part(tensor, at, sizes[0], call.symbols.divided(tensor.axes[at], len(sizes)))] * len(sizes)
    parts = [call.symbols.plain(part) for part in sizes]
    call.symbols.unify(tensor.axes[at], call.symbols.sum([(1, part) for part in parts], 0))
    return [_part(tensor, at, part, axis) for part, axis in zip(sizes, parts, strict=True)]


# ---------------------------------------------------------------- results with other axes


def _joined(call: CallArguments) -> Results:
    tensors = [tensor for tensor in call.lists.get(0, ()) if prod(tensor.shape) and tensor.shape]
    if not tensors or len({len(tensor.shape) for tensor in tensors}) != 1:
        return None
    at = call.axis(1, len(tensors[0].shape), 0)
    if at is None:
        return None
    for tensor in tensors[1:]:
        for i, axis in enumerate(tensor.axes):
            if i != at:
                call.symbols.unify(tensors[0].axes[i], axis)
    total = sum(tensor.shape[at] for tensor in tensors)
    return [_changed(tensors[0], at, total, call.symbols.sum([(1, tensor.axes[at]) for tensor in tensors], 0))]


def _stacked(call: CallArguments) -> Results:
    tensors = call.lists.get(0, ())
    if not tensors or len({tensor.shape for tensor in tensors}) != 1:
        return None
    at = call.axis(1, len(tensors[0].shape) + 1, 0)
    if at is None:
        return None
    for tensor in tensors[1:]:
        for a, b in zip(tensors[0].axes, tensor.axes, strict=True):
            call.symbols.unify(a, b)
    return [_inserted(tensors[0], at, len(tensors), Axis(len(tensors)))]


def _reduced(call: CallArguments) -> Results:
    tensor = call.tensors[0]
    argument = 2 if own_name(call.name) == "linalg_vector_norm" else 1
    asked, axes = call.numbers(argument), len(tensor.shape)
    if asked is None:
        return [Sized((), ())]
    kept = any(call.values[i] == "True" for i in range(argument + 1, min(argument + 3, len(call.values))))
    gone = {i % axes for i in asked} if asked and axes else set(range(axes))
    if kept:
        return [Sized(tuple(1 if i in gone else n for i, n in enumerate(tensor.shape)),
                      tuple(ONE if i in gone else a for i, a in enumerate(tensor.axes)))]  # fmt: skip
    return [_taken(tensor._replace(strides=()), [i for i in range(axes) if i not in gone])]


def _sized(call: CallArguments) -> Results:
    sizes = call.numbers(1 if own_name(call.name).startswith("new_") else 0)
    return None if sizes is None else [Sized(tuple(sizes), tuple(call.symbols.plain(size) for size in sizes))]


def _counted(call: CallArguments) -> Results:
    first, last, step = (call.number(argument) for argument in range(3))
    if first is None:
        return None
    size = first if last is None else -(-(last - first) // (step or 1))
    return [Sized((size,), (call.symbols.plain(size),))] if size >= 0 else None


def _padded(call: CallArguments) -> Results:
    tensor, widths = call.tensors[0], call.numbers(1)
    if widths is None:
        return None
    for i in range(len(widths) // 2):
        at, more = len(tensor.shape) - 1 - i, widths[2 * i] + widths[2 * i + 1]
        if more:
            tensor = _changed(tensor, at, tensor.shape[at] + more, call.symbols.sum([(1, tensor.axes[at])], more))
    return [tensor]


def _chosen(call: CallArguments) -> Results:
    tensor, wanted = call.tensors[0], call.number(1)
    at = call.axis(2, len(tensor.shape), -1)
    if wanted is None or at is None:
        return None
    return [_changed(tensor, at, wanted, call.symbols.plain(wanted))] * 2


def _indexed(call: CallArguments) -> Results:
    tensor, by = call.tensors[0], call.lists.get(1, ())
    if len(by) != 1 or len(by[0].shape) != 1:
        return None
    return [Sized((*by[0].shape, *tensor.shape[1:]), (*by[0].axes, *tensor.axes[1:]))]


def _convolved(call: CallArguments) -> Results:
    data, weight = call.tensors[0], call.tensors[1]
    windows = convolution_windows(call.name, call.values, data.shape[2:], weight.shape[2:])
    if windows is None:
        return None
    axes = [
        call.symbols.window(Window(data.axes[2 + i], weight.axes[2 + i], window.padding, window.stride, window.dilation))
        for i, window in enumerate(windows)
    ]
    shape = (data.shape[0], weight.shape[0], *(window.positions for window in windows))
    return [Sized(shape, (data.axes[0], weight.axes[0], *axes))]


def _gathered(call: CallArguments) -> Results:
    tensor, ranks = call.tensors[0], call.number(1)
    return None if ranks is None else [_changed(tensor, 0, tensor.shape[0] * ranks, call.symbols.product(Axis(ranks), tensor.axes[0]))]


def _scattered(call: CallArguments) -> Results:
    tensor, ranks = call.tensors[0], call.number(2)
    if not ranks or tensor.shape[0] % ranks:
        return None
    return [_changed(tensor, 0, tensor.shape[0] // ranks, call.symbols.divided(tensor.axes[0], ranks))]


#: By the names of the table: how the results of an operator follow from its arguments.
HOW: dict[str, Callable[[CallArguments], Results]] = {
    "view": _view,
    "view_as": _view_as,
    "transpose": _transposed,
    "t": _transposed,
    "permute": _permuted,
    "unsqueeze": _unsqueezed,
    "squeeze": _squeezed,
    "expand": _expanded,
    "slice": _sliced,
    "narrow": _narrowed,
    "select": _selected,
    "unbind": _unbound,
    "split": _split,
    "chunk": _split,
    "flatten": _flattened,
    "unflatten": _unflattened,
    "as_strided": _strided,
    "view_as_complex": lambda call: [Sized(call.tensors[0].shape[:-1], call.tensors[0].axes[:-1])],
    "view_as_real": _as_real,
    "cat": _joined,
    "stack": _stacked,
    "reduced": _reduced,
    "sized": _sized,
    "counted": _counted,
    "padded": _padded,
    "chosen": _chosen,
    "indexed": _indexed,
    "convolved": _convolved,
    "gathered": _gathered,
    "scattered": _scattered,
}
