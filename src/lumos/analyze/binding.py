"""What each task of a run waited for last: the dependency that bound its start."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lumos import _path
from lumos.analyze.room import Room, made_room
from lumos.analyze.waiting import Waiting, waiting
from lumos.graph.table import Dependency
from lumos.simulate.freeze import Frozen
from lumos.simulate.timeline import Timeline
from lumos.trace.table import Int8, Int32, Int64


@dataclass(frozen=True, slots=True, eq=False)
class Causes:
    """By task: the predecessor that let it start last (-1 none), the kind of that dependency, and when it let it start, ns;
    beside these, whose start the recording imposes (`released`), who waited in collectives and who found the SMs taken."""

    timeline: Timeline
    task: Int32
    kind: Int8
    ready: Int64
    released: NDArray[np.bool_]
    waiting: Waiting
    room: Room

    def of(self, task: int, begin: int) -> tuple[int, int, int, Dependency | None]:
        """What a task that began then had waited for last: (task, when it let this one start, when it was done, kind).

        (-1, 0, 0, None) where nothing is known to have come before; kind None where the start was imposed later than that.
        """
        before, ready = int(self.task[task]), int(self.ready[task])
        if begin > ready:
            holder, free = self.room.made(task, ready, begin)
            if holder >= 0:
                return holder, free, free, Dependency.OCCUPANCY
        if before < 0:
            return -1, 0, 0, None
        if begin > ready and self.released[task]:
            return before, int(self.timeline.end[before]), int(self.timeline.end[before]), None
        return before, ready, int(self.timeline.end[before]), Dependency(int(self.kind[task]))


def find_causes(timeline: Timeline, frozen: Frozen) -> Causes:
    """The latest cause of every task. frozen: of the timeline's graph."""
    n = len(timeline.graph)
    task, kind, ready = np.empty(n, np.int32), np.empty(n, np.uint8), np.empty(n, np.int64)
    lag, end = np.ascontiguousarray(timeline.graph.lag), np.ascontiguousarray(timeline.end)
    _path.causes(frozen.order, frozen.rank, frozen.pred_offset, frozen.pred, frozen.pred_kind, lag, end, task, kind, ready)
    released = np.zeros(n, bool)
    released[timeline.graph.release_task] = True
    waits = waiting(timeline)
    return Causes(timeline, task, kind, ready, released, waits, made_room(timeline, waits))
