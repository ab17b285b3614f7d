"""A changed job, placed as a graph, and the work that is added to it because the recording does not have it, such as the exchanges of
ranks that it did not have either.

Every addition runs on a lane of its own beside the recorded threads and streams of its rank. It begins after the work that it names, when
the work that launched that has been done, and after the addition before it on its lane; what it names as waiting begins after it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.analyze.loop.steps import assigned
from lumos.graph.lists import Edges, end_to_end, list_of
from lumos.graph.table import Dependency, Graph, Kind, Processor

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from lumos.analyze.loop.steps import Members
    from lumos.cost.estimate import Estimate
    from lumos.trace.table import Int32, Int64

#: Factor to either side within which the time of such work lies.
SPREAD = 2.0
#: The number of the first stream on which added work of a device runs; recorded ones are far below.
_STREAMS = 1 << 20


@dataclass(frozen=True, slots=True, eq=False)
class Placed:
    """An assembled graph of n tasks. owners: its steps. low, high: int64[n], durations at the ends of the 80 % interval, ns. source:
    int64[n], the recorded task of which each is a copy; -1 for tasks that were added. instance: int64[n], the instance of the layout,
    numbered through over its ranks, that each belongs to; of an added task the one after which it runs."""

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
    that it waits for, and that wait for it; together at least one. follows: earlier additions, by position, that it waits for. group: of
    how many recorded ranks it is the exchange, and apart: how far these are apart (`met`). instance: after which of the layout it runs.
    kernels, exchanges: how many operators with one kernel, and how many exchanges, the CPU calls for it. meets: a number that it shares
    with the additions with which it transfers together; -1 for none. copies: recorded tasks that take so much longer, ns, because they copy
    its buffer as well.
    """

    name: str
    rank: int
    lane: str
    times: AddedTimes
    after: tuple[int, ...]
    before: tuple[int, ...]
    instance: int
    follows: tuple[int, ...] = ()
    group: int = 1
    apart: int = 1
    kernels: int = 0
    exchanges: int = 1
    meets: int = -1
    copies: tuple[tuple[int, int], ...] = ()


def times_of(estimate: Estimate) -> AddedTimes:
    """The times of an estimate, ns."""
    return AddedTimes(int(estimate.time), int(estimate.low), int(estimate.high))


def roughly(ns: int) -> AddedTimes:
    """A time, ns, of work that frameworks do in different ways, or not at all: known to a factor of SPREAD."""
    return AddedTimes(ns, round(ns / SPREAD), round(ns * SPREAD))


class Launching(NamedTuple):
    """What calling an operator that launches one kernel, and calling an exchange, take the CPU of a rank, ns."""

    operator: float
    exchange: float

    def of(self, a: Addition) -> int:
        """What an addition takes."""
        return round(a.kernels * self.operator + a.exchanges * self.exchange)


def add_work(placed: Placed, additions: Sequence[Addition], launching: Sequence[Launching] = ()) -> Placed:
    """The placed job with the additions, in their order, as its last tasks. What launching them takes the CPU is added to what its thread
    does after it has launched the work that they name.

    launching: what launching takes the CPU, by position of the rank; () where it takes no time.
    """
    if not additions:
        return placed
    launch, following = placed.owners.launch, next_on_processor(placed.graph)
    calls: Counter[int] = Counter()
    for a in additions:
        for task, ns in a.copies:
            calls[task] += ns
        call = int(launch[_anchor(a)])
        calls[max(call, int(following[call])) if call >= 0 else -1] += launching[a.rank].of(a) if launching else 0
    placed = longer(placed, {task: roughly(ns) for task, ns in calls.items() if task >= 0 and ns})
    additions = met(additions, len(placed.graph.ranks))
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
    step = np.concatenate((owners.step, _steps(placed, additions))).astype(np.int32)
    return replace(
        placed,
        graph=graph,
        owners=assigned(graph, owners.steps, step, owners),
        low=np.concatenate((placed.low, np.minimum(times[:, 1], times[:, 0]))),
        high=np.concatenate((placed.high, np.maximum(times[:, 2], times[:, 0]))),
        source=np.concatenate((placed.source, np.full(len(new), -1))),
        instance=np.concatenate((placed.instance, np.array([a.instance for a in additions], np.int64))),
    )


def met(additions: Sequence[Addition], world: int) -> tuple[Addition, ...]:
    """The additions of a job of `world` ranks, of which those exchanges transfer together that are the same of each rank's in number. Where
    the ranks do not have equally many, it is not known which belong together, and each is for itself."""
    counts = Counter(a.rank for a in additions if a.group > 1)
    if len({counts[rank] for rank in range(world)}) != 1:
        return tuple(additions)
    number: Counter[int] = Counter()
    out = []
    for a in additions:
        joins = a.group > 1 and world % (a.group * a.apart) == 0
        among = a.rank // (a.group * a.apart) * a.apart + a.rank % a.apart
        out.append(a._replace(meets=number[a.rank] * world + among) if joins else a)
        number[a.rank] += joins
    return tuple(out)


class Anchor(NamedTuple):
    """A copy of a recorded task, beside which work is added: the position of its rank, its instance, and the tasks next to it on its
    processor, () where it is the first or the last."""

    recorded: int
    task: int
    rank: int
    instance: int
    earlier: tuple[int, ...]
    later: tuple[int, ...]

    def addition(self, name: str, lane: str, times: AddedTimes, *, first: bool = False, kernels: int = 0, exchanges: int = 1) -> Addition:
        """Work behind the task, or before it."""
        after, before = (self.earlier, (self.task,)) if first else ((self.task,), self.later)
        return Addition(name, self.rank, lane, times, after, before, self.instance, kernels=kernels, exchanges=exchanges)


