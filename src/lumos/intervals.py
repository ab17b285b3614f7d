"""Unions of time intervals, as sorted columns. All sums are exact, in integer ns."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

_Int64 = NDArray[np.int64]


class Union(NamedTuple):
    """Disjoint, non-empty intervals in ascending order; int64 ns."""

    start: _Int64
    end: _Int64

    @property
    def total(self) -> int:
        """Time covered, ns."""
        return int((self.end - self.start).sum())


#: No time at all.
EMPTY = Union(np.empty(0, np.int64), np.empty(0, np.int64))


def union(start: _Int64, end: _Int64) -> Union:
    """The union of intervals given in any order; empty ones are dropped, touching ones joined."""
    keep = end > start
    start, end = start[keep], end[keep]
    if len(start) == 0:
        return EMPTY
    order = np.argsort(start, kind="stable")
    start, end = start[order], np.maximum.accumulate(end[order])
    first = np.concatenate(([True], start[1:] > end[:-1]))
    last = np.concatenate((first[1:], [True]))
    return Union(start[first], end[last])


def either(a: Union, b: Union) -> Union:
    """The union of two unions."""
    return union(np.concatenate((a.start, b.start)), np.concatenate((a.end, b.end)))


def clipped(intervals: Union, start: int, end: int) -> Union:
    """The part of the intervals that lies in the window [start, end)."""
    first, last = np.searchsorted(intervals.end, start, side="right"), np.searchsorted(intervals.start, end, side="left")
    if first >= last or start >= end:
        return EMPTY
    return Union(np.maximum(intervals.start[first:last], start), np.minimum(intervals.end[first:last], end))


def covered(intervals: Union, time: _Int64) -> _Int64:
    """How much of the time before each entry of `time` the intervals cover, ns."""
    if len(intervals.start) == 0:
        return np.zeros(len(time), np.int64)
    before = np.concatenate((np.zeros(1, np.int64), np.cumsum(intervals.end - intervals.start)))
    i = np.searchsorted(intervals.start, time, side="right")
    inside = np.minimum(time, intervals.end[i - 1]) - intervals.start[i - 1]
    out: _Int64 = np.where(i > 0, before[i - 1] + inside, 0)
    return out


def within(intervals: Union, start: _Int64, end: _Int64) -> _Int64:
    """How much of each window [start, end) the intervals cover, ns."""
    return covered(intervals, end) - covered(intervals, start)
