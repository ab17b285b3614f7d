"""The sizes of a recorded model, and its operators under others.

Every axis of every operator is a product of symbols (`segment.program`), and the sizes of a model are axes that have a name
(`segment.named_axes`). So other sizes are other values of the symbols, and each shape follows from them.
"""

from __future__ import annotations

from collections import defaultdict
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, NamedTuple

from lumos.errors import LumosError
from lumos.operators.shaped import elements
from lumos.operators.symbols import Axis, Sum
from lumos.operators.table import OperatorKind, kind_of
from lumos.segment.named_axes import named_axes, names
from lumos.segment.program import axes_of
from lumos.trace.once import once_a_trace
from lumos.trace.table import origin_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lumos.operators.shaped import ShapedOperator
    from lumos.operators.symbols import Symbols
    from lumos.operators.table import Shape
    from lumos.segment.named_axes import Named
    from lumos.trace.table import Trace

#: The order in which changed sizes are given to axes: those of which others are products come first.
_ORDER = ("micro_batch", "seq", "head_dim", "kv_heads", "heads", "hidden", "ffn", "vocab")


class Sizes(NamedTuple):
    """Sizes of one rank's part of the model, 0 where not found. heads: of the queries; kv_heads: of keys and values."""

    micro_batch: int = 0
    seq: int = 0
    hidden: int = 0
    heads: int = 0
    kv_heads: int = 0
    head_dim: int = 0
    ffn: int = 0
    vocab: int = 0


@once_a_trace
def sizes(trace: Trace) -> Sizes:
    """The sizes of a rank's part of the model. A file of a job that was predicted says them itself."""
    origin = origin_of(trace)
    if origin is not None and origin.sizes:
        return Sizes(**{key: x for key, x in origin.sizes.items() if key in Sizes._fields})
    symbols = axes_of(trace).symbols
    return Sizes(**{name: symbols.size(axes[0]) for name, axes in named_axes(trace).items()})


@once_a_trace
def computed_rows(trace: Trace) -> frozenset[int]:
    """The symbols of rows that a layer multiplies by its weights, and that are joined to no size of the model and of its data: a script
    worked out their number itself, as it does for the places of experts that have a fixed capacity; and of rows that it chose of these."""
    axes = axes_of(trace)
    inside, of, calls = axes.symbols.inside, axes.inferred.of, axes.program.calls
    weights = {s for given in axes.inferred.given if given.weight and len(given.axes) > 1 for axis in given.axes for s in inside(axis)}
    known = weights | {s for several in names(trace).meanings.values() for meant in several for axis in meant for s in inside(axis)}
    out = set[int]()
    for number, made_by in axes.inferred.makers.items():
        taken = [tuple(map(inside, input_axes)) for i in range(len(calls[number].inputs)) for input_axes in of.get((number, i), ())]
        if kind_of(calls[number].name) is OperatorKind.MULTIPLICATION:
            symbols = [set().union(*each) for each in taken if len(each) > 1]
            for weight in (each for each in symbols if each and each <= weights):
                data = set().union(*symbols) - weight
                out |= data if len(data) == 1 and not data & known else set()
        for each, maker in zip(taken, made_by, strict=False):
            chosen_of = of.get((maker, 0), ())
            if each and chosen_of and chosen_of[0] and inside(chosen_of[0][0]) & out and len(each[0]) == 1 and not each[0] & known:
                out |= each[0]
    return frozenset(out)