def anchors(placed: Placed, recorded: Iterable[int]) -> Iterator[Anchor]:
    """All copies of recorded tasks, in order."""
    following, rank = next_on_processor(placed.graph), placed.graph.position_of_task
    before = np.full(len(following), -1, np.int64)
    before[following[following >= 0]] = np.flatnonzero(following >= 0)
    for task in np.flatnonzero(np.isin(placed.source, np.array(sorted(recorded), np.int64))).tolist():
        earlier, later = (tuple(t for t in (int(of[task]),) if t >= 0) for of in (before, following))
        yield Anchor(int(placed.source[task]), task, int(rank[task]), int(placed.instance[task]), earlier, later)


def next_on_processor(graph: Graph) -> Int64:
    """For every task the next one on its processor; -1 for the last."""
    processor = graph.processor
    order = np.argsort(processor, kind="stable")
    out = np.full(len(processor), -1, np.int64)
    same = processor[order[1:]] == processor[order[:-1]]
    out[order[:-1][same]] = order[1:][same]
    return out


def longer(placed: Placed, more: Mapping[int, AddedTimes]) -> Placed:
    """The placed job in which tasks take more time, by task."""
    columns = placed.graph.duration.copy(), placed.low.copy(), placed.high.copy()
    for task, times in more.items():
        for column, ns in zip(columns, times, strict=True):
            column[task] += ns
    return replace(placed, graph=replace(placed.graph, duration=columns[0]), low=columns[1], high=columns[2])


def _steps(placed: Placed, additions: Sequence[Addition]) -> Int32:
    """The step of each addition: that of the instance after which it runs or, where that is not known, of the task that it is at."""
    owned = np.flatnonzero((placed.owners.step >= 0) & (placed.instance >= 0))
    number = max(int(placed.instance.max(initial=-1)), max(a.instance for a in additions)) + 1
    of_instance = np.full(max(number, 1), -1, np.int32)
    of_instance[placed.instance[owned]] = placed.owners.step[owned]
    steps = of_instance[[a.instance for a in additions]]
    return np.where(steps >= 0, steps, placed.owners.step[[_anchor(a) for a in additions]]).astype(np.int32)


def _anchor(a: Addition) -> int:
    """The task of the placed job whose step the addition is part of."""
    return a.after[-1] if a.after else a.before[0]


def _lane(placed: Placed, rank: int, lane: str, number: int) -> Processor:
    graph = placed.graph
    global_rank = graph.ranks[rank]
    device = next((p.device for p in graph.processors if p.rank == global_rank and p.is_stream), -1)
    on_device = any(p.rank == global_rank and p.is_stream for p in graph.processors)
    first = max(_STREAMS, *(p.stream + 1 for p in graph.processors))  # behind those of work that was added before
    return Processor(global_rank, on_device, lane, device=device if on_device else -1, stream=first + number if on_device else -1)


def _edges(placed: Placed, additions: Sequence[Addition]) -> Edges:
    """The dependencies of the placed job and of the additions."""
    graph, launch, on_device = placed.graph, placed.owners.launch, placed.graph.on_device
    edges = Edges()
    for kind in Dependency:
        same = graph.pred_kind == kind
        edges.add(graph.pred[same].astype(np.int64), list_of(graph.pred_offset)[same], kind)
    by_kind: dict[Dependency, list[tuple[int, int]]] = {}
    last: dict[tuple[int, str], int] = {}
    for task, a in enumerate(additions, len(graph)):
        device = bool(on_device[_anchor(a)])
        waiting = Dependency.STREAM_WAIT if device else Dependency.HAND_OFF
        by_kind.setdefault(waiting, []).extend((t, task) for t in a.after)
        by_kind.setdefault(waiting, []).extend((len(graph) + i, task) for i in a.follows)
        by_kind.setdefault(waiting, []).extend((task, t) for t in a.before)
        if device and launch[_anchor(a)] >= 0:
            by_kind.setdefault(Dependency.LAUNCH, []).append((int(launch[_anchor(a)]), task))
        key = a.rank, a.lane
        if key in last:
            by_kind.setdefault(Dependency.STREAM_ORDER if device else Dependency.THREAD_ORDER, []).append((last[key], task))
        last[key] = task
    for kind, pairs in by_kind.items():
        columns = np.array(pairs, np.int64).reshape(-1, 2)
        edges.add(columns[:, 0], columns[:, 1], kind)
    return edges


def that_compute(graph: Graph, tasks: Int64) -> Int64:
    """Those of the tasks that compute: on the device where the job has one."""
    return np.asarray(tasks[graph.on_device[tasks] == bool(graph.on_device.any())])


def on_busiest(graph: Graph, tasks: Int64) -> Int64:
    """Those of the tasks on the processor that has most of them, in order."""
    processor = graph.processor[tasks]
    return np.asarray(tasks[processor == np.bincount(processor, minlength=1).argmax()])


def added_work(placed: Placed, instance: int) -> Int64:
    """The tasks of an instance that compute, in order."""
    return that_compute(placed.graph, np.flatnonzero(placed.instance == instance))
