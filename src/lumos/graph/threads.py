"""CPU threads: self-time slices, and the hand-offs by which one thread waits for another.

A thread's time, from its first row to its last, is cut into slices that follow one another: each belongs to the
innermost operator or runtime call running then, and what lies between operators (Python, mostly) is work of its own.
Annotations and Python rows are ranges over that work, not work: they cut nothing.

Some time between operators is not work but waiting for another thread: the autograd thread idles until the forward
pass has called backward(), the main thread until backward() returns. Such a gap ends because the other thread fell
idle. The rule (advice of the design, section 7): a gap of at least 20 us in which another thread finished and has been
idle since. The gap is then a return behind that thread's last work, followed by what the thread still did on its own.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lumos import _slices
from lumos.graph.steps import is_step_mark
from lumos.trace.table import Category, Int32, Int64, Trace

#: Shortest gap that can be waiting for another thread (ns). Below it, Python between two operators is the likelier cause.
SHORTEST_HAND_OFF = 20_000


@dataclass(frozen=True, slots=True, eq=False)
class HostSlices:
    """Self-time slices of one rank's threads, sorted by (lane, start).

    row: row of the Trace, -1 between operators. lane: index into Trace.lanes. start, end: ns.
    """

    row: Int32
    lane: Int32
    start: Int64
    end: Int64

    def __len__(self) -> int:
        return len(self.row)


@dataclass(frozen=True, slots=True, eq=False)
class HandOffs:
    """Slices that begin only when another thread is done: slice[i] waits for slice source[i]; both index HostSlices.

    slice[i] is a gap (row -1) or the first slice of a thread.
    """

    slice: Int64
    source: Int64


def host_slices(trace: Trace, work_calls: Int32) -> HostSlices:
    """Cut the operators and runtime calls of every thread into slices.

    `work_calls` are the runtime rows that later rules refer to (launches, synchronisations): they keep a slice even where
    a clock of whole microseconds gave them no duration.
    """
    rows = np.flatnonzero(trace.is_any(Category.OPERATOR, Category.RUNTIME) & ~is_step_mark(trace))
    start = trace.start[rows]
    end = start + trace.duration[rows]
    lane = trace.lane[rows]
    # Of rows that share a span the operator contains the runtime call; among operators the file lists the outer first.
    order = np.lexsort((trace.category[rows], -end, start, lane))
    rows = rows[order]
    keep = np.zeros(len(trace), np.uint8)
    keep[work_calls] = 1
    event, lanes, begin, finish = _slices.slices(
        np.ascontiguousarray(lane[order]), np.ascontiguousarray(start[order]), np.ascontiguousarray(end[order]), keep[rows]
    )
    row = np.where(event >= 0, rows[event], -1).astype(np.int32) if len(rows) else np.empty(0, np.int32)
    return HostSlices(row, lanes, begin, finish)


def hand_offs(slices: HostSlices, timers: NDArray[np.bool_]) -> HandOffs:
    """Find the slices that wait for another thread.

    `timers` marks lanes that only poll: they wake by the clock, wait for no one and are no one's predecessor.
    The source of a wait is the work that fell idle last, before the waiting thread went on, on any other thread that
    stayed idle until then. A thread's first slice waits like a gap that began with the recording.
    """
    n = len(slices)
    if n == 0:
        return HandOffs(np.empty(0, np.int64), np.empty(0, np.int64))
    first = np.ones(n, bool)
    first[1:] = slices.lane[1:] != slices.lane[:-1]
    gap = (slices.row < 0) & (slices.end - slices.start >= SHORTEST_HAND_OFF)
    lanes = np.unique(slices.lane)
    busy = {int(lane): np.flatnonzero((slices.lane == lane) & (slices.row >= 0)) for lane in lanes if not timers[lane]}
    waiting, sources = [], []
    candidates = np.flatnonzero(gap | first)
    times = np.where(gap[candidates], slices.end[candidates], slices.start[candidates])
    since = np.where(gap[candidates], slices.start[candidates], np.iinfo(np.int64).min)
    best = np.full(len(candidates), -1, np.int64)
    best_end = since.copy()
    for lane, work in busy.items():
        # The lane's last slice that started before the waiter went on: it must have ended by then, and after the gap began.
        at = np.searchsorted(slices.start[work], times, "left") - 1
        known = (at >= 0) & (slices.lane[candidates] != lane)
        last = work[np.maximum(at, 0)]
        end = slices.end[last]
        better = known & (end <= times) & (end > best_end)
        best[better], best_end[better] = last[better], end[better]
    for candidate, source in zip(candidates, best, strict=True):
        if source >= 0 and not timers[slices.lane[candidate]]:
            waiting.append(candidate)
            sources.append(source)
    return HandOffs(np.array(waiting, np.int64), np.array(sources, np.int64))
