"""Where rows stand: in which rows of their thread, in which of the steps that the profiler marked, and where in the code, so that
repetitions of one place can be compared.

A loop runs the same code in every step. The n-th row of a name that a thread begins in a step is therefore the same place in the
code as the n-th row of that name in every other step, whatever their times. What holds at a place holds in all of its repetitions.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from lumos import _slices
from lumos.graph.lists import numbered, ordinals
from lumos.graph.table import Step
from lumos.trace.once import once_a_trace
from lumos.trace.table import ABSENT, Category, Int32, Int64, Trace, unique

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: How torch.profiler names the range of one step; in the oldest traces its category is that of operators.
MARK = "ProfilerStep"


@once_a_trace
def is_step_mark(trace: Trace) -> NDArray[np.bool_]:
    """Rows that mark a step. They are ranges over work, never work."""
    return np.asarray(trace.named(lambda name: name.startswith(MARK)) & trace.is_any(Category.ANNOTATION, Category.OPERATOR))


def steps(trace: Trace) -> tuple[Step, ...]:
    """The marked steps in order of start; the whole recording as one step where none is marked."""
    rows = np.flatnonzero(is_step_mark(trace))
    if not len(rows):
        work = trace.is_any(Category.OPERATOR, Category.RUNTIME, Category.KERNEL, Category.MEMCPY, Category.MEMSET)
        begin = int(trace.start[work].min(initial=np.iinfo(np.int64).max))
        finish = int((trace.start[work] + trace.duration[work]).max(initial=0))
        return (Step(trace.rank, "whole trace", begin, finish + 1),) if work.any() else ()
    rows = rows[np.argsort(trace.start[rows], kind="stable")]
    start, end, lane = trace.start[rows].tolist(), (trace.start[rows] + trace.duration[rows]).tolist(), trace.lane[rows].tolist()
    return tuple(Step(trace.rank, *facts) for facts in zip((trace.strings[i] for i in trace.name[rows]), start, end, lane, strict=True))


def number_of(name: str) -> int | None:
    """The number of a step, from its name such as ProfilerStep#12; None without one."""
    match = re.search(r"#(\d+)$", name)
    return None if match is None else int(match[1])


class Ranges:
    """Rows of a trace, sorted so that those running at many moments are found at once. rows: indices, of any lanes, in any order."""

    def __init__(self, trace: Trace, rows: Int32 | Int64) -> None:
        self.trace = trace
        self.rows = rows[np.lexsort((trace.start[rows], trace.lane[rows]))]
        self.lane, self.start = trace.lane[self.rows], trace.start[self.rows]

    def at(self, lane: Int32, time: Int64) -> Int64:
        """For each i the row on lane[i] that began last at or before time[i] (ns), unless it ended before that; ABSENT if there is none."""
        row = self.last(lane, time)
        return np.where((row != ABSENT) & (time <= self.trace.start[row] + self.trace.duration[row]), row, ABSENT)

    def last(self, lane: Int32, time: Int64) -> Int64:
        """For each i the row on lane[i] that began last at or before time[i] (ns); ABSENT if there is none."""
        out = np.full(len(time), ABSENT, np.int64)
        for own in unique(lane):
            low, high = np.searchsorted(self.lane, np.array((own, own + 1), np.int32))
            here = np.flatnonzero(lane == own)
            last = np.searchsorted(self.start[low:high], time[here], "right") - 1
            out[here[last >= 0]] = self.rows[low + last[last >= 0]]
        return out


def innermost(trace: Trace, among: Int64, rows: Int64) -> Int64:
    """For each of `rows`, the innermost row of `among` on the same lane that contains its start; -1 if none."""
    among = among[trace.duration[among] > 0]
    both, around = np.concatenate((among, rows)), np.arange(len(among) + len(rows)) < len(among)
    lane, start = trace.lane[both], trace.start[both]
    end = start + np.where(around, trace.duration[both], 0)
    order = np.lexsort((-end, start, lane))
    caller, _ = _slices.callers(lane[order], start[order], end[order], around[order].astype(np.uint8), len(both))
    out = np.empty(len(both), np.int64)
    out[order] = np.append(both[order], -1)[caller]  # the last is what index -1 finds
    return out[len(among) :]


@dataclass(frozen=True, slots=True, eq=False)
class Places:
    """The places of the rows of one thread: row[i] of the trace, the i-th to begin, stands at place[i] in step[i].

    start: int64[rows] ns, ascending. step: int64[rows], number of the step mark that the row begins after; 0 before the first. place:
    int64[rows], numbers from 0 on.
    """

    row: Int64
    start: Int64
    step: Int64
    place: Int64


def places_in_code(trace: Trace, rows: Int64) -> Places:
    """The places of `rows` of the trace, which are rows of one thread."""
    order = rows[np.argsort(trace.start[rows], kind="stable")]
    start, name = trace.start[order], trace.name[order].astype(np.int64)
    step = step_at(trace, start)
    return Places(order, start, step, numbered(name, ordinals(name, step)))


def step_at(trace: Trace, time: Int64) -> Int64:
    """How many step marks of the trace begin at or before each time; int64, like `time`."""
    marks = unique(trace.start[is_step_mark(trace)])
    return np.asarray(np.searchsorted(marks, time, "right"), np.int64)
