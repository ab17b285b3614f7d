"""What let each task start, and when: the one account that idle time, the critical path and slack are read from.

A task may start once each of its predecessors has ended, plus the delay that this kind of dependency adds; once the task
before it on its thread or stream has; once its device has room for it (`analyze.occupancy`); and where the recording imposes
its start, then. All of it holds in any timeline, measured or simulated with whatever durations. Dependencies that the graph
ignores are no causes.

`causes` gives every task the latest of them and so knows a chain. It needs the frozen graph, because what a call waits for is
known only there. `device_causes` tells the causes of device tasks apart by kind, and needs no schedule: a recording whose
dependencies contradict each other can still be broken down.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lumos.analyze.collectives import Waiting, waiting
from lumos.analyze.occupancy import NEVER, room
from lumos.analyze.steps import Members
from lumos.graph.lists import list_of
from lumos.graph.table import Dependency
from lumos.simulate.freeze import Frozen
from lumos.simulate.timeline import Timeline
from lumos.trace.table import Int8, Int32, Int64


class Cause(NamedTuple):
    """What a task waited for last: a task (-1: nothing known), when it let this one start and when it was itself done, ns.

    kind: how they depend on each other; None where nothing is known, or where the recording imposes a later start.
    """

    task: int
    ready: int
    done: int
    kind: Dependency | None


@dataclass(frozen=True, slots=True, eq=False)
class Causes:
    """By task of the timeline, int64[n] ns but where said: what it waited for last.

    task: int32[n], a predecessor, or the kernel that made room for it on the device; -1 where nothing is known. kind: uint8[n],
    their Dependency. ready: when that let it start; NEVER where nothing is known. done: when the cause was itself done, or
    let go of the device. imposed: bool[n], the recording imposes a later start than that. waiting: who waits in collectives.
    """

    task: Int32
    kind: Int8
    ready: Int64
    done: Int64
    imposed: NDArray[np.bool_]
    waiting: Waiting

    def of(self, task: int) -> Cause:
        before, done = int(self.task[task]), int(self.done[task])
        if before < 0:
            return Cause(-1, NEVER, NEVER, None)
        if self.imposed[task]:
            return Cause(before, done, done, None)
        return Cause(before, int(self.ready[task]), done, Dependency(int(self.kind[task])))


def causes(timeline: Timeline, frozen: Frozen) -> Causes:
    """The latest cause of every task. frozen: of the timeline's graph."""
    graph, n = timeline.graph, len(timeline.graph)
    task, kind, ready = np.empty(n, np.int32), np.empty(n, np.uint8), np.empty(n, np.int64)
    end = np.ascontiguousarray(timeline.end)
    frozen.edges.causes(end, task, kind, ready)
    ready = np.where(task < 0, NEVER, ready)
    done = np.where(task < 0, NEVER, end[task])
    released = np.zeros(n, bool)
    released[graph.release_task] = True
    waits = waiting(timeline)
    shared = room(timeline, waits)
    held = np.flatnonzero(shared.since > ready)
    task[held], kind[held] = shared.holder[held], Dependency.OCCUPANCY
    ready[held] = done[held] = shared.since[held]
    imposed = released & (timeline.start > ready)
    imposed[held] = False
    return Causes(task, kind, ready, done, imposed, waits)


@dataclass(frozen=True, slots=True, eq=False)
class DeviceCauses:
    """Device tasks by stream and start, and when each cause let them start; int64 ns, NEVER where there is none.

    task: int64[d]. launch: the launch call. previous: the task before on the stream. wait: every other dependency, room on
    the device, and the start that the recording imposes.
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
    kept = owners.on_device[successor] & ~np.isin(graph.pred_kind, list(graph.ignored))
    launches = graph.pred_kind == Dependency.LAUNCH
    launch, wait = np.full(len(graph), NEVER), np.full(len(graph), NEVER)
    for ready, edges in ((launch, kept & launches), (wait, kept & ~launches)):
        task, kind = successor[edges], graph.pred_kind[edges]
        _latest(ready, task, timeline.end[graph.pred[edges]] + lag[task, kind])
    released = graph.release_task
    wait[released] = np.maximum(wait[released], graph.release_time)
    wait = np.maximum(wait, room(timeline, waiting(timeline)).since)
    device = np.flatnonzero(owners.on_device)
    device = device[np.lexsort((timeline.start[device], graph.processor[device]))]
    previous = np.full(len(device), NEVER)
    if Dependency.STREAM_ORDER not in graph.ignored:
        follows = np.flatnonzero(graph.processor[device[1:]] == graph.processor[device[:-1]]) + 1
        previous[follows] = timeline.end[device[follows - 1]] + lag[device[follows], Dependency.STREAM_ORDER]
    return DeviceCauses(device, launch[device], previous, wait[device])


def _latest(out: Int64, task: Int64, time: Int64) -> None:
    """out[t] = the maximum of `time` over the entries of t; `task` ascends."""
    if len(task):
        first = np.flatnonzero(np.concatenate(([True], task[1:] != task[:-1])))
        out[task[first]] = np.maximum.reduceat(time, first)
