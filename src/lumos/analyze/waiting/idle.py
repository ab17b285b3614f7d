"""Why a rank's devices were idle.

An idle interval of a step ends when a device task starts. What that task waited for last is the cause of the interval: the
CPU that had not launched it yet (host-bound), other device work or a synchronisation (wait), or only the pause of the device
between two tasks (kernel gap). If the task starts more than 20 µs after its last known cause, that time is unexplained; less
than 20 µs is variation of the constants. Idle time after the step's last device task is host-bound: nothing was queued.

An operation-level job has no devices. An operation is ready when the operations before it have ended and its launch delay has
passed; a transfer is over when the last rank has arrived and the transfer time has passed. Any further time in the recording
has no known cause, and the replay leaves it out. It is unexplained only as far as it delays the step.
"""

from __future__ import annotations

from dataclasses import replace
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.analyze.waiting.causes import DeviceCauses, device_causes
from lumos.analyze.waiting.slack import slack
from lumos.graph.lists import list_of
from lumos.graph.table import Dependency, Kind
from lumos.intervals import Union, union
from lumos.trace.table import unique

if TYPE_CHECKING:
    from lumos.analyze.loop.steps import Members
    from lumos.simulation.timeline import Timeline
    from lumos.trace.table import Int64

#: A start up to this much after the latest known cause counts as explained by it, ns: launch latency varies by less.
TOLERANCE_NS = 20_000


class Idle(NamedTuple):
    """Time in which a rank's devices did nothing, by cause. ns."""

    host_bound_ns: int
    kernel_gap_ns: int
    wait_ns: int
    unexplained_ns: int


class IdleCause(IntEnum):
    """Why devices were idle; the value is the position of its time in `Idle`."""

    HOST_BOUND = 0
    KERNEL_GAP = 1
    WAIT = 2
    UNEXPLAINED = 3


class IdleIntervals(NamedTuple):
    """When a rank's devices did nothing, and why: disjoint intervals in any order. start, end: int64[k] ns; cause: int64[k] `IdleCause`."""

    start: Int64
    end: Int64
    cause: Int64

    def because(self, cause: IdleCause) -> Union:
        """The intervals of one cause."""
        chosen = self.cause == cause
        return union(self.start[chosen], self.end[chosen])

    def by_cause(self) -> Idle:
        """The idle time of every cause."""
        time = np.zeros(len(IdleCause), np.int64)
        np.add.at(time, self.cause, self.end - self.start)
        return Idle(*time.tolist())


def device_idle(timeline: Timeline, owners: Members, interval: tuple[Int64, Int64]) -> tuple[Idle | None, ...]:
    """The idle time in the interval of every step of `owners`: when no device of its rank worked; None where the rank has no device.

    interval: where each step begins and ends, int64[steps] ns.
    """
    return tuple(None if intervals is None else intervals.by_cause() for intervals in idle_intervals(timeline, owners, interval))


def idle_intervals(timeline: Timeline, owners: Members, interval: tuple[Int64, Int64]) -> tuple[IdleIntervals | None, ...]:
    """When no device of the step's rank worked in the interval of every step of `owners`; None where the rank has no device.

    interval: where each step begins and ends, int64[steps] ns.
    """
    causes = device_causes(timeline, owners)
    start, end = interval
    rank, step_rank = owners.rank[causes.task], owners.step_rank()
    rows = {int(position): np.flatnonzero(rank == position) for position in unique(step_rank)}
    own = [rows[int(position)] for position in step_rank]
    return tuple(split(timeline, causes, here, int(start[i]), int(end[i])) if len(here) else None for i, here in enumerate(own))


