"""Layers found as repetition in a sequence of symbols, small irregularities tolerated.

A symbol that occurs once in every layer (an anchor) cuts the sequence into stretches; where neighbouring stretches hold
mostly the same symbols, they are layers. Every symbol is tried as the anchor, and the run that explains most of the
sequence is kept; of runs that explain about as much, the one with most layers. A layer's first symbol is found by
walking back from all anchors at once as long as they agree, so what stands before the first layer (the embedding) and
behind the last (the head) stays outside.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

#: Neighbouring layers share at least this part of their symbols: dense and expert layers in turn share their attention (0.7),
#: while the halves of one layer share norms, exchanges and residuals (up to 0.57).
ALIKE = 0.65
#: A run of fewer layers, or one that explains less of the sequence, says nothing.
FEWEST, LEAST = 2, 0.3
#: Runs that explain the sequence about equally well.
ABOUT = 0.97
#: Anchors agree where this part of them does.
AGREE = 0.75


class Run(NamedTuple):
    """bounds: where each layer begins, and where the last ends. alike: mean share of symbols that neighbours have in
    common. covered: share of the sequence inside."""

    bounds: tuple[int, ...]
    alike: float
    covered: float

    @property
    def layers(self) -> int:
        return len(self.bounds) - 1


def find_run(symbols: Sequence[int]) -> Run | None:
    """The layers of a sequence; None where nothing repeats."""
    places: dict[int, list[int]] = {}
    for i, symbol in enumerate(symbols):
        places.setdefault(symbol, []).append(i)
    best: Run | None = None
    tried: set[tuple[int, ...]] = set()
    for at in places.values():
        if len(at) < FEWEST:
            continue
        chain = _chain(symbols, at)
        run = _run(symbols, chain) if len(chain) >= FEWEST else None
        if run is None or run.bounds in tried or run.covered < LEAST:
            continue
        tried.add(run.bounds)
        if best is None or _better(run, best):
            best = run
    return best


def _better(run: Run, best: Run) -> bool:
    if run.covered < ABOUT * best.covered:
        return False
    if best.covered < ABOUT * run.covered:
        return True
    return (run.layers, run.alike * run.covered) > (best.layers, best.alike * best.covered)


def _chain(symbols: Sequence[int], at: list[int]) -> list[int]:
    """The longest row of anchors (by what lies between them) whose neighbouring stretches are alike."""
    ends = [*at[1:], None]
    stretches = [Counter(symbols[a:b]) for a, b in zip(at, ends, strict=True) if b is not None]
    best: list[int] = []
    current = [at[0]]
    for i, anchor in enumerate(at[1:]):
        fits = i == 0 or alike(stretches[i - 1], stretches[i]) >= ALIKE
        if not fits:
            best = max(best, current, key=_length)
            current = [at[i]]
        current.append(anchor)
    return max(best, current, key=_length)


def _length(chain: list[int]) -> int:
    return chain[-1] - chain[0] if chain else 0


def alike(a: Counter[int], b: Counter[int]) -> float:
    """Symbols in common / symbols of the larger."""
    larger = max(a.total(), b.total())
    return (a & b).total() / larger if larger else 1.0


def _run(symbols: Sequence[int], anchors: list[int]) -> Run | None:
    """The layers around a row of anchors."""
    gaps = sorted(b - a for a, b in pairwise(anchors))
    period = gaps[len(gaps) // 2]
    before = 0
    while before + 1 < period and _agree(symbols, anchors, -(before + 1)):
        before += 1
    starts = [a - before for a in anchors]
    stop = min(starts[-1] + _length_of_last(symbols, starts), len(symbols))
    bounds = (*starts, stop)
    layers = [Counter(symbols[a:b]) for a, b in pairwise(bounds)]
    if alike(layers[-2], layers[-1]) < ALIKE:
        return None
    shares = [alike(a, b) for a, b in pairwise(layers)]
    return Run(bounds, sum(shares) / len(shares), (stop - starts[0]) / len(symbols))


def _agree(symbols: Sequence[int], anchors: list[int], offset: int) -> bool:
    """Most anchors, the first among them, see one symbol there."""
    seen = [symbols[a + offset] if 0 <= a + offset < len(symbols) else -1 for a in anchors]
    symbol, count = Counter(seen).most_common(1)[0]
    return symbol >= 0 and seen[0] == symbol and count >= AGREE * len(anchors)


def _length_of_last(symbols: Sequence[int], starts: list[int]) -> int:
    """The last layer is as long as the earlier one that it follows the longest: kinds of layers may alternate."""
    best, length = -1, 0
    for low, high in pairwise(starts):
        common = 0
        while common < high - low and starts[-1] + common < len(symbols) and symbols[low + common] == symbols[starts[-1] + common]:
            common += 1
        if common >= best:
            best, length = common, high - low
    return length