class Resized:
    """The operators of a trace with other sizes. old, new: sizes of the rank's part. Sizes that are the same leave all shapes alone.

    Rows whose number the script works out (`computed_rows`) are taken to follow the tokens. `staying` are the same operators with as many
    of those rows as recorded; None where there are none.
    """

    def __init__(self, trace: Trace, old: Sizes, new: Sizes, *, following: bool = True) -> None:
        self.old, self.new, self.axes = old, new, axes_of(trace)
        named = named_axes(trace) if old != new else {}
        self._value = symbol_values(self.axes.symbols, named, old, new)
        tokens = max(new.micro_batch, 1) * max(new.seq, 1) / (max(old.micro_batch, 1) * max(old.seq, 1))
        rows = computed_rows(trace) if tokens != 1 else frozenset()
        self.staying = Resized(trace, old, new, following=False) if rows and following else None
        if following:
            self._value |= {s: max(round(tokens * self.axes.symbols.value[s]), 1) for s in rows}
        self._known: dict[int, ShapedOperator] = {}
        self._named = {s for of in named.values() for axis in of for s in self.axes.symbols.inside(axis)}
        self._were = {key: was for key, was, now in zip(Sizes._fields, old, new, strict=True) if was != now}

    def operator(self, index: int) -> ShapedOperator:
        """An operator of `ShapedAxes.operators` with its new shapes."""
        if index not in self._known:
            o = self.axes.operators[index]
            shapes = [tuple(self.axes.symbols.evaluate(axis, self._value) for axis in axes) for axes in self.axes.axes[index]]
            self._known[index] = o._replace(shapes=tuple(shapes)) if self._value else o
        return self._known[index]

    def at(self, row: int, o: ShapedOperator) -> ShapedOperator:
        """The operator `o` of a row with its new shapes; itself where nothing is known of its axes."""
        index = int(self.axes.of_row[row])
        return o if index < 0 else self.operator(index)._replace(dtypes=o.dtypes)

    def of_weights(self, shape: Shape) -> float:
        """How many times as many values the weights of a shape, or of its reverse, have: their mean where they differ, of those of which
        most axes are joined to the sizes of the model. What a recomputed pass reads is often not, though the forward pass read it."""
        known = self._weights.get(tuple(sorted(shape)), {}).values()
        most = max((joined for joined, _ in known), default=0)
        values = [value for joined, value in known if joined == most]
        return sum(values) / (len(values) * prod(shape)) if values else 1.0

    @cached_property
    def _weights(self) -> Mapping[tuple[int, ...], dict[object, tuple[int, int]]]:
        """The weights that have other axes, by their recorded sizes, ascending: how many of their axes are joined to the model's sizes, and
        their new numbers of values."""
        symbols, out = self.axes.symbols, defaultdict[tuple[int, ...], dict[object, tuple[int, int]]](dict)
        for given in self.axes.inferred.given:
            if given.weight:
                key = tuple(sorted(map(symbols.key, given.axes)))
                joined = sum(bool(symbols.inside(axis) & self._named) for axis in given.axes)
                values = prod(symbols.evaluate(axis, self._value) for axis in given.axes)
                out[tuple(sorted(map(symbols.size, given.axes)))][key] = joined, values
        return out

    @property
    def read_twice(self) -> list[int]:
        """The operators that are others where the rows that the script works out stay as they are."""
        staying = self.staying
        return [] if staying is None else [i for i in range(len(self.axes.operators)) if staying.operator(i) != self.operator(i)]

    def rightly_stays(self, index: int, weights: frozenset[Shape]) -> bool:
        """Whether an operator whose shapes stay as they are is known to: what it works on is joined to the sizes of the model, and has no
        axis that is as long as a size that changes and is joined to none. weights: shapes of weights, which have features alone."""
        features = {was for key, was in self._were.items() if key not in ("micro_batch", "seq")}
        for shape, axes in zip(self.axes.operators[index].shapes, self.axes.axes[index], strict=True):
            if elements(shape) < 2:
                continue
            inside = [self.axes.symbols.inside(axis) for axis in axes]
            open_sizes = {size for size, of in zip(shape, inside, strict=True) if not of & self._named and (of or not any(inside))}
            if open_sizes & (features if shape in weights else set(self._were.values())):
                return False
            if shape not in weights and not any(of & self._named for of in inside):
                return False
        return True


def symbol_values(symbols: Symbols, names: Named, old: Sizes, new: Sizes) -> dict[int, int]:
    """The values of symbols that give the axes with names their new sizes. Raises LumosError where an axis cannot have the size that is
    wanted of it."""
    value: dict[int, int] = {}
    changed = [name for name in _ORDER if getattr(new, name) != getattr(old, name)]
    for name in changed:
        for axis in names.get(name, ()):
            _assign(symbols, axis, getattr(new, name), value, outermost=name in ("micro_batch", "seq"))
    for name in changed:
        size, was = getattr(new, name), getattr(old, name)
        if any(symbols.evaluate(axis, value) != size for axis in names.get(name, ())):
            raise LumosError(
                f"--set {name}={size}: the recorded {was} follow from other sizes, such as those of a picture, or are parts of them that"
                f" {size} is not; choose a size with the same parts, or record the job with it"
            )
    return value


def _assign(symbols: Symbols, axis: Axis, size: int, value: dict[int, int], *, outermost: bool) -> None:
    """Let an axis have a size, by the symbol in it that has no value yet; of several, the last one, or the first
    where a longer axis has more of the same parts."""
    normal = symbols.folded(axis)
    left = [s for s in normal.symbols if s not in value]
    if not left:
        return
    chosen = left[0] if outermost else left[-1]
    rest = symbols.evaluate(Axis(normal.factor, tuple(s for s in normal.symbols if s != chosen)), value)
    wanted, remainder = divmod(size, max(rest, 1))
    if remainder:
        return
    sums = symbols.follows(chosen)
    if isinstance(sums, Sum) and len(sums.terms) == 1:
        times, inner = sums.terms[0]
        if (wanted - sums.constant) % times == 0:
            _assign(symbols, inner, (wanted - sums.constant) // times, value, outermost=outermost)
    elif sums is None:
        value[chosen] = wanted
