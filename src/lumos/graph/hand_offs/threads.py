"""Hand-offs: the times at which one CPU thread waits for another, and the threads that work on their own.

Some time between operators is not work but waiting for another thread: the autograd thread idles until the forward
pass has called backward(), the main thread until backward() returns. Such a gap lasts at least 20 us, and ends because another thread
became idle. So what a thread may have waited for is the last work that another had begun when it went on. Where that was not over at the
same place of any step, the thread does not wait for that other one there (`graph.waits.solve`). Of those that finished during the
pause the last one is its source: the pause becomes a return that depends on that thread's work, followed by the CPU time from there to
the end of the gap. It also waits for each thread that it had started and that finished in all of its pauses before the same operator.
Which collectives a thread waits for is in `graph.hand_offs.awaited`.

Threads that work on their own wait for no other thread, and no other thread waits for them. Some poll by the clock: they make runtime
calls, but run no operator, launch nothing and wait for nothing, such as NCCL's watchdog. Others run operators, driven by a clock or by
another process, such as a monitor or the thread that pins what a data loader's workers send. The work of such a thread begins at other
places of the loop in every step, while work that one thread hands to another begins at the same places in all steps (`graph.places`). A
thread that launches device work, communicates or runs nodes of the backward pass takes part in the step, and so is none of these, nor is
any where fewer than two steps are marked.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.graph.hand_offs.awaited import Awaited, awaited, shortened
from lumos.graph.joined.collectives import is_cpu_collective, is_issuing
from lumos.graph.lists import numbered, ordinals
from lumos.graph.places import is_step_mark, places_in_code, step_at
from lumos.graph.waits.issued import NO_TIME, Issued
from lumos.graph.waits.solve import Awaitable, OpenWaits, work_for
from lumos.trace.table import ABSENT, Category, Int32, Int64, Trace, unique

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from lumos.graph.hand_offs.slices import HostSlices

#: Shortest gap that can be waiting for another thread (ns). Below it, Python between two operators is the likelier cause.
SHORTEST_HAND_OFF = 20_000


class HandOffs(NamedTuple):
    """Slices that begin only when another thread has finished: slice[i] waits for slice source[i]; both index HostSlices.

    slice[i] is a pause of a thread, a collective that it begins without a pause, or its first slice where paused[i] is False. issued:
    bool, whether the thread then begins a collective, which source[i] issued. pause: bool[slices], all pauses, whether they waited for a
    known thread or not. joins, joined: slice[joins[i]] also waits for slice joined[i].
    """

    slice: Int64
    source: Int64
    paused: NDArray[np.bool_]
    issued: NDArray[np.bool_]
    pause: NDArray[np.bool_]
    joins: Int64
    joined: Int64

    def resumed(self, slices: HostSlices) -> Int64:
        """When each wait was over, ns: the end of its source, but not before the pause began."""
        over = slices.end[self.source]
        return np.where(self.paused, np.maximum(over, slices.start[self.slice]), over)


def hand_offs(trace: Trace, slices: HostSlices, timers: NDArray[np.bool_]) -> tuple[HostSlices, HandOffs]:
    """Find the slices that wait for another thread; returns them with the slices, in which a collective that a thread waited for
    ends no later than the wait.

    `timers` marks lanes that work on their own: they wait for no other thread, and no other thread waits for them. A thread's first slice
    is treated as a gap that began with the recording. A thread that resumes with a node of the backward pass may have received it from a
    thread that stays busy: the source is then the last work that had ended there. A collective on a CPU thread waits for the operator
    that issued it, also where its thread was busy until it began, and the thread that issues collectives waits for those of `awaited`.
    """
    collective_waits = awaited(trace, slices, SHORTEST_HAND_OFF)
    slices = shortened(slices, collective_waits.source)
    first, gap = np.diff(slices.lane, prepend=-1) != 0, collective_waits.pause
    at_once = _begins_collective(slices, collective_waits) & ~first & ~np.append(False, gap)[:-1]
    waiting = np.flatnonzero((gap | first | at_once) & ~timers[slices.lane])
    then = np.where(gap[waiting], np.minimum(waiting + 1, len(slices) - 1), waiting)  # what it goes on with
    row, paused = slices.row[then], gap[waiting]
    node = paused & (row >= 0) & is_backward_node(trace)[row]
    wait_place = numbered(slices.lane[waiting], np.where(row >= 0, trace.name[row], -1), paused + 2 * at_once[waiting])
    over = np.where(paused, slices.end[waiting], slices.start[waiting])
    begun = np.where(paused, slices.start[waiting], _BEFORE)
    lanes = slices.lanes()[~timers[slices.lanes()]]
    again = numbered(wait_place, ordinals(wait_place, step_at(trace, over)))
    waits = OpenWaits(again, again, again, waiting, np.searchsorted(lanes, slices.lane[waiting]), over, over, begun)
    by_thread, busy = _finished(slices, collective_waits, lanes, waits, node)
    by_thread[:, at_once[waiting]] = busy[at_once[waiting]] = ABSENT
    collective = np.where(paused & (slices.end[collective_waits.source[waiting]] > begun), collective_waits.source[waiting], ABSENT)
    source = _last(slices, np.stack((*by_thread, collective)))
    issued = _issues(trace, slices, collective_waits)[then]
    by_issuer = (issued >= 0) & (slices.end[issued] <= over)
    source = np.where(by_issuer, issued, np.where(source < 0, busy, source))
    known = np.flatnonzero(source >= 0)
    lone = ~np.isin(lanes, trace.lane[is_cpu_collective(trace)])
    handed = HandOffs(waiting[known], source[known], ~(first & ~gap)[waiting[known]], by_issuer[known], gap, known[:0], known[:0])
    return slices, _joined(slices, handed, by_thread[lone][:, known], wait_place[known])


#: Before all recordings, ns.
_BEFORE = np.iinfo(np.int64).min // 2


def _finished(
    slices: HostSlices, collective_waits: Awaited, lanes: Int32, waits: OpenWaits, node: NDArray[np.bool_]
) -> tuple[Int64, Int64]:
    """The last slice of what each thread had finished with during each wait, int64[lanes, waits], and of what a thread that may be busy had
    finished with last, int64[waits] for those that go on with a `node`; ABSENT without any. The pauses of threads that issue collectives
    are for none but those of `collective_waits`."""
    works = np.flatnonzero((slices.row >= 0) & np.isin(slices.lane, lanes))
    start, end = slices.start[works], slices.end[works]
    issued = Issued(start, end, np.append(np.searchsorted(slices.lane[works], lanes), len(works)))
    stops = np.append((slices.row[1:] < 0) | (np.diff(slices.lane) != 0), True)[works]
    awaitable = (
        Awaitable(start, furthest=0, fewest=1),
        Awaitable(np.where(stops, end - 1, NO_TIME), furthest=np.where(node, 0, -1), fewest=1),
    )
    work = work_for(issued, waits, awaitable, NO_TIME)[0]
    last = np.where((work >= 0) & (np.append(end, 0)[work] > waits.begun), np.append(works, ABSENT)[work], ABSENT)
    own = collective_waits.issues[slices.lane[waits.held]] & collective_waits.pause[waits.held]
    last = np.where(own & (last >= 0) & (collective_waits.issuer[last] >= 0), ABSENT, last)
    return last[:, 0], _last(slices, last[:, 1])


def _last(slices: HostSlices, some: Int64) -> Int64:
    """Of several slices for each wait, int64[slices, waits], the one that ends last; ABSENT without any."""
    some = np.append(some, np.full((1, some.shape[1]), ABSENT), axis=0)
    return np.asarray(np.take_along_axis(some, np.append(slices.end, _BEFORE)[some].argmax(axis=0)[None], axis=0)[0])


def _joined(slices: HostSlices, handed: HandOffs, by_thread: Int64, wait_place: Int64) -> HandOffs:
    """The hand-offs with the further threads that their pauses waited for: those that the waiting thread had started, and that finished in
    all of its pauses at the place, with what nothing else waited for."""
    pause = np.flatnonzero(handed.paused & ~handed.issued)
    lane, awaits = slices.lane[handed.slice[pause]], np.full(len(slices), ABSENT, np.int64)
    awaits[handed.slice] = handed.source
    joins, joined = [pause[:0]], [pause[:0]]
    for last in by_thread[:, pause]:
        starter = np.sort(handed.slice[np.isin(slices.lane[handed.slice], slices.lane[last[last >= 0]])])
        if len(starter):
            started = starter[np.maximum(np.searchsorted(starter, last, "right") - 1, 0)]
            by_own = (last >= 0) & (slices.lane[awaits[started]] == lane) & (slices.lane[started] == slices.lane[last])
            chosen = np.flatnonzero(~np.isin(wait_place[pause], wait_place[pause[~by_own]]) & ~np.isin(last, handed.source))
            joins.append(pause[chosen])
            joined.append(last[chosen])
    return handed._replace(joins=np.concatenate(joins), joined=np.concatenate(joined))


def _begins_collective(slices: HostSlices, collective_waits: Awaited) -> NDArray[np.bool_]:
    """The first slice of every collective that a CPU thread carries out and another issued."""
    out = np.zeros(len(slices), bool)
    of_row = np.flatnonzero(collective_waits.issuer >= 0)
    _, begins = np.unique(slices.row[of_row], return_index=True)
    out[of_row[begins]] = True
    return out


def _issues(trace: Trace, slices: HostSlices, collective_waits: Awaited) -> Int64:
    """For slices that begin a CPU collective, the last slice of the operator that issued it, or the last that the issuing thread had
    finished where the collective began before that operator had ended; -1 elsewhere."""
    out = np.full(len(slices), -1, np.int64)
    begins = np.flatnonzero(collective_waits.issuer >= 0)
    issuer = collective_waits.issuer[begins]
    until = np.minimum(slices.start[begins], trace.start[issuer] + trace.duration[issuer])
    for lane in unique(trace.lane[issuer]):
        low, high = np.searchsorted(slices.lane, np.array((lane, lane + 1), np.int32))
        here = np.flatnonzero(trace.lane[issuer] == lane)
        done = np.searchsorted(slices.end[low:high], until[here], "right")
        out[begins[here]] = np.where(done > 0, low + done - 1, -1)
    return out


#: Operators that are nodes of the backward pass, under the names that old and new profilers give them.
_NODE = re.compile(r"autograd::engine::evaluate_function|\w+Backward\d*$")


def is_backward_node(trace: Trace) -> NDArray[np.bool_]:
    """Rows that are nodes of the backward pass."""
    return trace.named(_NODE.match)


#: A thread with fewer runs of work is not judged.
LEAST_RUNS = 6


def timers(trace: Trace, slices: HostSlices, anchors: Int32, shortest: int) -> NDArray[np.bool_]:
    """The lanes that work on their own, bool[lanes]. anchors: rows of calls that launch device work or wait for it. shortest: the
    shortest pause of a thread that can be a wait for another, ns."""
    runtime, operators = (trace.lane[trace.category == c] for c in (Category.RUNTIME, Category.OPERATOR))
    out = np.zeros(len(trace.lanes), bool)
    out[runtime] = True
    out[operators] = False
    out[trace.lane[anchors]] = False
    marks = np.flatnonzero(is_step_mark(trace))
    if len(unique(trace.start[marks])) < 2:
        return out
    takes_part = np.zeros(len(trace.lanes), bool)
    takes_part[trace.lane[anchors]] = True
    takes_part[trace.lane[marks]] = True
    takes_part[trace.lane[is_cpu_collective(trace) | is_issuing(trace) | is_backward_node(trace)]] = True
    judged = [lane for lane in unique(operators).tolist() if not takes_part[lane]]
    if judged:
        looped = trace.lane[marks[0]]
        loop = places_in_code(trace, np.flatnonzero((trace.lane == looped) & (trace.category == Category.OPERATOR)))
        for lane in judged:
            at = np.searchsorted(loop.start, _runs(slices, lane, shortest), "right") - 1
            at = at[at >= 0]
            place, (_, first) = loop.place[at], np.unique(numbered(loop.place[at], loop.step[at]), return_index=True)
            recurring = int((np.bincount(place[first]) > 1)[place].sum())  # begun at in several steps
            out[lane] = len(at) >= LEAST_RUNS and recurring < len(at) / 2
    return out


def _runs(slices: HostSlices, lane: int, shortest: int) -> Int64:
    """When the runs of work of a thread begin, ns: between them it pauses for `shortest` ns or longer."""
    own = np.flatnonzero(slices.lane == lane)
    pause = (slices.row[own] < 0) & (slices.end[own] - slices.start[own] >= shortest)
    begins = ~pause & np.append(True, pause[:-1])
    return np.asarray(slices.start[own[begins]])
