"""Find the part of a rank's program that repeats: its layers."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from lumos.trace.table import Int64

#: A unit must repeat at least so often to be a layer.
_LEAST = 3
#: A longer unit is preferred only where it covers this many times as much of the sequence.
MUCH = 1.25


class RepeatedRegion(NamedTuple):
    """`times` equal units of `period` entries, from the entry `start` of a sequence."""

    start: int
    period: int
    times: int


def regions(labels: Int64) -> list[RepeatedRegion]:
    """The stretches in which a unit repeats, all with one period: the shortest that covers about as much as any other.

    Each stretch has its own number of repetitions.
    """
    best: list[RepeatedRegion] = []
    covered = 0
    for period in range(1, len(labels) // _LEAST + 1):
        found = _of_period(labels, period)
        total = sum(r.period * r.times for r in found)
        if total > MUCH * covered:
            best, covered = found, total
    return best


def _of_period(labels: Int64, period: int) -> list[RepeatedRegion]:
    """Maximal stretches that are periodic with this period, LEAST times or more."""
    same = np.concatenate(([False], labels[period:] == labels[:-period], [False]))
    edges = np.flatnonzero(np.diff(same.astype(np.int8)))
    out = []
    for begin, end in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
        count = (end - begin + period) // period
        if count >= _LEAST:
            out.append(RepeatedRegion(begin, period, count))
    return out
