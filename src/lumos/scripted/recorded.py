"""What a recording says that each of its operators cost, step by step: prices without the waiting that a replay resolves.

The times are those of the tasks of the recording's graph, in which waits are dependencies and what remains is work. A task belongs to the
operator around it, and what the device did to the operator that launched it. A pause between operators belongs to the operator after it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.analyze.attribution import innermost, operators
from lumos.graph.lists import grouped
from lumos.graph.steps import steps
from lumos.graph.table import DEVICE_KINDS, Kind
from lumos.scripted.script import AWAITING, Slot
from lumos.segment.dimensions import shapes_of
from lumos.trace.nesting import callers
from lumos.trace.table import Category
from lumos.vocabulary import CollectiveKind, DType

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from lumos.analyze.loop.steps import Members
    from lumos.segment.dimensions import Shapes
    from lumos.trace.table import Int32, Int64, Job, Trace

#: A tensor that an operator was given: its shape and the name of the type of its elements.
GivenTensor = tuple[tuple[int, ...], str]


class RecordedCall(NamedTuple):
    """One call: its name, the tensors it was given, the position of the operator around it on its thread (-1), its row in the trace."""

    name: str
    given: tuple[GivenTensor, ...]
    parent: int
    row: int


class RecordedExchange(NamedTuple):
    """One collective or message: its kind, the bytes of this rank's input, and its time without waiting, ns. whole: no peer is missing, so
    that it holds no waiting."""

    kind: CollectiveKind
    nbytes: int
    ns: float
    whole: bool


@dataclass(frozen=True, eq=False)
class RecordedStep:
    """A step of a rank. threads: its operators, those of the marked thread first. cost: by row of the trace, ns by `Slot`."""

    threads: list[list[RecordedCall]]
    exchanges: list[RecordedExchange]
    cost: dict[int, list[float]]


class RecordedCosts:
    """The counted steps of a job, at most so many, by rank. calls: what a call of the runtime takes the host on average, by its name, ns.
    row: by task of the graph, int64, the row of the operator that it belongs to; -1 without. torch: its version, "" where the files do not
    say."""

    def __init__(self, job: Job, owners: Members, most: int) -> None:
        self.owners, self.graph = owners, owners.graph
        self.names = [owners.job[i].name for i in _whole_loop(owners)][:most]
        self.of_task = operators(job, owners)
        awaiting = self.graph.named(AWAITING.__contains__)
        self.awaiting = awaiting & ~owners.on_device
        self.calls = self._calls()
        self.row = np.full(len(self.graph), -1, np.int64)
        self._traces = job.traces
        self.torch = next((str(t.metadata["lumos_collect"].get("torch")) for t in job.traces if "lumos_collect" in t.metadata), "")

    def ranks(self) -> Iterator[tuple[int, list[RecordedStep]]]:
        """The ranks and their steps, one after the other: what all of a large job did does not fit into memory. `row` is whole after it."""
        for position, trace in enumerate(self._traces):
            yield trace.rank, self._rank(trace, position)

    def _calls(self) -> dict[str, float]:
        graph = self.graph
        chosen = np.flatnonzero(self.awaiting & (graph.kind != Kind.RETURN))
        count = np.bincount(graph.name[chosen], minlength=len(graph.names))
        spent = np.bincount(graph.name[chosen], graph.duration[chosen], minlength=len(graph.names))
        return {graph.names[i]: float(spent[i] / count[i]) for i in np.flatnonzero(count).tolist()}

    def _rank(self, trace: Trace, position: int) -> list[RecordedStep]:
        owners = self.owners
        rows = np.flatnonzero(trace.category == Category.OPERATOR)
        rows = rows[np.lexsort((-trace.duration[rows], trace.start[rows], trace.lane[rows]))]
        marks = steps(trace)
        begins = np.array([mark.start for mark in marks], np.int64)
        step_of_row = np.searchsorted(begins, trace.start[rows], "right") - 1
        cost = self._cost(trace, position, rows)
        given = _given(shapes_of(trace))
        number = {mark.name: i for i, mark in enumerate(marks)}
        index = {step.name: i for i, step in enumerate(owners.steps) if step.rank == trace.rank}
        out = []
        for name in self.names:
            at = number.get(name, 0)
            own = rows[step_of_row == at] if len(marks) > 1 else rows
            threads = _threads(trace, own, given, marks[at].lane)
            out.append(RecordedStep(threads, self._exchanges(owners.tasks(index[name])), cost))
        return out

    def _cost(self, trace: Trace, position: int, rows: Int64) -> dict[int, list[float]]:
        """What each row of operators cost, over the tasks of the steps that count."""
        graph, owners = self.graph, self.owners
        tasks = owners.of_rank(position)
        tasks = tasks[owners.step[tasks] >= 0]
        out: dict[int, list[float]] = {}
        row, kind = self.of_task[tasks].copy(), graph.kind[tasks]
        calls = np.flatnonzero((kind != Kind.OPERATOR) & ~owners.on_device[tasks] & (graph.event[tasks] >= 0) & (kind != Kind.COLLECTIVE))
        row[calls] = innermost(trace, rows, graph.event[tasks[calls]].astype(np.int64))
        following = _following(graph.processor[tasks], row)
        self.row[tasks] = np.where(row >= 0, row, following)
        for task, at, after, what in zip(tasks.tolist(), row.tolist(), following.tolist(), kind.tolist(), strict=True):
            ns = float(graph.duration[task])
            if not ns or self.awaiting[task] or what == Kind.COLLECTIVE:
                continue
            slot = Slot.OWN
            if what in DEVICE_KINDS:
                slot = Slot.DEVICE
            elif at < 0:
                slot, at = Slot.BEFORE, after
            elif what == Kind.LAUNCH:
                slot = Slot.CALLS
            if at >= 0:
                out.setdefault(at, [0.0] * Slot.EXCHANGE)[slot] += ns
        return out

    def _exchanges(self, tasks: Int64) -> list[RecordedExchange]:
        facts, graph = self.graph.collectives, self.graph
        if facts is None:
            return []
        place = {task: i for i, task in enumerate(facts.task.tolist())}
        unknown = set(graph.waiting_unknown.tolist())
        out = []
        for task in tasks[graph.kind[tasks] == Kind.COLLECTIVE].tolist():
            i = place.get(task)
            kind, nbytes = (CollectiveKind.UNKNOWN, 0) if i is None else (facts.kinds[facts.kind[i]], int(facts.nbytes[i]))
            out.append(RecordedExchange(kind, nbytes, float(graph.duration[task]), task not in unknown))
        return out


def _whole_loop(owners: Members) -> list[int]:
    """The positions of the job's steps that count, and of the one before the first."""
    counted = owners.counted
    first = owners.job[counted[0]].previous if counted else -1
    return [*([first] if first >= 0 else []), *counted]


