"""The same calls in two sequences of names, such as those of a profiler's rows and of an execution trace."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

#: Where two sequences of operators differ, they are matched again where so many names in a row agree, at most LOOK_AHEAD operators
#: further on.
LOOK_AHEAD, AGREEMENT = 60, 3

#: Where they do not agree within LOOK_AHEAD, they are matched again at so many names in a row that both contain.
ANCHOR = 12


def pair(one: Sequence[str], other: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Positions of the same calls in two sequences of names, in order. Where the sequences differ, pairing continues at the nearest
    place where AGREEMENT names in a row agree or, if that is too far, at the next ANCHOR names in a row that both contain."""
    anchors: dict[tuple[str, ...], list[int]] = {}
    i = j = 0
    while i < len(one) and j < len(other):
        if one[i] == other[j]:
            yield i, j
            i, j = i + 1, j + 1
            continue
        resumed = _agreement(one, other, i, j)
        if resumed is None:
            anchors = anchors or _anchors(one)
            resumed = _next_anchor(anchors, other, i, j)
            if resumed is None:
                return
        i, j = resumed


def _anchors(names: Sequence[str]) -> dict[tuple[str, ...], list[int]]:
    """The positions of every sequence of ANCHOR names."""
    places: dict[tuple[str, ...], list[int]] = {}
    for i in range(len(names) - ANCHOR + 1):
        places.setdefault(tuple(names[i : i + ANCHOR]), []).append(i)
    return places


def _next_anchor(anchors: Mapping[tuple[str, ...], list[int]], other: Sequence[str], i: int, j: int) -> tuple[int, int] | None:
    for at in range(j, len(other) - ANCHOR + 1):
        places = anchors.get(tuple(other[at : at + ANCHOR]), [])
        later = bisect_left(places, i)
        if later < len(places):
            return places[later], at
    return None


def _agreement(one: Sequence[str], other: Sequence[str], i: int, j: int) -> tuple[int, int] | None:
    for distance in range(1, LOOK_AHEAD):
        for skip in range(distance + 1):
            a, b = i + skip, j + distance - skip
            window = one[a : a + AGREEMENT]
            if window and window == other[b : b + AGREEMENT]:
                return a, b
    return None
