"""Until when a device was full, seen from each kernel that shares it.

A kernel that takes part in `Graph.occupancy` may start only while the kernels of other streams hold less than the whole
device. In a given timeline, the last moment before its start at which they held all of it is a cause of its start.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lumos.graph.table import Dependency
from lumos.simulate.timeline import Timeline
from lumos.trace.table import Int64

#: A cause that a task does not have: earlier than any time.
NEVER = np.iinfo(np.int64).min

#: Shares are sums of float32; as in the event loop, a device this close to full is full.
TOLERANCE = 1e-6


def full_until(timeline: Timeline) -> Int64:
    """For every task the end of the last time, before its own start, that its device was full; NEVER where none. ns."""
    graph = timeline.graph
    out = np.full(len(graph), NEVER)
    table = graph.occupancy
    if table is None or Dependency.OCCUPANCY in graph.ignored or len(table.task) == 0:
        return out
    place = graph.processor[table.task]
    device = np.array([(p.rank, p.device) for p in graph.processors], np.int64)[place]
    for one in np.unique(device, axis=0):
        shared = np.flatnonzero((device == one).all(axis=1))
        for stream in np.unique(place[shared]):
            own, others = shared[place[shared] == stream], shared[place[shared] != stream]
            begin = timeline.start[table.task[others]]
            opens, closes = _full(begin, begin + table.hold[others], table.share[others].astype(np.float64))
            start = timeline.start[table.task[own]]
            last = np.searchsorted(opens, start, side="left") - 1
            known = last >= 0
            out[table.task[own[known]]] = np.minimum(closes[last[known]], start[known])
    return out


def _full(begin: Int64, end: Int64, share: NDArray[np.float64]) -> tuple[Int64, Int64]:
    """When the shares held sum to the whole: starts and ends of these times, ascending."""
    time = np.concatenate((begin, end))
    order = np.argsort(time, kind="stable")
    held = np.cumsum(np.concatenate((share, -share))[order])
    time = time[order]
    final = np.concatenate((time[1:] != time[:-1], [True])) if len(time) else np.zeros(0, bool)
    time, full = time[final], held[final] >= 1 - TOLERANCE
    change = np.diff(np.concatenate(([0], full.astype(np.int8), [0])))
    return time[change[:-1] == 1], time[np.minimum(np.flatnonzero(change == -1), max(len(time) - 1, 0))]