def _following(processor: Int32, row: Int64) -> Int64:
    """For each task, in their order, the row of the next task of its processor that has one; -1 without."""
    out = np.full(len(row), -1, np.int64)
    by_processor = grouped(np.unique(processor, return_inverse=True)[1], len(np.unique(processor)))
    for low, high in zip(by_processor.offset[:-1].tolist(), by_processor.offset[1:].tolist(), strict=True):
        own = by_processor.flat[low:high]
        has = np.flatnonzero(row[own] >= 0)
        at = np.searchsorted(has, np.arange(len(own)))
        found = at < len(has)
        out[own[found]] = row[own[has[at[found]]]]
    return out


def _threads(trace: Trace, rows: Int64, given: Sequence[tuple[GivenTensor, ...]], marked: int) -> list[list[RecordedCall]]:
    """The operators of each thread in order, those of the marked thread first, then of those with the most. given: by row."""
    lanes, count = np.unique(trace.lane[rows], return_counts=True)
    order = sorted(zip(lanes.tolist(), count.tolist(), strict=True), key=lambda each: (each[0] != marked, -each[1]))
    return [_thread(trace, rows[trace.lane[rows] == lane], given) for lane, _ in order]


def _thread(trace: Trace, rows: Int64, given: Sequence[tuple[GivenTensor, ...]]) -> list[RecordedCall]:
    return [
        RecordedCall(trace.strings[name], given[row], caller, row)
        for row, name, caller in zip(rows.tolist(), trace.name[rows].tolist(), callers(trace, rows).tolist(), strict=True)
    ]


def _given(shapes: Shapes) -> list[tuple[GivenTensor, ...]]:
    """What the operator of each row of a trace was given; nothing where it is not known."""
    known = [
        tuple((shape, type_name(kind)) for shape, kind in zip(each.shapes, each.dtypes, strict=True) if shape)
        for each in shapes.operators
    ]
    known.append(())
    return [known[i] for i in shapes.of_row.tolist()]


@cache
def type_name(name: str) -> str:
    """The name of a type of elements, one for each; "" where it is not known."""
    known = DType.parse(name)
    return "" if known is None else known.torch_name
