"""Who waits for whom in collectives: of each rendezvous, which member came last, and how long the others stood by.

All members of a rendezvous transfer from the moment the last of them arrives. What a member lasts before that is waiting,
and whoever came last is whom it waited for. Where ranks' clocks disagree, a measured member may have ended before the last
arrived; then all that it lasted was waiting.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from lumos.graph.table import Dependency
from lumos.simulate.timeline import Timeline
from lumos.trace.table import Int32, Int64


class Waiting(NamedTuple):
    """By task. began: int64[n] ns, when its own work began: its start, or in a rendezvous the latest arrival.
    last: int32[n], the member of its rendezvous that arrived last (the first of equals); the task itself outside of any."""

    began: Int64
    last: Int32


def waiting(timeline: Timeline) -> Waiting:
    """Split every task of the timeline into waiting for its rendezvous and its own work."""
    graph = timeline.graph
    began, last = timeline.start.copy(), np.arange(len(graph), dtype=np.int32)
    sizes = np.diff(graph.rendezvous_offset)
    tasks = graph.rendezvous_task
    if not len(tasks) or Dependency.RENDEZVOUS in graph.ignored:
        return Waiting(began, last)
    first = graph.rendezvous_offset[:-1][sizes > 0]
    sizes = sizes[sizes > 0]
    arrival = timeline.start[tasks]
    latest = np.repeat(np.maximum.reduceat(arrival, first), sizes)
    came_last = np.flatnonzero(arrival == latest)
    came_last = came_last[np.searchsorted(came_last, first)]
    last[tasks] = np.repeat(tasks[came_last], sizes)
    began[tasks] = np.minimum(latest, timeline.end[tasks])
    return Waiting(began, last)