def split(timeline: Timeline, causes: DeviceCauses, rows: Int64, start: int, end: int) -> IdleIntervals:
    """The idle time in the window [start, end) between the tasks causes.task[rows], by the cause of the task that ends it."""
    begin, finish = timeline.start[causes.task[rows]], timeline.end[causes.task[rows]]
    inside = (finish > start) & (begin < end)
    rows, begin, finish = rows[inside], begin[inside], finish[inside]
    if len(rows) == 0:
        return IdleIntervals(*(np.array([value], np.int64) for value in (start, end, IdleCause.HOST_BOUND)))
    order = np.argsort(begin, kind="stable")
    rows, begin = rows[order], begin[order]
    reached = np.maximum.accumulate(finish[order])
    idle_from = np.concatenate((np.array([start]), np.maximum(reached[:-1], start)))
    launch, wait = causes.launch[rows], causes.wait[rows]
    latest = np.maximum(launch, wait)
    late = begin - np.maximum(np.maximum(latest, causes.previous[rows]), idle_from)
    explained = np.where(late > TOLERANCE_NS, begin - late, begin)
    cause = np.where(latest <= idle_from, IdleCause.KERNEL_GAP, np.where(launch >= wait, IdleCause.HOST_BOUND, IdleCause.WAIT))
    # Every gap is explained up to some moment and unexplained from there; after the last task, nothing was queued.
    found_start = np.concatenate((idle_from, explained, reached[-1:]))
    found_end = np.concatenate((explained, begin, np.array([end])))
    why = np.concatenate((cause, np.full(len(rows), IdleCause.UNEXPLAINED), np.array([IdleCause.HOST_BOUND]))).astype(np.int64)
    some = found_end > found_start
    return IdleIntervals(found_start[some], found_end[some], why[some])


class Unexplained(NamedTuple):
    """Time that no known cause explains: before a task's start, or in a transfer before its end. task: int64[k]; start, end:
    int64[k] ns."""

    task: Int64
    start: Int64
    end: Int64


def unexplained_operations(timeline: Timeline, owners: Members) -> Unexplained:
    """The unexplained time before the start of operations of an operation-level job, and before the end of its transfers, as far as it
    delays the step: less the time by which the operation could have been later still."""
    graph = timeline.graph
    ready, member = _ready(timeline), graph.rendezvous_task
    arrival, done = timeline.start.copy(), timeline.end.copy()
    if len(member):
        last = np.maximum.reduceat(timeline.start[member], graph.rendezvous_offset[:-1])
        arrival[member] = np.repeat(last, np.diff(graph.rendezvous_offset))
        done[member] = arrival[member] + graph.duration[member]
    spare = _spare(timeline, owners, ready)
    startable = ready + spare + arrival - timeline.start
    late = np.flatnonzero((owners.step >= 0) & (graph.kind != Kind.HOST) & (ready >= 0) & (timeline.start > startable))
    slow = member[timeline.end[member] > done[member] + spare[member]].astype(np.int64)
    return Unexplained(
        np.concatenate((late, slow)),
        np.concatenate((startable[late], (done + spare)[slow])),
        np.concatenate((timeline.start[late], timeline.end[slow])),
    )


def _spare(timeline: Timeline, owners: Members, ready: Int64) -> Int64:
    """How much later each operation could have ended before its step ended later, int64[n] ns; of operations that meet, the least of
    them. Unexplained time before an operation counts as part of it, and so moves with it."""
    graph = timeline.graph
    waited = (ready >= 0) & (graph.kind != Kind.HOST)
    start = np.where(waited, np.minimum(ready, timeline.start), timeline.start)
    end = np.where(graph.kind == Kind.HOST, timeline.start + graph.duration, timeline.end)
    spare: Int64 = np.minimum(
        slack(replace(timeline, start=start, end=end), owners).slack, timeline.end.max()
    )  # unbounded, if part of no step
    if len(graph.rendezvous_task):
        least = np.minimum.reduceat(spare[graph.rendezvous_task], graph.rendezvous_offset[:-1])
        spare[graph.rendezvous_task] = np.repeat(least, np.diff(graph.rendezvous_offset))
    return spare


def _ready(timeline: Timeline) -> Int64:
    """When the last predecessor of each task, and the task before it on its stream, had ended, int64[n] ns, -1 without any. A launch delay
    counts with its duration, not with its recorded end."""
    graph = timeline.graph
    successor = list_of(graph.pred_offset)
    ended = np.where(graph.kind == Kind.HOST, timeline.start + graph.duration, timeline.end)
    out = np.full(len(graph), -1, np.int64)
    used = ~np.isin(graph.pred_kind, list(graph.ignored))
    np.maximum.at(out, successor[used], ended[graph.pred[used]])
    if Dependency.STREAM_ORDER not in graph.ignored:
        order = np.lexsort((timeline.start, graph.processor))
        follows = np.flatnonzero(graph.processor[order[1:]] == graph.processor[order[:-1]]) + 1
        task, before = order[follows], order[follows - 1]
        out[task] = np.maximum(out[task], ended[before])
    return out
