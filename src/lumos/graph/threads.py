"""CPU threads: self-time slices, and the hand-offs by which one thread waits for another.

A thread's time, from its first row to its last, is cut into slices that follow one another. Each slice belongs to the
innermost operator or runtime call running then; the time between operators (mostly Python) is CPU work too, in slices of
its own. Annotations and Python rows are ranges over that work, not work themselves: they cut nothing.

Some time between operators is not work but waiting for another thread: the autograd thread idles until the forward
pass has called backward(), the main thread until backward() returns. Such a gap ends because the other thread became
idle. A gap counts as such a wait where it lasts at least 20 us and another thread finished its work during it and stayed
idle until its end. It becomes a return that depends on that thread's last work, followed by the CPU time from there to
the end of the gap.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from lumos import _slices
from lumos.graph.collectives import is_cpu_collective, issuers
from lumos.graph.steps import is_step_mark
from lumos.trace.table import Category, Int32, Int64, Trace

if TYPE_CHECKING:
    from numpy.typing import NDArray

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
    """Slices that begin only when another thread has finished: slice[i] waits for slice source[i]; both index HostSlices.

    slice[i] is a gap (row -1) or the first slice of a thread.
    """

    slice: Int64
    source: Int64


def host_slices(trace: Trace, work_calls: Int32) -> HostSlices:
    """Cut the operators and runtime calls of every thread into slices.

    `work_calls` are the runtime rows that later rules refer to (launches, synchronisations): they get a slice even where
    a clock of whole microseconds recorded no duration for them.
    """
    rows = np.flatnonzero((trace.is_any(Category.OPERATOR, Category.RUNTIME) & ~is_step_mark(trace)) | is_cpu_collective(trace))
    start = trace.start[rows]
    end = start + trace.duration[rows]
    lane = trace.lane[rows]
    # Where rows share a span, the operator contains the runtime call; among operators, the file lists the outer one first.
    order = np.lexsort((trace.category[rows], -end, start, lane))
    rows = rows[order]
    needed = np.zeros(len(trace), np.uint8)
    needed[work_calls] = 1
    cut = _slices.slices(
        np.ascontiguousarray(lane[order]), np.ascontiguousarray(start[order]), np.ascontiguousarray(end[order]), needed[rows]
    )
    row = np.where(cut.event >= 0, rows[cut.event], -1).astype(np.int32) if len(rows) else np.empty(0, np.int32)
    return HostSlices(row, cut.lane, cut.start, cut.end)


def hand_offs(trace: Trace, slices: HostSlices, timers: NDArray[np.bool_]) -> HandOffs:
    """Find the slices that wait for another thread.

    `timers` marks lanes that only poll by the clock: they wait for no other thread, and no other thread waits for them.
    The source of a wait is the last slice that another thread finished before the waiting thread resumed, where that thread
    stayed idle until then; of several threads, the one that finished last. A thread's first slice is treated as a gap that
    began with the recording. A thread that resumes with a node of the backward pass may have received it from a thread that
    stays busy: the source is then the last top-level operator that had ended there. A collective on a CPU thread waits for
    the operator that issued it.
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
    # Two candidates for each source: the last work of a thread that is idle since, and of one that may be busy.
    idle, busy = np.full(len(waiting), -1, np.int64), np.full(len(waiting), -1, np.int64)
    idle_end, busy_end = since.copy(), since.copy()
    last_of_operator = (slices.row >= 0) & np.append((slices.row[1:] < 0) | first[1:], True)
    for lane in lanes:
        elsewhere = slices.lane[waiting] != lane
        work = np.flatnonzero((slices.lane == lane) & (slices.row >= 0))
        if not len(work):
            continue
        # The lane's last slice that had started when the waiting thread resumed must have ended by then, and during the gap.
        last = work[np.maximum(np.searchsorted(slices.start[work], resumes, "left") - 1, 0)]
        _take_later(idle, idle_end, last, slices.end[last], elsewhere & (slices.end[last] <= resumes))
        closing = np.flatnonzero((slices.lane == lane) & last_of_operator)
        done = closing[np.maximum(np.searchsorted(slices.end[closing], resumes, "right") - 1, 0)]
        _take_later(busy, busy_end, done, slices.end[done], elsewhere & (slices.end[done] <= resumes))
    source = np.where((idle < 0) & _starts_node(trace, slices)[np.minimum(waiting + 1, n - 1)] & gap[waiting], busy, idle)
    issued = _issues(trace, slices)[np.where(gap[waiting], np.minimum(waiting + 1, n - 1), waiting)]
    source = np.where((issued >= 0) & (slices.end[issued] <= resumes), issued, source)
    has_source = source >= 0
    return HandOffs(waiting[has_source], source[has_source])


def _issues(trace: Trace, slices: HostSlices) -> Int64:
    """For slices that begin a CPU collective, the last slice that the issuing thread had finished by then; -1 elsewhere.

    That is the operator that issued it, or the slice before where the collective began before that operator had ended.
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
    """Replace entries of `best` by candidates that ended later, and after the gap began: `best_end` starts as that time."""
    better = allowed & (end > best_end)
    best[better], best_end[better] = candidate[better], end[better]


#: Operators that are nodes of the backward pass, under the names that old and new profilers give them.
_NODE = re.compile(r"autograd::engine::evaluate_function|\w+Backward\d*$")


def _starts_node(trace: Trace, slices: HostSlices) -> NDArray[np.bool_]:
    """Slices that belong to a node of the backward pass."""
    mask: NDArray[np.bool_] = (slices.row >= 0) & trace.named(_NODE.match)[slices.row]
    return mask
