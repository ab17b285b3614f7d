"""What let each task start, and when. Idle time, the critical path and slack are all computed from this.

A task may start once all of this has happened: each of its predecessors has ended, and the delay that this kind of dependency
adds has passed; the task before it on its thread or stream has ended; its device has capacity for it (`analyze.waiting.occupancy`);
and the time has come that the recording imposes on it, if any. This holds in any timeline, measured or simulated with any
durations. Dependencies that the graph ignores are no causes.

`causes` gives the latest cause of every task, from which a chain can be followed. It needs the frozen graph, because only that
says what each call waits for. `device_causes` gives the causes of device tasks by kind and needs no frozen graph, so that a
recording whose dependencies contradict each other can still be broken down.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.analyze.collectives import Waiting, waiting
from lumos.analyze.waiting.occupancy import NEVER, last_full
from lumos.graph.lists import list_of
from lumos.graph.table import Dependency

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from lumos.analyze.loop.steps import Members
    from lumos.simulation.freeze import Frozen
    from lumos.simulation.timeline import Timeline
    from lumos.trace.table import Int8, Int32, Int64


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
