"""Layers found as repetition in a sequence of symbols; small irregularities are tolerated.

A symbol that occurs once in every layer (an anchor) cuts the sequence into stretches. Neighbouring stretches that consist
mostly of the same symbols are layers, and together they form a run. Every symbol is tried as the anchor. The run that covers
most of the sequence is chosen; among runs that cover about as much, the one with the most layers. To find where the layers
begin, the search walks back from all anchors at once as long as the symbols there agree. What precedes the first layer (the
embedding) and what follows the last (the head) stay outside.
"""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Neighbouring layers share at least this part of their symbols. Dense and expert layers that alternate share their attention
#: (0.7), while the two halves of one layer share norms, exchanges and residuals (up to 0.57).
LEAST_ALIKE = 0.65
#: A run of fewer layers is no evidence.
FEWEST_LAYERS = 2
#: Nor is one that covers a smaller share of the sequence.
_LEAST_COVERED = 0.3
#: Two runs cover about as much where the smaller share is at least this part of the larger.
EQUALLY_COVERED = 0.97
#: Anchors agree on a symbol where at least this part of them has it.
LEAST_AGREEING = 0.75
#: What two layers that are alike count for, of a run of more.
TWO_ALIKE = 0.5
#: Two layers that share at least this part of their symbols are made of the same.
_MADE_OF_THE_SAME = 0.95
#: A further stack of layers covers at least this share of the sequence.
_LEAST_STACK = 0.1


class Run(NamedTuple):
    """Layers that follow each other. bounds: where each begins, and where the last ends. alike: mean share of symbols that a
    layer has in common with the one most like it. covered: share of the sequence that lies inside."""

    bounds: tuple[int, ...]
    alike: float
    covered: float

    @property
    def layers(self) -> int:
        """How many layers were found."""
        return len(self.bounds) - 1


def find_stacks(symbols: Sequence[int]) -> tuple[Run, ...]:
    """All stacks of layers of a sequence, in its order: an encoder's and a decoder's are two, for their layers are not alike.

    What occurs three times or more is looked for first, and then what occurs twice, for two halves of a sequence may hold the same layers.
    Where that leaves more unexplained than to take all at once, that is done: two layers of an encoder, made of the same, are no three with
    the half of a decoder's layer that is like them.
    """
    rather, other = (_stacks(symbols, 0, len(symbols), fewest) for fewest in ((FEWEST_LAYERS + 1, FEWEST_LAYERS), (FEWEST_LAYERS,)))
    return tuple(sorted(rather if _explained(symbols, rather) >= _explained(symbols, other) else other, key=lambda run: run.bounds))


def _explained(symbols: Sequence[int], runs: Sequence[Run]) -> float:
    """The share of a sequence that runs explain: what they cover, as far as their layers are alike; half where two may be halves."""
    return sum(run.covered * run.alike * (TWO_ALIKE if _may_be_halves(symbols, run) else 1.0) for run in runs)


def _may_be_halves(symbols: Sequence[int], run: Run) -> bool:
    """Whether the two layers of a run may be two halves that hold layers: they are not made of the same, or repeat inside."""
    if run.layers > FEWEST_LAYERS:
        return False
    return run.alike < _MADE_OF_THE_SAME or find_run(symbols[run.bounds[0] : run.bounds[1]], FEWEST_LAYERS + 1) is not None


def _stacks(symbols: Sequence[int], begin: int, total: int, fewest: tuple[int, ...]) -> list[Run]:
    """The stacks of a part of a sequence of `total` symbols. begin: where in the sequence the part begins. fewest: how many layers a stack
    has at least; of several such numbers the first that any stack fulfils."""
    if len(symbols) < _LEAST_STACK * total:
        return []
    for least in fewest:
        stack = find_run(symbols, least)
        if stack is None or stack.covered * len(symbols) < _LEAST_STACK * total:
            continue
        low, high = stack.bounds[0], stack.bounds[-1]
        run = Run(tuple(begin + bound for bound in stack.bounds), stack.alike, (high - low) / total)
        return [run, *_stacks(symbols[:low], begin, total, fewest), *_stacks(symbols[high:], begin + high, total, fewest)]
    return []


def find_run(symbols: Sequence[int], fewest: int = FEWEST_LAYERS) -> Run | None:
    """The layers of a sequence, at least `fewest`; None where nothing repeats."""
    return _find_run(tuple(symbols), fewest)


