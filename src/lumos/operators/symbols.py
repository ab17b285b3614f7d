"""The sizes of a recorded program as products of symbols.

An axis is a product of a whole number and symbols: [batch · positions, width]. Two axes that must be equal are unified: from then on
they are the same product. A symbol that a view divides becomes the product of two. Some symbols follow from others: the sum of the parts
that are laid end to end, the positions at which a window lies, or the share of them that values chose.
"""

from __future__ import annotations

from collections import Counter
from math import prod
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


class Axis(NamedTuple):
    """The size of one dimension: `factor` times the product of symbols, in the order in which they lie in memory, the factor outermost. A
    number that lies further inside is a symbol, too (`Symbols.number`)."""

    factor: int
    symbols: tuple[int, ...] = ()


ONE = Axis(1)


class Sum(NamedTuple):
    """What a symbol is that follows from others: a sum of axes, each so many times, and a number."""

    terms: tuple[tuple[int, Axis], ...]
    constant: int


class Window(NamedTuple):
    """What a symbol is that counts the positions of a window of `width` on `extent`, with padding at both ends."""

    extent: Axis
    width: Axis
    padding: int
    stride: int
    dilation: int


class Selection(NamedTuple):
    """What a symbol is that counts the `part` of the `whole` recorded places of an axis that values chose: as large a part of others."""

    of: Axis
    whole: int
    part: int


