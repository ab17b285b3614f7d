"""What a recording says that each of its operators cost, step by step: prices without the waiting that a replay resolves.

The times are those of the tasks of the recording's graph, in which waits are dependencies and what remains is work. A task belongs to the
operator around it, and what the device did to the operator that launched it. A pause between operators belongs to the operator after it.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.analyze.task_class import operators
from lumos.graph.lists import grouped, numbered
from lumos.graph.places import innermost, steps
from lumos.graph.table import DEVICE_KINDS, Kind
from lumos.scripted.script import AWAITING, GivenTensor, Slot, type_name
from lumos.segment.program import shapes_of
from lumos.trace.nesting import callers
from lumos.trace.table import Category, unique
from lumos.vocabulary import CollectiveKind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lumos.analyze.loop.steps import Members
    from lumos.cost.estimate import Float64
    from lumos.segment.program import Shapes
    from lumos.trace.table import Int32, Int64, Job, Trace


class KindOfCall(NamedTuple):
    """What calls that are alike have in common: the name, and the tensors that they were given."""

    name: str
    given: tuple[GivenTensor, ...]


class RecordedThread(NamedTuple):
    """The calls of one thread in a step, in order, int64 each. row: in the trace. kind: its number in `RecordedCosts.kinds`. parent: the
    position here of the operator around it, -1 without."""

    row: Int64
    kind: Int64
    parent: Int64


class RecordedExchange(NamedTuple):
    """One collective or message. key: its kind, and the bytes of this rank's input. ns: its time without waiting. whole: no peer is
    missing, so that it holds no waiting."""

    key: tuple[CollectiveKind, int]
    ns: float
    whole: bool


class RecordedStep(NamedTuple):
    """A step of a rank. threads: its operators, those of the marked thread first."""

    threads: list[RecordedThread]
    exchanges: list[RecordedExchange]


class RecordedRank(NamedTuple):
    """What a rank did. cost: float64[slots but that of exchanges, rows of its trace], ns."""

    rank: int
    steps: list[RecordedStep]
    cost: Float64


class RecordedCosts:
    """The counted steps of a job, at most so many, by rank. kinds: of all calls that were met so far, numbered. calls: what a call of the
    runtime takes the host on average, by its name, ns. row: by task of the graph, int64, the row of the operator that it belongs to; -1
    without. torch: its version, "" where the files do not say."""

    def __init__(self, job: Job, owners: Members, most: int) -> None:
        self.owners, self.graph = owners, owners.graph
        self.names = [owners.job[i].name for i in _whole_loop(owners)][:most]
        self.of_task = operators(job, owners)
        awaiting = self.graph.named(AWAITING.__contains__)
        self.awaiting = awaiting & ~owners.on_device
        self.calls = self._calls()
        self.row = np.full(len(self.graph), -1, np.int64)
        self.kinds: dict[KindOfCall, int] = {}
        self._traces = job.traces
        self.torch = next((str(t.metadata["lumos_collect"].get("torch")) for t in job.traces if "lumos_collect" in t.metadata), "")

    def ranks(self) -> Iterator[RecordedRank]:
        """The ranks, one after the other: what all of a large job did does not fit into memory. `row` is whole after it."""
        for position, trace in enumerate(self._traces):
            yield self._rank(trace, position)

    def _calls(self) -> dict[str, float]:
        graph = self.graph
        chosen = np.flatnonzero(self.awaiting & (graph.kind != Kind.RETURN))
        count = np.bincount(graph.name[chosen], minlength=len(graph.names))
        spent = np.bincount(graph.name[chosen], graph.duration[chosen], minlength=len(graph.names))
        return {graph.names[i]: float(spent[i] / count[i]) for i in np.flatnonzero(count).tolist()}

    def _rank(self, trace: Trace, position: int) -> RecordedRank:
        owners = self.owners
        rows = np.flatnonzero(trace.category == Category.OPERATOR)
        rows = rows[np.lexsort((-trace.duration[rows], trace.start[rows], trace.lane[rows]))]
        marks = steps(trace)
        begins = np.array([mark.start for mark in marks], np.int64)
        step_of_row = np.searchsorted(begins, trace.start[rows], "right") - 1
        kinds = self._kinds(trace, rows)
        number = {mark.name: i for i, mark in enumerate(marks)}
        index = {step.name: i for i, step in enumerate(owners.steps) if step.rank == trace.rank}
        out = []
        for name in self.names:
            at = number.get(name, 0)
            own = step_of_row == at if len(marks) > 1 else np.ones(len(rows), bool)
            threads = _threads(trace, rows[own], kinds[own], marks[at].lane)
            out.append(RecordedStep(threads, self._exchanges(owners.tasks(index[name]))))
        return RecordedRank(trace.rank, out, self._cost(trace, position, rows))

    def _kinds(self, trace: Trace, rows: Int64) -> Int64:
        """The number of the kind of each row."""
        shapes = shapes_of(trace)
        given = _given(shapes)
        alike, first, of = np.unique(numbered(trace.name[rows], shapes.of_row[rows]), return_index=True, return_inverse=True)
        pairs = zip(trace.name[rows[first]].tolist(), shapes.of_row[rows[first]].tolist(), strict=True)
        numbers = [self.kinds.setdefault(KindOfCall(trace.strings[name], given[shape]), len(self.kinds)) for name, shape in pairs]
        return np.array(numbers, np.int64)[of] if len(alike) else of

    def _cost(self, trace: Trace, position: int, rows: Int64) -> Float64:
        """What each row of operators cost, over the tasks of the steps that count."""
        graph, owners = self.graph, self.owners
        tasks = owners.of_rank(position)
        tasks = tasks[owners.step[tasks] >= 0]
        row, kind = self.of_task[tasks].copy(), graph.kind[tasks]
        calls = np.flatnonzero((kind != Kind.OPERATOR) & ~owners.on_device[tasks] & (graph.event[tasks] >= 0) & (kind != Kind.COLLECTIVE))
        row[calls] = innermost(trace, rows, graph.event[tasks[calls]].astype(np.int64))
        following = _following(graph.processor[tasks], row)
        self.row[tasks] = np.where(row >= 0, row, following)
        on_device = np.isin(kind, list(DEVICE_KINDS))
        slot = np.where(on_device, Slot.DEVICE, np.where(row < 0, Slot.BEFORE, np.where(kind == Kind.LAUNCH, Slot.CALLS, Slot.OWN)))
        at = np.where(on_device, row, self.row[tasks])
        counts = (at >= 0) & ~self.awaiting[tasks] & (kind != Kind.COLLECTIVE)
        out = np.zeros((Slot.EXCHANGE, len(trace)))
        np.add.at(out, (slot[counts], at[counts]), graph.duration[tasks[counts]])
        return out

    @cached_property
    def _fact_of(self) -> dict[int, int]:
        """By task of an exchange its place among the graph's collectives."""
        return {} if self.graph.collectives is None else {task: i for i, task in enumerate(self.graph.collectives.task.tolist())}

    def _exchanges(self, tasks: Int64) -> list[RecordedExchange]:
        facts, graph = self.graph.collectives, self.graph
        if facts is None:
            return []
        exchanges = tasks[graph.kind[tasks] == Kind.COLLECTIVE]
        whole = ~np.isin(exchanges, graph.waiting_unknown)
        out = []
        for task, complete in zip(exchanges.tolist(), whole.tolist(), strict=True):
            i = self._fact_of.get(task)
            key = (CollectiveKind.UNKNOWN, 0) if i is None else (facts.kinds[facts.kind[i]], int(facts.nbytes[i]))
            out.append(RecordedExchange(key, float(graph.duration[task]), complete))
        return out


