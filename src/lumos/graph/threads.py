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

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lumos import _slices
from lumos.graph.collectives import is_cpu_collective, issuers
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
    rows = np.flatnonzero((trace.is_any(Category.OPERATOR, Category.RUNTIME) & ~is_step_mark(trace)) | is_cpu_collective(trace))
    start = trace.start[rows]
    end = start + trace.duration[rows]
    lane = trace.lane[rows]
    # Of rows that share a span the operator contains the runtime call; among operators the file lists the outer first.
    order = np.lexsort((trace.category[rows], -end, start, lane))
    rows = rows[order]
    keep = np.zeros(len(trace), np.uint8)
    keep[work_calls] = 1
    cut = _slices.slices(
        np.ascontiguousarray(lane[order]), np.ascontiguousarray(start[order]), np.ascontiguousarray(end[order]), keep[rows]
    )
    row = np.where(cut.event >= 0, rows[cut.event], -1).astype(np.int32) if len(rows) else np.empty(0, np.int32)
    return HostSlices(row, cut.lane, cut.start, cut.end)


def hand_offs(trace: Trace, slices: HostSlices, timers: NDArray[np.bool_]) -> HandOffs:
    """Find the slices that wait for another thread.

    `timers` marks lanes that only poll: they wake by the clock, wait for no one and are no one's predecessor.
    The source of a wait is the work that fell idle last, before the waiting thread went on, on any other thread that
    stayed idle until then. A thread's first slice waits like a gap that began with the recording. A thread that goes on
    with a node of the backward pass may have been given it by a thread that stays busy: its source is then the last
    top-level operator that had ended there. A collective on a CPU thread waits for the operator that issued it.
    """
    n = len(slices)
    if n == 0:
        return HandOffs(np.empty(0, np.int64), np.empty(0, np.int64))
    first = np.ones(n, bool)
    first[1:] = slices.lane[1:] != slices.lane[:-1]
    gap = (slices.row < 0) & (slices.end - slices.start >= SHORTEST_HAND_OFF)
    waiting = np.flatnonzero((gap | first) & ~timers[slices.lane])
    resumes = np.where(gap[waiting], slices.end[waiting], slices.start[waiting])
    since = np.where(gap[waiting], slices.start[waiting], np.iinfo(np.int64).min)
    lanes = [int(lane) for lane in np.unique(slices.lane) if not timers[lane]]
    idle, handing = np.full(len(waiting), -1, np.int64), np.full(len(waiting), -1, np.int64)
    idle_end, handing_end = since.copy(), since.copy()
    last_of_operator = (slices.row >= 0) & np.append((slices.row[1:] < 0) | first[1:], True)
    for lane in lanes:
        elsewhere = slices.lane[waiting] != lane
        work = np.flatnonzero((slices.lane == lane) & (slices.row >= 0))
        if not len(work):
            continue
        # The lane's last slice that had started when the waiter went on must have ended by then, and after the gap began.
        last = work[np.maximum(np.searchsorted(slices.start[work], resumes, "left") - 1, 0)]
        _take_later(idle, idle_end, last, slices.end[last], elsewhere & (slices.end[last] <= resumes))
        ends = np.flatnonzero((slices.lane == lane) & last_of_operator)
        done = ends[np.maximum(np.searchsorted(slices.end[ends], resumes, "right") - 1, 0)]
        _take_later(handing, handing_end, done, slices.end[done], elsewhere & (slices.end[done] <= resumes))
    source = np.where((idle < 0) & _starts_node(trace, slices)[np.minimum(waiting + 1, n - 1)] & gap[waiting], handing, idle)
    issued = _issues(trace, slices)[np.where(gap[waiting], np.minimum(waiting + 1, n - 1), waiting)]
    source = np.where((issued >= 0) & (slices.end[issued] <= resumes), issued, source)
    found = source >= 0
    return HandOffs(waiting[found], source[found])


def _issues(trace: Trace, slices: HostSlices) -> Int64:
    """For slices that begin a CPU collective the last slice that its issuing thread had done by then; -1 elsewhere.

    That is the operator that issued it, or what came before where the other thread was quicker than the operator's end.
    """
    out = np.full(len(slices), -1, np.int64)
    begins = np.flatnonzero((slices.row >= 0) & is_cpu_collective(trace)[slices.row])
    for slice_, issuer in zip(begins, issuers(trace, slices.row[begins]), strict=True):
        if issuer >= 0:
            low, high = np.searchsorted(slices.lane, np.array((trace.lane[issuer], trace.lane[issuer] + 1), np.int32))
            done = int(np.searchsorted(slices.end[low:high], slices.start[slice_], "right"))
            out[slice_] = low + done - 1 if done else -1
    return out


def _take_later(best: Int64, best_end: Int64, candidate: Int64, end: Int64, allowed: NDArray[np.bool_]) -> None:
    """Replace entries of `best` by candidates that ended later (and after the gap began: `best_end` starts there)."""
    better = allowed & (end > best_end)
    best[better], best_end[better] = candidate[better], end[better]


#: Operators that are nodes of the backward pass, in the names of all generations.
_NODE = re.compile(r"autograd::engine::evaluate_function|\w+Backward\d*$")


def _starts_node(trace: Trace, slices: HostSlices) -> NDArray[np.bool_]:
    """Slices that belong to a node of the backward pass."""
    mask: NDArray[np.bool_] = (slices.row >= 0) & trace.named(_NODE.match)[slices.row]
    return mask
