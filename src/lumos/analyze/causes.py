"""When each device task could have started, by each of the causes that the graph knows.

In any timeline, a device task is ready once its launch has returned, the work it waits for (on other streams, or by a
synchronisation) has ended, and the task before it on its stream has ended, each plus its kind's constant, and once the
device has room for it. Dependencies that the graph ignores are no causes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lumos.analyze.occupied import NEVER, full_until
from lumos.analyze.steps import Members
from lumos.graph.lists import list_of
from lumos.graph.table import Dependency
from lumos.simulate.timeline import Timeline
from lumos.trace.table import Int64


@dataclass(frozen=True, slots=True, eq=False)
class Causes:
    """Device tasks by stream and start, and when each cause let them start; int64 ns, NEVER where there is none.

    task: int64[d]. launch: the launch call. previous: the task before on the stream. wait: every other dependency, a
    device full of other streams' kernels, and release times.
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


def causes(timeline: Timeline, owners: Members) -> Causes:
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
    wait = np.maximum(wait, full_until(timeline))
    device = np.flatnonzero(owners.on_device)
    device = device[np.lexsort((timeline.start[device], graph.processor[device]))]
    previous = np.full(len(device), NEVER)
    if Dependency.STREAM_ORDER not in graph.ignored:
        follows = np.flatnonzero(graph.processor[device[1:]] == graph.processor[device[:-1]]) + 1
        previous[follows] = timeline.end[device[follows - 1]] + lag[device[follows], Dependency.STREAM_ORDER]
    return Causes(device, launch[device], previous, wait[device])


def _latest(out: Int64, task: Int64, time: Int64) -> None:
    """out[t] = the maximum of `time` over the entries of t; `task` ascends."""
    if len(task):
        first = np.flatnonzero(np.concatenate(([True], task[1:] != task[:-1])))
        out[task[first]] = np.maximum.reduceat(time, first)
