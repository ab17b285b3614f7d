"""A changed job, placed as a graph, and the work that is added to it because the recording does not have it, such as the exchanges of
ranks that it did not have either.

Every addition runs on a lane of its own beside the recorded threads and streams of its rank. It begins after the work that it names, when
the work that launched that has been done, and after the addition before it on its lane; what it names as waiting begins after it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.analyze.loop.steps import assigned
from lumos.graph.edges import Edges
from lumos.graph.lists import end_to_end, list_of
from lumos.graph.table import Dependency, Graph, Kind, Processor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lumos.analyze.loop.steps import Members
    from lumos.cost.estimate import Estimate
    from lumos.trace.table import Int64

#: The number of the first stream on which assumed work of a device runs; recorded ones are far below.
_STREAMS = 1 << 20


@dataclass(frozen=True, slots=True, eq=False)
class Placed:
    """An assembled graph of n tasks. owners: its steps. low, high: int64[n], durations at the ends of the 80 % interval, ns. source:
    int64[n], the task of the measured graph of which each is a copy; -1 for tasks that were added. instance: int64[n], the instance of
    the layout, numbered through over its ranks, that each belongs to; of an added task the one after which it runs."""

    graph: Graph
    owners: Members
    low: Int64
    high: Int64
    source: Int64
    instance: Int64


class AddedTimes(NamedTuple):
    """What an addition takes, ns: best estimate and the ends of its 80 % interval."""

    best: int
    low: int
    high: int


class Addition(NamedTuple):
    """A piece of work that is added to a placed job.

    name: of the work. rank: position of its rank. lane: on which of the rank's added lanes it runs. after, before: tasks of the placed job
    that it waits for, and that wait for it; together at least one. follows: earlier additions, by position, that it waits for. meets: a
    number that it shares with the additions with which it transfers together; -1 for none. instance: after which of the layout it runs.
    """

    name: str
    rank: int
    lane: str
    times: AddedTimes
    after: tuple[int, ...]
    before: tuple[int, ...]
    instance: int
    follows: tuple[int, ...] = ()
    meets: int = -1


def times_of(estimate: Estimate) -> AddedTimes:
    """The times of an estimate, ns."""
    return AddedTimes(int(estimate.time), int(estimate.low), int(estimate.high))


def add_work(placed: Placed, additions: Sequence[Addition]) -> Placed:
    """The placed job with the additions, in their order, as its last tasks."""
    if not additions:
        return placed
    graph, n = placed.graph, len(placed.graph)
    lanes = list(dict.fromkeys((a.rank, a.lane) for a in additions))
    new = np.arange(n, n + len(additions), dtype=np.int64)
    edges = _edges(placed, additions)
    predecessors = edges.predecessors(n + len(additions))
    names = list(dict.fromkeys(a.name for a in additions))
    processors = tuple(_lane(placed, rank, lane, number) for number, (rank, lane) in enumerate(lanes))
    times = np.array([a.times for a in additions], np.int64).reshape(-1, 3)
    meeting: dict[int, list[int]] = {}
    for task, a in zip(new.tolist(), additions, strict=True):
        if a.meets >= 0:
            meeting.setdefault(a.meets, []).append(task)
    recorded = [graph.rendezvous_task[low:high].tolist() for low, high in pairwise(graph.rendezvous_offset.tolist())]
    joined = end_to_end([*recorded, *meeting.values()])
    lane_of = np.array([len(graph.processors) + lanes.index((a.rank, a.lane)) for a in additions], np.int32)
    graph = replace(
        graph,
        processors=(*graph.processors, *processors),
        names=(*graph.names, *names),
        duration=np.concatenate((graph.duration, times[:, 0])),
        processor=np.concatenate((graph.processor, lane_of)),
        kind=np.concatenate((graph.kind, np.full(len(new), Kind.COLLECTIVE, graph.kind.dtype))),
        name=np.concatenate((graph.name, np.array([len(graph.names) + names.index(a.name) for a in additions], np.int32))),
        event=np.concatenate((graph.event, np.full(len(new), -1, np.int32))),
        pred_offset=predecessors.offset,
        pred=predecessors.task,
        pred_kind=predecessors.kind,
        rendezvous_offset=joined.offset,
        rendezvous_task=joined.flat.astype(np.int32),
    )
    owners = placed.owners
    step = np.concatenate((owners.step, owners.step[[_anchor(a) for a in additions]])).astype(np.int32)
    return replace(
        placed,
        graph=graph,
        owners=assigned(graph, owners.steps, step, owners.apart),
        low=np.concatenate((placed.low, np.minimum(times[:, 1], times[:, 0]))),
        high=np.concatenate((placed.high, np.maximum(times[:, 2], times[:, 0]))),
        source=np.concatenate((placed.source, np.full(len(new), -1))),
        instance=np.concatenate((placed.instance, np.array([a.instance for a in additions], np.int64))),
    )


def _anchor(a: Addition) -> int:
    """The task of the placed job whose step the addition is part of."""
    return a.after[-1] if a.after else a.before[0]


def _lane(placed: Placed, rank: int, lane: str, number: int) -> Processor:
    graph = placed.graph
    global_rank = graph.ranks[rank]
    device = next((p.device for p in graph.processors if p.rank == global_rank and p.is_stream), -1)
    on_device = any(p.rank == global_rank and p.is_stream for p in graph.processors)
    return Processor(global_rank, on_device, lane, device=device if on_device else -1, stream=_STREAMS + number if on_device else -1)


def _edges(placed: Placed, additions: Sequence[Addition]) -> Edges:
    """The dependencies of the placed job and of the additions."""
    graph, launch, on_device = placed.graph, placed.owners.launch, placed.graph.on_device
    edges = Edges()
    for kind in Dependency:
        same = graph.pred_kind == kind
        edges.add(graph.pred[same].astype(np.int64), list_of(graph.pred_offset)[same], kind)
    found: dict[Dependency, list[tuple[int, int]]] = {}
    last: dict[tuple[int, str], int] = {}
    for task, a in enumerate(additions, len(graph)):
        device = bool(on_device[_anchor(a)])
        waiting = Dependency.STREAM_WAIT if device else Dependency.HAND_OFF
        found.setdefault(waiting, []).extend((t, task) for t in a.after)
        found.setdefault(waiting, []).extend((len(graph) + i, task) for i in a.follows)
        found.setdefault(waiting, []).extend((task, t) for t in a.before)
        if device and launch[_anchor(a)] >= 0:
            found.setdefault(Dependency.LAUNCH, []).append((int(launch[_anchor(a)]), task))
        key = a.rank, a.lane
        if key in last:
            found.setdefault(Dependency.STREAM_ORDER if device else Dependency.THREAD_ORDER, []).append((last[key], task))
        last[key] = task
    for kind, pairs in found.items():
        columns = np.array(pairs, np.int64).reshape(-1, 2)
        edges.add(columns[:, 0], columns[:, 1], kind)
    return edges


def added_work(placed: Placed, instance: int) -> Int64:
    """The tasks of an instance that compute, on the device where the job has one, in order."""
    tasks = np.flatnonzero(placed.instance == instance)
    found: Int64 = tasks[placed.graph.on_device[tasks] == bool(placed.graph.on_device.any())]
    return found