def _whole_loop(owners: Members) -> list[int]:
    """The positions of the job's steps that count, and of the one before the first."""
    counted = owners.counted
    first = owners.job[counted[0]].previous if counted else -1
    return [*([first] if first >= 0 else []), *counted]


def _following(processor: Int32, row: Int64) -> Int64:
    """For each task, in their order, the row of the next task of its processor that has one; -1 without."""
    out = np.full(len(row), -1, np.int64)
    by_processor = grouped(np.unique(processor, return_inverse=True)[1], len(unique(processor)))
    for low, high in zip(by_processor.offset[:-1].tolist(), by_processor.offset[1:].tolist(), strict=True):
        own = by_processor.flat[low:high]
        has = np.flatnonzero(row[own] >= 0)
        at = np.searchsorted(has, np.arange(len(own)))
        followed = at < len(has)
        out[own[followed]] = row[own[has[at[followed]]]]
    return out


def _threads(trace: Trace, rows: Int64, kinds: Int64, marked: int) -> list[RecordedThread]:
    """The operators of each thread in order, those of the marked thread first, then of those with the most. kinds: by row."""
    lanes, count = np.unique(trace.lane[rows], return_counts=True)
    order = sorted(zip(lanes.tolist(), count.tolist(), strict=True), key=lambda pair: (pair[0] != marked, -pair[1]))
    own = [np.flatnonzero(trace.lane[rows] == lane) for lane, _ in order]
    return [RecordedThread(rows[positions], kinds[positions], callers(trace, rows[positions])) for positions in own]


def _given(shapes: Shapes) -> list[tuple[GivenTensor, ...]]:
    """What each of the distinct operators of a trace was given; last, nothing, where that is not known."""
    known = [
        tuple((shape, type_name(kind)) for shape, kind in zip(operator.shapes, operator.dtypes, strict=True) if shape)
        for operator in shapes.operators
    ]
    return [*known, ()]
