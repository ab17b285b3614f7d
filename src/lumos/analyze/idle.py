"""Why a rank's devices were idle.

An idle interval of a step ends when some device task starts; what that task waited for last is the cause of all of it:
the CPU that had not launched it yet (host-bound), other device work or a synchronisation (wait), or nothing but the
device's own pause between tasks (kernel gap). Time beyond the last known cause by more than 20 µs is unexplained; within
20 µs it is the jitter of the constants. Idle time after the step's last device task is host-bound: nothing was queued.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from lumos.analyze.causes import DeviceCauses, device_causes
from lumos.analyze.steps import Members, spans
from lumos.simulate.timeline import Timeline
from lumos.trace.table import Int64

#: Idle time beyond the latest known cause that counts as explained by it, ns: launch latency varies by less.
TOLERANCE_NS = 20_000


class Idle(NamedTuple):
    """Time in which a rank's devices did nothing, by cause. ns."""

    host_bound_ns: int
    kernel_gap_ns: int
    wait_ns: int
    unexplained_ns: int


def device_idle(timeline: Timeline, owners: Members) -> tuple[Idle | None, ...]:
    """The idle time of every step of `owners` on its rank's devices taken together; None where the rank has none."""
    found = device_causes(timeline, owners)
    start, end = spans(timeline, owners)
    rank, step_rank = owners.rank[found.task], owners.step_rank()
    rows = {int(position): np.flatnonzero(rank == position) for position in np.unique(step_rank)}
    own = [rows[int(position)] for position in step_rank]
    return tuple(split(timeline, found, here, int(start[i]), int(end[i])) if len(here) else None for i, here in enumerate(own))


def split(timeline: Timeline, found: DeviceCauses, rows: Int64, start: int, end: int) -> Idle:
    """Idle time in the window [start, end) between the tasks found.task[rows], by the cause of the task that ends it."""
    begin, finish = timeline.start[found.task[rows]], timeline.end[found.task[rows]]
    inside = (finish > start) & (begin < end)
    rows, begin, finish = rows[inside], begin[inside], finish[inside]
    if len(rows) == 0:
        return Idle(end - start, 0, 0, 0)
    order = np.argsort(begin, kind="stable")
    rows, begin = rows[order], begin[order]
    reached = np.maximum.accumulate(finish[order])
    idle_from = np.concatenate((np.array([start]), np.maximum(reached[:-1], start)))
    idle = np.maximum(begin - idle_from, 0)
    launch, wait = found.launch[rows], found.wait[rows]
    cause = np.maximum(launch, wait)
    late = begin - np.maximum(np.maximum(cause, found.previous[rows]), idle_from)
    unexplained = np.where((idle > 0) & (late > TOLERANCE_NS), late, 0)
    explained = idle - unexplained
    bound = cause > idle_from
    host, waits = bound & (launch >= wait), bound & (wait > launch)
    tail = max(end - int(reached[-1]), 0)
    return Idle(
        int(explained[host].sum()) + tail,
        int(explained[~bound].sum()),
        int(explained[waits].sum()),
        int(unexplained.sum()),
    )