class Symbols:
    """The symbols of one recording. value: the recorded size of each."""

    def __init__(self) -> None:
        self.value: list[int] = []
        self._equal: dict[int, Axis] = {}
        self._follows: dict[int, Sum | Window | Selection] = {}
        self._numbers: dict[int, int] = {}
        self._copies: list[int] = []
        self._known: dict[Axis, tuple[Axis, tuple[int, tuple[int, ...]]]] = {}

    # ---------------------------------------------------------------- axes

    def fresh(self, size: int) -> Axis:
        """An axis of which nothing is known but its recorded size."""
        self.value.append(size)
        return Axis(1, (len(self.value) - 1,))

    def number(self, size: int) -> Axis:
        """A number as an axis that keeps its place among others: always of that size."""
        if size == 1:
            return ONE
        known = next((s for s, value in self._numbers.items() if value == size), None)
        if known is None:
            known = self.fresh(size).symbols[0]
            self._numbers[known] = size
        return Axis(1, (known,))

    def plain(self, size: int) -> Axis:
        """The same, but for a size of 1, which is taken as that number."""
        return ONE if size == 1 else self.fresh(size)

    def copies(self, size: int) -> Axis:
        """An axis along which one value stands so many times."""
        if size == 1:
            return ONE
        axis = self.fresh(size)
        self._copies += axis.symbols
        return axis

    def once(self, axis: Axis) -> Axis:
        """The axis without the copies along it."""
        copied = {s for copies in self._copies for s in self.folded(Axis(1, (copies,))).symbols}
        folded = self.folded(axis)
        return Axis(folded.factor, tuple(s for s in folded.symbols if s not in copied))

    def normal(self, axis: Axis) -> Axis:
        """The axis in symbols that are equal to no other."""
        return self._found(axis)[0]

    def _found(self, axis: Axis) -> tuple[Axis, tuple[int, tuple[int, ...]]]:
        """The normal axis and its key, which stay until a symbol becomes equal to others."""
        known = self._known.get(axis)
        if known is None:
            factor, out = axis.factor, list[int]()
            for s in axis.symbols:
                if s in self._equal:
                    self._equal[s] = self.normal(self._equal[s])
                    if out:
                        out += self.number(self._equal[s].factor).symbols
                    else:
                        factor *= self._equal[s].factor
                    out += self._equal[s].symbols
                else:
                    out.append(s)
            normal = Axis(factor, tuple(out))
            plain = self._without_numbers(normal)
            known = self._known[axis] = normal, (plain.factor, tuple(sorted(plain.symbols)))
        return known

    def folded(self, axis: Axis) -> Axis:
        """The normal axis with all of its numbers in the factor, whatever their place."""
        return self._without_numbers(self.normal(axis))

    def _without_numbers(self, axis: Axis) -> Axis:
        if not any(s in self._numbers for s in axis.symbols):
            return axis
        factor = axis.factor * prod(self._numbers.get(s, 1) for s in axis.symbols)
        return Axis(factor, tuple(s for s in axis.symbols if s not in self._numbers))

    def _set_equal(self, symbol: int, axis: Axis) -> None:
        self._equal[symbol] = axis
        self._known.clear()

    def size(self, axis: Axis) -> int:
        """The recorded size."""
        return axis.factor * prod(self.value[s] for s in axis.symbols)

    def key(self, axis: Axis) -> tuple[int, tuple[int, ...]]:
        """What is equal for equal axes."""
        return self._found(axis)[1]

    def product(self, *axes: Axis) -> Axis:
        """Dimensions laid together into one."""
        factor, out = 1, list[int]()
        for axis in map(self.normal, axes):
            if out:
                out += self.number(axis.factor).symbols
            else:
                factor *= axis.factor
            out += axis.symbols
        return Axis(factor, tuple(out))

    def sum(self, terms: Iterable[tuple[int, Axis]], constant: int) -> Axis:
        """Axes laid end to end, each so many times, and so many elements more."""
        counted: Counter[tuple[int, ...]] = Counter()
        for times, term in terms:
            axis = self.folded(term)
            known = self._follows.get(axis.symbols[0]) if len(axis.symbols) == 1 else None
            if not axis.symbols:
                constant += times * axis.factor
            elif isinstance(known, Sum):
                constant += times * axis.factor * known.constant
                for inner_times, inner in known.terms:
                    normal = self.folded(inner)
                    counted[normal.symbols] += times * axis.factor * inner_times * normal.factor
            else:
                counted[axis.symbols] += times * axis.factor
        left = {symbols: times for symbols, times in counted.items() if times}
        if not left:
            return Axis(constant)
        if len(left) == 1 and not constant:
            ((symbols, times),) = left.items()
            if times > 0:
                return Axis(times, symbols)
        return self._following(Sum(tuple((times, Axis(1, symbols)) for symbols, times in left.items()), constant))

    def window(self, window: Window) -> Axis:
        """The positions of a window on an axis."""
        window = window._replace(extent=self.normal(window.extent), width=self.normal(window.width))
        same = window.stride == 1 and self._evaluated(window, {}) == self.size(window.extent)
        return window.extent if same else self._following(window)

    def share(self, of: Axis, size: int) -> Axis:
        """As many places of an axis as values chose: each of them so many times, or a part of them."""
        of, whole = self.normal(of), self.size(of)
        if not of.symbols or not whole:
            return self.plain(size)
        return self.product(Axis(size // whole), of) if size and size % whole == 0 else self._following(Selection(of, whole, size))

    def _following(self, what: Sum | Window | Selection) -> Axis:
        for symbol, known in self._follows.items():
            if known == what and symbol not in self._equal:
                return Axis(1, (symbol,))
        size = self._evaluated(what, {})
        if size == 1:
            return ONE
        axis = self.fresh(size)
        self._follows[axis.symbols[0]] = what
        return axis

    # ---------------------------------------------------------------- equality

    def same(self, a: Axis, b: Axis) -> bool:
        """Whether two axes are known to be equal."""
        return a == b or self.key(a) == self.key(b)

    def unify(self, a: Axis, b: Axis) -> None:
        """Make two axes equal. Axes of other recorded sizes stay apart: one of them is repeated along the other."""
        if self.same(a, b) or self.size(a) != self.size(b):
            return
        a, b = self.folded(a), self.folded(b)
        common = Counter(a.symbols) & Counter(b.symbols)
        left, right = _without(a.symbols, common), _without(b.symbols, common)
        if left and right:
            self._bind(a.factor, left, b.factor, right)

    def _bind(self, factor: int, left: tuple[int, ...], other: int, right: tuple[int, ...]) -> None:
        """Say of a symbol that stands alone that it is equal to the other side; of two such, the later one."""
        sides = [(factor, left, other, right), (other, right, factor, left)]
        if len(left) == len(right) == 1 and left[0] < right[0]:
            sides.reverse()
        for own, alone, times, rest in sides:
            if len(alone) == 1 and times % own == 0 and alone[0] not in self._follows and alone[0] not in self._inside(rest):
                self._set_equal(alone[0], Axis(times // own, rest))
                return

    def _inside(self, symbols: Iterable[int]) -> set[int]:
        """Symbols, and all that they follow from."""
        inside: set[int] = set()
        left = list(symbols)
        while left:
            s = left.pop()
            if s not in inside:
                inside.add(s)
                what = self._follows.get(s)
                left += [inner for axis in _axes_of(what) for inner in self.normal(axis).symbols]
        return inside

    # ---------------------------------------------------------------- parts

    def divided(self, axis: Axis, parts: int) -> Axis:
        """One of `parts` equal parts that together are the whole axis."""
        normal = self.normal(axis)
        if normal.factor % parts == 0:
            return Axis(normal.factor // parts, normal.symbols)
        for position, s in enumerate(normal.symbols):
            if s not in self._follows and self.value[s] % parts == 0:
                part = self._split(s, parts)[1]
                return Axis(normal.factor, (*normal.symbols[:position], *part.symbols, *normal.symbols[position + 1 :]))
        return self.fresh(self.size(axis) // parts)

    def _split(self, symbol: int, parts: int, *, viewed: bool = False) -> tuple[Axis, Axis]:
        """A symbol as two: `parts` of it, and the size of each. A view does not say which of the two is a number."""
        if symbol in self._numbers:
            return self.number(parts), self.number(self._numbers[symbol] // parts)
        outer = self.fresh(parts) if viewed else self.number(parts)
        inner = self.fresh(self.value[symbol] // parts)
        self._set_equal(symbol, Axis(1, outer.symbols + inner.symbols))
        return outer, inner

    def viewed(self, axis: Axis, sizes: Sequence[int]) -> list[Axis]:
        """An axis as several of these recorded sizes, whose product is its own: symbols in their order, of which a view may divide one."""
        parts = self._viewed(self.normal(axis), sizes)
        return [self.plain(size) for size in sizes] if parts is None else parts

    def _viewed(self, axis: Axis, sizes: Sequence[int]) -> list[Axis] | None:
        factor, left, out = axis.factor, list(axis.symbols), list[Axis]()
        for position, size in enumerate(sizes):
            taken: list[int] = []
            times, reached = 1, 1
            ones_follow = 1 in sizes[position + 1 :]
            if size == 1:
                out.append(Axis(1, (left.pop(0),) if left and self.value[left[0]] == 1 else ()))
                continue
            if factor > 1 and size % factor == 0 and (size == factor or not left or (size // factor) % self.value[left[0]] == 0):
                times, reached, factor = factor, factor, 1
            while left and reached < size:
                first = self.value[left[0]]
                if first == 1 and ones_follow and taken:
                    break
                if (size // reached) % first == 0 and size % reached == 0:
                    taken.append(left.pop(0))
                    reached *= first
                elif size % reached == 0 and first % (size // reached) == 0 and left[0] not in self._follows:
                    outer, inner = self._split(left[0], size // reached, viewed=True)
                    left[0] = inner.symbols[0]
                    taken += outer.symbols
                    reached = size
                else:
                    break
            if reached != size and size == reached * factor:
                times, reached, factor = times * factor, size, 1
            if reached != size:
                return None
            out.append(Axis(times, tuple(taken)))
        if all(self.value[s] == 1 for s in left) and factor == 1 and out:
            out[-1] = Axis(out[-1].factor, out[-1].symbols + tuple(left))
            return out
        return None

    # ---------------------------------------------------------------- other sizes

    def evaluate(self, axis: Axis, new: Mapping[int, int]) -> int:
        """The size of an axis where some symbols have other values."""
        normal = self.normal(axis)
        out = normal.factor
        for s in normal.symbols:
            what = self._follows.get(s)
            out *= new[s] if s in new else self.value[s] if what is None else self._evaluated(what, new)
        return out

    def _evaluated(self, what: Sum | Window | Selection, new: Mapping[int, int]) -> int:
        if isinstance(what, Selection):
            return round(what.part * self.evaluate(what.of, new) / what.whole)
        if isinstance(what, Sum):
            return what.constant + sum(times * self.evaluate(axis, new) for times, axis in what.terms)
        reach = what.dilation * (self.evaluate(what.width, new) - 1) + 1
        return (self.evaluate(what.extent, new) + 2 * what.padding - reach) // what.stride + 1

    def follows(self, symbol: int) -> Sum | Window | Selection | None:
        """What a symbol follows from; None for one of its own."""
        return self._follows.get(symbol)

    def inside(self, axis: Axis) -> set[int]:
        """The symbols of an axis but for numbers, and all that they follow from."""
        return {s for s in self._inside(self.normal(axis).symbols) if s not in self._numbers}


def _axes_of(what: Sum | Window | Selection | None) -> tuple[Axis, ...]:
    """The axes that something follows from."""
    if isinstance(what, Sum):
        return tuple(axis for _, axis in what.terms)
    return () if what is None else (what.of,) if isinstance(what, Selection) else (what.extent, what.width)


def _without(symbols: tuple[int, ...], gone: Counter[int]) -> tuple[int, ...]:
    left = Counter(gone)
    out = []
    for s in symbols:
        if left[s] > 0:
            left[s] -= 1
        else:
            out.append(s)
    return tuple(out)
