"""What let each task start, and when. Idle time, the critical path and slack are all computed from this.

A task may start once all of this has happened: each of its predecessors has ended, and the delay that this kind of dependency
adds has passed; the task before it on its thread or stream has ended; its device has capacity for it;
and the time has come that the recording imposes on it, if any. This holds in any timeline, measured or simulated with any
durations. Dependencies that the graph ignores are no causes.

`causes` gives the latest cause of every task, from which a chain can be followed. It needs the frozen graph, because only that
says what each call waits for. `device_causes` gives the causes of device tasks by kind and needs no frozen graph, so that a
recording whose dependencies contradict each other can still be broken down.

*Capacity.* A kernel in `Graph.occupancy` holds a share of its device from its start until `hold` of its own work is done. A member of a
rendezvous therefore holds its share while it waits for the last rank. No kernel starts while the kernels of other streams hold
the whole device. Holds scale with durations, and shares add up, as in the event loop, so that in a simulated run a kernel that
found the device full starts at exactly the time given here.

A measured kernel may begin before the device ceases to be full according to this model: it is then full until that start.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from lumos.analyze.collectives import Waiting, waiting
from lumos.graph.lists import list_of
from lumos.graph.table import Dependency, Occupancy
from lumos.trace.table import unique

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from lumos.analyze.loop.steps import Members
    from lumos.simulation.freeze import Frozen
    from lumos.simulation.timeline import Timeline
    from lumos.trace.table import Int8, Int32, Int64

#: A time that does not exist: earlier than any other.
NEVER = int(np.iinfo(np.int64).min)

#: As in the event loop, shares count in parts of 1e9, and a device within 1e-6 of full is full.
_WHOLE = 1_000_000_000
_FULL = _WHOLE - 1000


class LastFull(NamedTuple):
    """The last time that each task found its device full.

    until: int64[n] ns, the last time up to the task's start at which kernels of other streams held all of its device; NEVER
    where they never did. holder: int32[n], the kernel that then released its share, the last of those that released theirs at
    that time; -1 for none.
    """

    until: Int64
    holder: Int32


class _Holds(NamedTuple):
    """Kernels that hold shares of devices. stream: index into `Graph.processors`. start, end: of the hold, ns. share: in
    parts of _WHOLE."""

    task: Int32
    stream: Int32
    start: Int64
    end: Int64
    share: Int64

    def only(self, chosen: Int64) -> _Holds:
        return _Holds(self.task[chosen], self.stream[chosen], self.start[chosen], self.end[chosen], self.share[chosen])


def last_full(timeline: Timeline, waits: Waiting) -> LastFull:
    """Until when every task of the timeline found its device full. waits: of the same timeline."""
    graph = timeline.graph
    full = LastFull(np.full(len(graph), NEVER), np.full(len(graph), -1, np.int32))
    if graph.occupancy is None or Dependency.OCCUPANCY in graph.ignored:
        return full
    holds = _holds(timeline, waits, graph.occupancy)
    numbers: dict[tuple[int, int], int] = {}
    number = np.array([numbers.setdefault((p.rank, p.device), len(numbers)) for p in graph.processors], np.int32)
    device = number[holds.stream]
    for one_device in unique(device):
        shared = np.flatnonzero(device == one_device)
        for stream in unique(holds.stream[shared]):
            own, others = holds.only(shared[holds.stream[shared] == stream]), holds.only(shared[holds.stream[shared] != stream])
            begin, until, holder = _full_periods(others)
            last = np.searchsorted(begin, own.start, side="left") - 1
            known = np.flatnonzero(last >= 0)
            full.until[own.task[known]] = np.minimum(until[last[known]], own.start[known])
            full.holder[own.task[known]] = holder[last[known]]
    return full


def _holds(timeline: Timeline, waits: Waiting, table: Occupancy) -> _Holds:
    """The holds of all kernels in the table. A hold scales with how long the kernel works in this timeline."""
    graph, task = timeline.graph, table.task
    began = waits.began[task]
    end = began + _share_of(timeline.end[task] - began, table.hold, np.maximum(graph.duration[task], 1))
    share = np.rint(table.share.astype(np.float64) * _WHOLE).astype(np.int64)
    return _Holds(task, graph.processor[task], timeline.start[task], end, share)


def _share_of(time: Int64, part: Int64, whole: Int64) -> Int64:
    """time · part / whole, rounded down as in the event loop, also where the product exceeds 64 bits; part ≤ whole."""
    if float(whole.max(initial=0)) * float(time.max(initial=0)) < 2.0**62:
        return time * part // whole
    return np.array([t * p // w for t, p, w in zip(time.tolist(), part.tolist(), whole.tolist(), strict=True)], np.int64)


class _Periods(NamedTuple):
    """When kernels hold the whole device, ascending: begin, end (ns), and the kernel whose release ended it."""

    begin: Int64
    end: Int64
    holder: Int32


def _full_periods(holds: _Holds) -> _Periods:
    """The periods in which these kernels hold the whole device."""
    holds = holds.only(np.flatnonzero(holds.end > holds.start))
    by_start, by_end = np.argsort(holds.start, kind="stable"), np.argsort(holds.end, kind="stable")
    start, end = holds.start[by_start], holds.end[by_end]
    taken, released = (np.concatenate(([0], np.cumsum(holds.share[order]))) for order in (by_start, by_end))
    time = unique(start, end)

    def held(side: Literal["left", "right"]) -> NDArray[np.bool_]:
        """Whether the device is full just before ("left") or after ("right") each time."""
        full: NDArray[np.bool_] = taken[np.searchsorted(start, time, side)] - released[np.searchsorted(end, time, side)] >= _FULL
        return full

    before, after = held("left"), held("right")
    ended = time[before & ~after]
    return _Periods(time[~before & after], ended, holds.task[by_end[np.searchsorted(end, ended, side="right") - 1]])


class Cause(NamedTuple):
    """What a task waited for last.

    task: the task that it waited for, -1 where none is known. ready: when that let it start, ns. done: when that was itself
    done, ns. kind: how they depend on each other; None where none is known, or where the recording imposes a later start.
    """

    task: int
    ready: int
    done: int
    kind: Dependency | None


@dataclass(frozen=True, slots=True, eq=False)
class Causes:
    """What each task of a timeline waited for last; arrays by task, int64[n] ns unless stated.

    task: int32[n], a predecessor, or the kernel that released its part of the device; -1 where none is known. kind: uint8[n],
    their Dependency. ready: when that let it start; NEVER where none is known. done: when the cause was itself done, or
    released its part of the device. imposed: bool[n], whether the recording imposes a later start than `ready`. waiting: who
    waits in collectives.
    """

    task: Int32
    kind: Int8
    ready: Int64
    done: Int64
    imposed: NDArray[np.bool_]
    waiting: Waiting

    def of(self, task: int) -> Cause:
        """What one task waited for last."""
        before, done = int(self.task[task]), int(self.done[task])
        if before < 0:
            return Cause(-1, NEVER, NEVER, None)
        if self.imposed[task]:
            return Cause(before, done, done, None)
        return Cause(before, int(self.ready[task]), done, Dependency(int(self.kind[task])))


def causes(timeline: Timeline, frozen: Frozen) -> Causes:
    """The latest cause of every task. frozen: what `freeze` gives for the timeline's graph."""
    graph, n = timeline.graph, len(timeline.graph)
    task, kind, ready = np.empty(n, np.int32), np.empty(n, np.uint8), np.empty(n, np.int64)
    end = np.ascontiguousarray(timeline.end)
    frozen.edges.causes(end, task, kind, ready)
    ready = np.where(task < 0, NEVER, ready)
    done = np.where(task < 0, NEVER, end[task])
    released = np.zeros(n, bool)
    released[graph.release_task] = True
    waits = waiting(timeline)
    full = last_full(timeline, waits)
    held_back = np.flatnonzero(full.until > ready)
    task[held_back], kind[held_back] = full.holder[held_back], Dependency.OCCUPANCY
    ready[held_back] = done[held_back] = full.until[held_back]
    imposed = released & (timeline.start > ready)
    imposed[held_back] = False
    return Causes(task, kind, ready, done, imposed, waits)


