"""Why a rank's devices were idle.

An idle interval of a step ends when some device task starts; what that task waited for last is the cause of all of it:
the CPU that had not launched it yet (host-bound), other device work or a synchronisation (wait), or nothing but the
device's own pause between tasks (kernel gap). Time beyond the last known cause by more than 20 µs is unexplained; within
20 µs it is the jitter of the constants. Idle time after the step's last device task is host-bound: nothing was queued.

An operation-level job has no devices, but operations: one is ready when what it follows has ended, plus its launch delay, and
its transfer is over when the last rank has arrived, plus the transfer time. What the recording shows beyond that has no known
cause: the replay leaves it out.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from lumos.analyze.causes import DeviceCauses, device_causes
from lumos.analyze.steps import Members, spans
from lumos.graph.lists import list_of
from lumos.graph.table import Dependency, Graph, Kind
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


def is_operation_level(graph: Graph) -> bool:
    """Whether a measured graph is of operations: data dependencies are in no other measured one."""
    return graph.measured_start is not None and bool((graph.pred_kind == Dependency.DATA).any())


class Unexplained(NamedTuple):
    """Intervals that no known cause covers: the task that stood idle or under way, from when to when, int64 ns."""

    task: Int64
    start: Int64
    end: Int64


def unexplained_operations(timeline: Timeline, owners: Members) -> Unexplained:
    """What stands before the start of tasks of an operation-level job, and before their end."""
    graph = timeline.graph
    ready = _ready(timeline)
    task = np.flatnonzero((owners.step >= 0) & (graph.kind != Kind.HOST))
    late = task[(ready[task] >= 0) & (timeline.start[task] > ready[task])]
    member = graph.rendezvous_task
    over = np.empty(0, np.int64)
    done = np.empty(0, np.int64)
    if len(member):
        arrival = np.maximum.reduceat(timeline.start[member], graph.rendezvous_offset[:-1])
        done = np.repeat(arrival, np.diff(graph.rendezvous_offset)) + graph.duration[member]
        slow = timeline.end[member] > done
        over, done = member[slow].astype(np.int64), done[slow]
    return Unexplained(
        np.concatenate((late, over)),
        np.concatenate((ready[late], done)),
        np.concatenate((timeline.start[late], timeline.end[over])),
    )


def _ready(timeline: Timeline) -> Int64:
    """When each task's predecessors had ended, int64[n] ns; the host's time counts with its duration. -1 without any."""
    graph = timeline.graph
    successor = list_of(graph.pred_offset)
    ended = np.where(graph.kind == Kind.HOST, timeline.start + graph.duration, timeline.end)
    out = np.full(len(graph), -1, np.int64)
    kept = ~np.isin(graph.pred_kind, list(graph.ignored))
    np.maximum.at(out, successor[kept], ended[graph.pred[kept]])
    return out
