"""Time that operations stood idle, or under way, longer than the graph of an operation-level job can explain.

An operation is ready when what it follows has ended, plus its launch delay; its transfer is over when the last rank has
arrived, plus the transfer time. What the recording shows beyond that has no known cause: the replay leaves it out.
"""

from __future__ import annotations

import numpy as np

from lumos.analyze.steps import Members
from lumos.graph.lists import list_of
from lumos.graph.table import Dependency, Graph, Kind
from lumos.simulate.timeline import Timeline
from lumos.trace.table import Int64


def is_operation_level(graph: Graph) -> bool:
    """Whether a measured graph is of operations: data dependencies are in no other measured one."""
    return graph.measured_start is not None and bool((graph.pred_kind == Dependency.DATA).any())


def unexplained_operations(timeline: Timeline, owners: Members) -> tuple[Int64, Int64, Int64]:
    """(task, from, to): the intervals before a task's start and before its end that no cause covers; ns, by task."""
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
    return (
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
