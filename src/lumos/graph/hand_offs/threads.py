"""Hand-offs: the times at which one CPU thread waits for another.

Some time between operators is not work but waiting for another thread: the autograd thread idles until the forward
pass has called backward(), the main thread until backward() returns. Such a gap ends because the other thread became
idle. A gap counts as such a wait where it lasts at least 20 us and another thread finished its work during it and stayed
idle until its end. It becomes a return that depends on that thread's last work, followed by the CPU time from there to
the end of the gap. Where a thread goes on only when several others have done their part, it waits for all of them. Which
collectives a thread waits for is in `graph.hand_offs.awaited`; threads that work on their own are in `graph.hand_offs.timers`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.graph.hand_offs.awaited import Awaited, awaited, shortened
from lumos.graph.joined.collectives import is_cpu_collective

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from lumos.graph.hand_offs.slices import HostSlices
    from lumos.trace.table import Int64, Trace

#: Shortest gap that can be waiting for another thread (ns). Below it, Python between two operators is the likelier cause.
SHORTEST_HAND_OFF = 20_000


class HandOffs(NamedTuple):
    """Slices that begin only when another thread has finished: slice[i] waits for slice source[i]; both index HostSlices.

    slice[i] is a pause of a thread, a collective that it begins without a pause, or its first slice where paused[i] is False. issued:
    bool, whether the thread then begins a collective, which source[i] issued. pause: bool[slices], all pauses, whether they waited for a
    known thread or not.
    """

    slice: Int64
    source: Int64
    paused: NDArray[np.bool_]
    issued: NDArray[np.bool_]
    pause: NDArray[np.bool_]

    def resumed(self, slices: HostSlices) -> Int64:
        """When each wait was over, ns: the end of its source, but not before the pause began."""
        over = slices.end[self.source]
        return np.where(self.paused, np.maximum(over, slices.start[self.slice]), over)


def hand_offs(trace: Trace, slices: HostSlices, timers: NDArray[np.bool_]) -> tuple[HostSlices, HandOffs]:
    """Find the slices that wait for another thread; returns them with the slices, in which a collective that a thread waited for
    ends no later than the wait.

    `timers` marks lanes that work on their own: they wait for no other thread, and no other thread waits for them.
    The source of a wait is the last slice that another thread finished before the waiting thread resumed, where that thread
    stayed idle until then; of several threads, the one that finished last. A thread's first slice is treated as a gap that
    began with the recording. A thread that resumes with a node of the backward pass may have received it from a thread that
    stays busy: the source is then the last top-level operator that had ended there. A collective on a CPU thread waits for the operator
    that issued it, also where its thread was busy until it began, and the thread that issues collectives waits for those of `awaited`.
    """
    n = len(slices)
    if n == 0:
        none, never = np.empty(0, np.int64), np.empty(0, bool)
        return slices, HandOffs(none, none, never, never, never)
    found = awaited(trace, slices, SHORTEST_HAND_OFF)
    slices = shortened(slices, found.source)
    first = np.ones(n, bool)
    first[1:] = slices.lane[1:] != slices.lane[:-1]
    gap = found.pause
    at_once = _begins_collective(slices, found) & ~first & ~np.append(False, gap[:-1])
    waiting = np.flatnonzero((gap | first | at_once) & ~timers[slices.lane])
    resumes = np.where(gap[waiting], slices.end[waiting], slices.start[waiting])
    since = np.where(gap[waiting], slices.start[waiting], np.iinfo(np.int64).min)
    lanes = [int(lane) for lane in slices.lanes() if not timers[lane]]
    # Two candidates for each source: the last work of a thread that is idle since, and of one that may be busy.
    idle, busy = np.full(len(waiting), -1, np.int64), np.full(len(waiting), -1, np.int64)
    idle_end, busy_end = since.copy(), since.copy()
    last_of_operator = (slices.row >= 0) & np.append((slices.row[1:] < 0) | first[1:], True)
    for lane in lanes:
        elsewhere = (slices.lane[waiting] != lane) & ~at_once[waiting]
        work = np.flatnonzero((slices.lane == lane) & (slices.row >= 0))
        if not len(work):
            continue
        # The lane's last slice that had started when the waiting thread resumed must have ended by then, and during the gap.
        last = work[np.maximum(np.searchsorted(slices.start[work], resumes, "left") - 1, 0)]
        own_rule = gap[waiting] & found.issues[slices.lane[waiting]] & (found.issuer[last] >= 0)
        _take_later(idle, idle_end, last, slices.end[last], elsewhere & ~own_rule & (slices.end[last] <= resumes))
        closing = np.flatnonzero((slices.lane == lane) & last_of_operator)
        done = closing[np.maximum(np.searchsorted(slices.end[closing], resumes, "right") - 1, 0)]
        _take_later(busy, busy_end, done, slices.end[done], elsewhere & (slices.end[done] <= resumes))
    collective = found.source[waiting]
    _take_later(idle, idle_end, collective, slices.end[collective], gap[waiting] & (collective >= 0))
    source = np.where((idle < 0) & _starts_node(trace, slices)[np.minimum(waiting + 1, n - 1)] & gap[waiting], busy, idle)
    issued = _issues(trace, slices, found)[np.where(gap[waiting], np.minimum(waiting + 1, n - 1), waiting)]
    by_issuer = (issued >= 0) & (slices.end[issued] <= resumes)
    source = np.where(by_issuer, issued, source)
    has_source = source >= 0
    return slices, HandOffs(waiting[has_source], source[has_source], ~(first & ~gap)[waiting[has_source]], by_issuer[has_source], gap)


def _begins_collective(slices: HostSlices, found: Awaited) -> NDArray[np.bool_]:
    """The first slice of every collective that a CPU thread carries out and another issued."""
    out = np.zeros(len(slices), bool)
    of_row = np.flatnonzero(found.issuer >= 0)
    _, begins = np.unique(slices.row[of_row], return_index=True)
    out[of_row[begins]] = True
    return out


def _issues(trace: Trace, slices: HostSlices, found: Awaited) -> Int64:
    """For slices that begin a CPU collective, the last slice of the operator that issued it, or the last that the issuing thread had
    finished where the collective began before that operator had ended; -1 elsewhere."""
    out = np.full(len(slices), -1, np.int64)
    begins = np.flatnonzero(found.issuer >= 0)
    issuer = found.issuer[begins]
    until = np.minimum(slices.start[begins], trace.start[issuer] + trace.duration[issuer])
    for lane in np.unique(trace.lane[issuer]):
        low, high = np.searchsorted(slices.lane, np.array((lane, lane + 1), np.int32))
        here = np.flatnonzero(trace.lane[issuer] == lane)
        done = np.searchsorted(slices.end[low:high], until[here], "right")
        out[begins[here]] = np.where(done > 0, low + done - 1, -1)
    return out


def _take_later(best: Int64, best_end: Int64, candidate: Int64, end: Int64, allowed: NDArray[np.bool_]) -> None:
    """Replace entries of `best` by candidates that ended later, and after the gap began: `best_end` starts as that time."""
    better = allowed & (end > best_end)
    best[better], best_end[better] = candidate[better], end[better]


#: Operators that are nodes of the backward pass, under the names that old and new profilers give them.
_NODE = re.compile(r"autograd::engine::evaluate_function|\w+Backward\d*$")


def is_backward_node(trace: Trace) -> NDArray[np.bool_]:
    """Rows that are nodes of the backward pass."""
    return trace.named(_NODE.match)


def _starts_node(trace: Trace, slices: HostSlices) -> NDArray[np.bool_]:
    """Slices that belong to a node of the backward pass."""
    mask: NDArray[np.bool_] = (slices.row >= 0) & is_backward_node(trace)[slices.row]
    return mask


class Joins(NamedTuple):
    """Further sources of waits: wait[i], an index into HandOffs, also waits for slice source[i]."""

    wait: Int64
    source: Int64


def joins(trace: Trace, slices: HostSlices, handed: HandOffs, lanes: Int64) -> Joins:
    """The further threads that the pauses of hand-offs waited for. lanes: the threads that others may wait for.

    Such a thread finished during the same pause, was idle from then on, had been started by the waiting thread, and nothing else waited for
    what it finished with. It must be so in all pauses of the waiting thread that end with the same operator: one in which the other thread
    still works refutes it. Threads that carry out collectives have a rule of their own (`graph.hand_offs.awaited`).
    """
    waits = np.flatnonzero(handed.paused & ~handed.issued)
    gap = handed.slice[waits]
    after = slices.row[np.minimum(gap + 1, max(len(slices) - 1, 0))]
    place = np.stack((slices.lane[gap], np.where(after >= 0, trace.name[after], -1)))
    kind = np.unique(place, axis=1, return_inverse=True)[1].reshape(-1) if len(gap) else gap
    wait, source = [gap[:0]], [gap[:0]]
    collective = is_cpu_collective(trace)
    for lane in lanes.tolist():
        work = np.flatnonzero((slices.lane == lane) & (slices.row >= 0))
        work = work if not collective[slices.row[work]].any() else work[:0]
        starter = np.sort(handed.slice[slices.lane[handed.slice] == lane])
        if not len(work) or not len(starter):
            continue
        last = work[np.maximum(np.searchsorted(slices.start[work], slices.end[gap], "left") - 1, 0)]
        finished = (slices.end[last] > slices.start[gap]) & (slices.end[last] <= slices.end[gap]) & (slices.lane[gap] != lane)
        by = starter[np.maximum(np.searchsorted(starter, last, "right") - 1, 0)]
        joined = finished & (slices.lane[_source_of(handed, by)] == slices.lane[gap])
        always = ~np.isin(kind, kind[~joined])
        chosen = np.flatnonzero(always & ~np.isin(last, handed.source))
        wait.append(waits[chosen])
        source.append(last[chosen])
    return Joins(np.concatenate(wait), np.concatenate(source))


def _source_of(handed: HandOffs, slices: Int64) -> Int64:
    """What each of the slices, all of which wait, waits for."""
    order = np.argsort(handed.slice, kind="stable")
    return handed.source[order[np.searchsorted(handed.slice[order], slices)]]
