"""CPU threads cut into self-time slices.

A thread's time, from its first row to its last, is cut into slices that follow one another. Each slice belongs to the
innermost operator or runtime call running then; the time between operators (mostly Python) is CPU work too, in slices of
its own. Annotations and Python rows are ranges over that work, not work themselves: they cut nothing. The annotations of
collectives that a CPU thread carries out are the exception.
"""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from lumos import _slices
from lumos.graph.joined.collectives import is_cpu_collective
from lumos.graph.lists import narrow
from lumos.graph.places import is_step_mark
from lumos.trace.table import Category, Int8, Int32, Int64, Trace

#: Rows of one thread or stream that overlap by less do so because their times are rounded (ns): clocks of whole microseconds.
ROUNDING = 2_000


@dataclass(frozen=True, slots=True, eq=False)
class HostSlices:
    """Self-time slices of one rank's threads, sorted by (lane, start).

    row: row of the Trace, -1 between operators. lane: index into Trace.lanes. start, end: ns. crossing: operators and calls that end
    after the one in which they began, as no thread can do.
    """

    row: Int32
    lane: Int32
    start: Int64
    end: Int64
    crossing: int = 0

    def __len__(self) -> int:
        return len(self.row)

    def lanes(self) -> Int32:
        """The lanes that have slices, ascending."""
        changes = np.flatnonzero(self.lane[1:] != self.lane[:-1]) + 1
        lanes: Int32 = self.lane[np.append(0, changes)[: len(self)]]
        return lanes


def host_slices(trace: Trace, work_calls: Int32) -> HostSlices:
    """Cut the operators and runtime calls of every thread into slices.

    `work_calls` are the runtime rows that later rules refer to (launches, synchronisations): they get a slice even where
    a clock of whole microseconds recorded no duration for them.
    """
    rows = np.flatnonzero((trace.is_any(Category.OPERATOR, Category.RUNTIME) & ~is_step_mark(trace)) | is_cpu_collective(trace))
    start = trace.start[rows]
    end = start + trace.duration[rows]
    lane = trace.lane[rows]
    order = _outer_first(lane, start, end, trace.category[rows])
    rows, lane, start, end = rows[order], lane[order], start[order], end[order]
    needed = np.zeros(len(trace), np.uint8)
    needed[work_calls] = 1
    cut = _slices.slices(lane, start, end, needed[rows])
    row = np.where(cut.event >= 0, rows[cut.event], -1).astype(np.int32) if len(rows) else np.empty(0, np.int32)
    return HostSlices(row, cut.lane, cut.start, cut.end, _crossing(lane, start, end))


def _outer_first(lane: Int32, start: Int64, end: Int64, category: Int8) -> Int64:
    """The order by lane and start. Of rows that start together, the longest comes first. Where rows share a span, the operator contains
    the runtime call; among operators, the file lists the outer one first."""
    order = np.lexsort((start, narrow(lane)))
    lane, start = lane[order], start[order]
    follows = (lane[1:] == lane[:-1]) & (start[1:] == start[:-1])
    together = np.flatnonzero(np.append(follows, False) | np.append(False, follows)[: len(order)])
    some = order[together]  # few, so that the other keys are compared for these alone
    order[together] = some[np.lexsort((category[some], -end[some], start[together], lane[together]))]
    return order


def _crossing(lane: Int32, start: Int64, end: Int64) -> int:
    """How many rows, sorted by lane and start, begin inside the row before, or the one that lasts longest so far, and end after it."""
    crossing = 0
    first = np.flatnonzero(np.diff(lane, prepend=-1))
    for low, high in pairwise((*first.tolist(), len(lane))):
        begins, ends = start[low + 1 : high], end[low + 1 : high]
        before, latest = end[low : high - 1], np.maximum.accumulate(end[low : high - 1])
        outlasts = [(outer - begins > ROUNDING) & (ends - outer > ROUNDING) for outer in (before, latest)]
        crossing += int((outlasts[0] | outlasts[1]).sum())
    return crossing