@lru_cache(maxsize=32)  # the steps of a recording repeat the same few passes
def _find_run(symbols: tuple[int, ...], fewest: int) -> Run | None:
    places: dict[int, list[int]] = {}
    for i, symbol in enumerate(symbols):
        places.setdefault(symbol, []).append(i)
    best: Run | None = None
    tried: set[tuple[int, ...]] = set()
    for at in places.values():
        if len(at) < fewest:
            continue
        chain = _chain(symbols, at)
        run = _run(symbols, chain) if len(chain) >= fewest else None
        if run is None or run.bounds in tried or run.covered < _LEAST_COVERED:
            continue
        tried.add(run.bounds)
        if best is None or _better(run, best):
            best = run
    return best


def _better(run: Run, best: Run) -> bool:
    """Whether a run explains more of the sequence, as far as its layers are alike; of two that explain as much, which has more layers."""
    explained, before = run.covered * run.alike, best.covered * best.alike
    if explained < EQUALLY_COVERED * before:
        return False
    return before < EQUALLY_COVERED * explained or (run.layers, explained) > (best.layers, before)


def _chain(symbols: Sequence[int], at: list[int]) -> list[int]:
    """The consecutive anchors whose neighbouring stretches are alike; of several such chains the one that spans most symbols. One of two
    anchors, between which nothing repeats, is taken only where there is no other."""
    stops = [*at[1:], None]
    stretches = [Counter(symbols[a:b]) for a, b in zip(at, stops, strict=True) if b is not None]
    best: list[int] = []
    chain = [at[0]]
    for i, anchor in enumerate(at[1:]):
        fits = i == 0 or alike(stretches[i - 1], stretches[i]) >= LEAST_ALIKE
        if not fits:
            best = max(best, chain, key=_extent)
            chain = [at[i]]
        chain.append(anchor)
    return max(best, chain, key=_extent)


def _extent(chain: list[int]) -> tuple[bool, int]:
    """Whether a chain has more anchors than two, and how many symbols it spans."""
    return len(chain) > FEWEST_LAYERS, chain[-1] - chain[0] if chain else 0


def alike(a: Counter[int], b: Counter[int]) -> float:
    """Symbols in common, as a share of the symbols of the larger."""
    larger = max(a.total(), b.total())
    return (a & b).total() / larger if larger else 1.0


def _run(symbols: Sequence[int], anchors: list[int]) -> Run | None:
    """The layers around a chain of anchors; None where the last is unlike the one before it."""
    gaps = sorted(b - a for a, b in pairwise(anchors))
    period = gaps[len(gaps) // 2]
    before = 0
    while before + 1 < period and _agree(symbols, anchors, -(before + 1)):
        before += 1
    starts = [a - before for a in anchors]
    stop = min(starts[-1] + _length_of_last(symbols, starts), len(symbols))
    bounds = (*starts, stop)
    layers = [Counter(symbols[a:b]) for a, b in pairwise(bounds)]
    if alike(layers[-2], layers[-1]) < LEAST_ALIKE:
        return None
    return Run(bounds, _likeness(layers), (stop - starts[0]) / len(symbols))


def _likeness(layers: Sequence[Counter[int]]) -> float:
    """The mean share of symbols that a layer has in common with the one most like it."""
    kinds = Counter(frozenset(layer.items()) for layer in layers)
    every, single = [Counter(dict(kind)) for kind in kinds], [Counter(dict(kind)) for kind, many in kinds.items() if many == 1]
    shares = (max(alike(layer, other) for other in every if other != layer) for layer in single)
    return (len(layers) - len(single) + sum(shares)) / len(layers)


def _agree(symbols: Sequence[int], anchors: list[int], offset: int) -> bool:
    """Whether most anchors, the first among them, have the same symbol at this offset."""
    seen = [symbols[a + offset] if 0 <= a + offset < len(symbols) else -1 for a in anchors]
    symbol, count = Counter(seen).most_common(1)[0]
    return symbol >= 0 and seen[0] == symbol and count >= LEAST_AGREEING * len(anchors)


def _length_of_last(symbols: Sequence[int], starts: list[int]) -> int:
    """The length of the last layer: that of the earlier layer with which it has the longest beginning in common, for kinds of layers
    may alternate; or only of that beginning, where what follows is not like the rest of the earlier layer (a head, where layers were found
    to begin in the middle of one)."""
    best, length = -1, 0
    for low, high in pairwise(starts):
        common = 0
        while common < high - low and starts[-1] + common < len(symbols) and symbols[low + common] == symbols[starts[-1] + common]:
            common += 1
        if common >= best:
            rest, other = (Counter(symbols[at + common : at + high - low]) for at in (low, starts[-1]))
            best, length = common, high - low if alike(rest, other) >= LEAST_ALIKE else common
    return length
