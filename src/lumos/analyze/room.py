"""When kernels left room on the SMs for those of other streams.

A kernel holds its share of the device for `Occupancy.hold` from where its own work began; a kernel that found the device
full starts when another one's hold ends. Holds scale with durations, as in the simulator.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lumos.analyze.waiting import Waiting
from lumos.graph.table import Dependency
from lumos.simulate.timeline import Timeline
from lumos.trace.table import Int32, Int64

#: How far short of the whole device shares may fall and still fill it, as in the simulator.
ROUNDING = 1e-6


class Holds(NamedTuple):
    """Kernels of one device that occupy SMs, in the order in which they let go: task, its stream, from when to when, and the
    share of the device."""

    task: Int32
    stream: Int32
    start: Int64
    end: Int64
    share: NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class Room:
    """shares: bool[n], the tasks that occupy SMs. device: int32[n], number of the (rank, device) of their device tasks, -1 for
    a thread's. stream: int32[n], the processor. holds: by device number."""

    shares: NDArray[np.bool_]
    device: Int32
    stream: Int32
    holds: tuple[Holds, ...]

    def made(self, task: int, after: int, until: int) -> tuple[int, int]:
        """The kernel that let `task` start between these times: it was the last of other streams to let go while they filled
        the device. (task, when); (-1, 0) where none did."""
        if not self.shares[task]:
            return -1, 0
        held, stream = self.holds[self.device[task]], self.stream[task]
        low, high = (int(i) for i in np.searchsorted(held.end, (after, until), side="right"))
        for i in range(high - 1, low - 1, -1):
            moment = held.end[i]
            others = (held.start[i:] < moment) & (held.stream[i:] != stream)
            if others[0] and held.share[i:][others].sum() >= 1 - ROUNDING:
                return int(held.task[i]), int(moment)
        return -1, 0


def made_room(timeline: Timeline, waits: Waiting) -> Room:
    """When each kernel that occupies SMs let go of them."""
    graph = timeline.graph
    numbers: dict[tuple[int, int], int] = {}
    device = np.array([numbers.setdefault((p.rank, p.device), len(numbers)) if p.is_stream else -1 for p in graph.processors], np.int32)
    shares = np.zeros(len(graph), bool)
    if graph.occupancy is None or Dependency.OCCUPANCY in graph.ignored:
        return Room(shares, device[graph.processor], graph.processor, ())
    tasks = graph.occupancy.task
    shares[tasks] = True
    start = waits.began[tasks]
    end = start + graph.occupancy.hold * (timeline.end[tasks] - start) // np.maximum(graph.duration[tasks], 1)
    columns = (tasks, graph.processor[tasks], start, end, graph.occupancy.share)
    order = np.argsort(end, kind="stable")
    by_device = [order[device[graph.processor[tasks[order]]] == d] for d in range(len(numbers))]
    return Room(shares, device[graph.processor], graph.processor, tuple(Holds(*(c[at] for c in columns)) for at in by_device))