@dataclass(frozen=True, slots=True, eq=False)
class DeviceCauses:
    """Device tasks by stream and start, and when each cause let them start; int64[d] ns, NEVER where there is none.

    task: int64[d], the device tasks. launch: the launch call. previous: the task before on the stream, its dispatch behind that included.
    wait: the latest of every other dependency, the capacity of the device, and the start that the recording imposes.
    """

    task: Int64
    launch: Int64
    previous: Int64
    wait: Int64

    @property
    def latest(self) -> Int64:
        """The latest known cause of each device task."""
        out: Int64 = np.maximum(np.maximum(self.launch, self.previous), self.wait)
        return out


def device_causes(timeline: Timeline, owners: Members) -> DeviceCauses:
    """When each device task of the timeline's graph became ready, by cause."""
    graph = timeline.graph
    lag = graph.lag[owners.rank]  # of each task as a successor, [n, kinds]
    successor = list_of(graph.pred_offset)
    used = owners.on_device[successor] & ~np.isin(graph.pred_kind, list(graph.ignored))
    launches, dispatches = graph.pred_kind == Dependency.LAUNCH, graph.pred_kind == Dependency.OCCUPANCY
    launch, dispatched, wait = (np.full(len(graph), NEVER) for _ in range(3))
    for ready, edges in ((launch, used & launches), (dispatched, used & dispatches), (wait, used & ~launches & ~dispatches)):
        task, kind = successor[edges], graph.pred_kind[edges]
        _latest(ready, task, timeline.end[graph.pred[edges]] + lag[task, kind])
    released = graph.release_task
    wait[released] = np.maximum(wait[released], graph.release_time)
    device = np.flatnonzero(owners.on_device)
    device = device[np.lexsort((timeline.start[device], graph.processor[device]))]
    previous = dispatched[device]
    if Dependency.STREAM_ORDER not in graph.ignored:
        follows = np.flatnonzero(graph.processor[device[1:]] == graph.processor[device[:-1]]) + 1
        in_order = timeline.end[device[follows - 1]] + lag[device[follows], Dependency.STREAM_ORDER]
        previous[follows] = np.maximum(previous[follows], in_order)
    wait = np.maximum(wait, last_full(timeline, waiting(timeline)).until)
    return DeviceCauses(device, launch[device], previous, wait[device])


def _latest(out: Int64, task: Int64, time: Int64) -> None:
    """out[t] = the maximum of `time` over the entries of t; `task` ascends."""
    if len(task):
        first = np.flatnonzero(np.concatenate(([True], task[1:] != task[:-1])))
        out[task[first]] = np.maximum.reduceat(time, first)
