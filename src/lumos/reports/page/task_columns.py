"""What a drawing knows of its tasks beyond their times, in the columns that the browser reads.

Facts are what the recording says: shapes, types, bytes, launch geometry, and the operator that launched them. A fact is one line of text,
"key: value", and the same line is stored once: a job repeats the same few shapes in every step.

Links are what a task waited for: the dependencies of the frozen graph (`simulation.freeze`), so that waits which are known only while
simulating are there too. Left out are the orders of threads and streams, which the lanes show themselves. The return of a blocking call
takes no time and is not drawn: what it waited for counts for the task behind it.

Enclosing operators let a lane be opened and show them nested. A thread runs the self-time slices of its operators, which a lane draws side
by side; each of them knows the innermost operator or annotation that it is part of, and each of these the one around it. Where an operator
begins and ends in a run follows from its tasks: from the first start to the last end of its own and of those of the operators inside it.
So nesting has no times of its own, and a replayed or a changed run nests by the same numbers. A device's work is part of the operator that
launched it, or around the call that did.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from lumos.analyze.collectives import waiting
from lumos.cost.operators import launched_by
from lumos.graph.joined.messages import text
from lumos.graph.lists import numbered, offsets, places
from lumos.graph.table import Dependency, Kind
from lumos.reports.page.html import column, differences
from lumos.result import cut
from lumos.trace.nesting import parents
from lumos.trace.table import ABSENT, Category, unique

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lumos.graph.table import Graph
    from lumos.simulation.freeze import Frozen
    from lumos.simulation.timeline import Timeline
    from lumos.trace.table import Int8, Int64, Job, Trace

#: What rows say that a reader of a timeline wants, and how it is called.
_KEYS = {
    "Input Dims": "shapes",
    "Input type": "types",
    "In msg nelems": "elements in",
    "Out msg nelems": "elements out",
    "dtype": "type",
    "Process Group Description": "group",
    "Process Group Name": "group name",
    "Seq": "sequence number",
    "bytes": "bytes",
    "grid": "grid",
    "block": "block",
    "registers per thread": "registers a thread",
    "shared memory": "shared memory, bytes",
}
#: What is listed of the operator that launched a kernel.
_OPERATOR_KEYS = ("Input Dims", "Input type")
#: At most so many characters of a value.
_MOST_TEXT = 300


class TaskFacts:
    """The lines of facts in use, numbered from 1 in the order in which they are first used; 0 is a task without any."""

    def __init__(self, graph: Graph, job: Job | None) -> None:
        self._number: dict[tuple[str, ...], int] = {(): 0}
        self._graph = graph
        self._traces = {} if job is None else {trace.rank: trace for trace in job.traces}
        self._of_task = np.full(len(graph), -1, np.int64)

    @property
    def used(self) -> list[tuple[str, ...]]:
        """The lines of facts by their number; that of number 0 is empty."""
        return list(self._number)

    def of(self, tasks: Int64) -> Int64:
        """The number of the facts of each task, int64[tasks]."""
        new = unique(tasks[self._of_task[tasks] < 0])
        self._of_task[new] = 0
        new = new[self._graph.event[new] >= 0]
        ranks = self._graph.rank_of_task[new]
        for rank in unique(ranks).tolist():
            if rank in self._traces:
                here = new[ranks == rank]
                self._of_task[here] = self._numbers(self._traces[rank], self._graph.event[here].astype(np.int64))
        texts: Int64 = self._of_task[tasks]
        return texts

    def _numbers(self, trace: Trace, rows: Int64) -> Int64:
        """The number of the facts of each row, int64[rows]. Of rows that say the same, as in every layer, one is read."""
        operator = launched_by(trace, rows, np.flatnonzero(trace.category == Category.OPERATOR))
        by_operator = [trace.name.astype(np.int64), *(trace.dense(key) for key in _OPERATOR_KEYS)]
        of_operator = [np.where(operator >= 0, values[operator], ABSENT) for values in by_operator]
        equal = numbered(*(trace.dense(key)[rows] for key in _KEYS if key in trace.args), *of_operator)
        _, first = np.unique(equal, return_index=True)
        facts = [tuple(_facts(trace, row, by)) for row, by in zip(rows[first].tolist(), operator[first].tolist(), strict=True)]
        return np.array([self._number.setdefault(one, len(self._number)) for one in facts], np.int64)[equal]


def _facts(trace: Trace, row: int, operator: int) -> Iterator[str]:
    """The facts of one row, in the order in which they are shown. operator: the row of the one that launched it, -1 for none."""
    for key, name in _KEYS.items():
        value = text(trace, row, key)
        if value not in (None, "", "[]"):
            yield f"{name}: {_cut(value)}"
    if operator >= 0:
        yield f"operator: {_cut(trace.strings[trace.name[operator]])}"
        for key in _OPERATOR_KEYS:
            value = text(trace, operator, key)
            if value not in (None, "", "[]"):
                yield f"{_KEYS[key]} of the operator: {_cut(value)}"


def _cut(value: str | None) -> str:
    return cut((value or "").encode("utf-8", "replace").decode(), _MOST_TEXT)


#: The orders that a lane shows by itself.
_ORDERS = (Dependency.THREAD_ORDER, Dependency.STREAM_ORDER)
#: How many returns may follow each other between two tasks that are drawn.
_MOST_RETURNS = 3


class TaskLinks(NamedTuple):
    """One dependency an entry, int64[m] or uint8[m]: piece `after` of a drawing waited for piece `before`, and by which `Dependency`."""

    after: Int64
    before: Int64
    kind: Int8


def task_links(timeline: Timeline, frozen: Frozen, task: Int64) -> TaskLinks:
    """The dependencies between the pieces of a drawing, by `after`.

    task: int64[p], the task of each piece. Of a task in two pieces, waiting and transfer, the later piece waits and is waited for. What
    waited for a task that is not drawn has no entry.
    """
    graph = timeline.graph
    piece = np.full(len(graph), -1, np.int64)
    piece[task] = np.arange(len(task))
    shown = np.flatnonzero(piece >= 0)
    after, before, kind = _predecessors(frozen, shown)
    for _ in range(_MOST_RETURNS):
        hidden = (piece[before] < 0) & (graph.kind[before] == Kind.RETURN)
        if not hidden.any():
            break
        through, source, how = _predecessors(frozen, before[hidden])
        back = after[hidden][through]
        after, before, kind = (np.concatenate((a[~hidden], b)) for a, b in ((after, back), (before, source), (kind, how)))
    last = waiting(timeline).last[shown]
    met = np.flatnonzero(last != shown)
    after, before = np.concatenate((after, met)), np.concatenate((before, last[met]))
    kind = np.concatenate((kind, np.full(len(met), Dependency.RENDEZVOUS, np.uint8)))
    after, before = piece[shown[after]], piece[before]
    keep = (before >= 0) & (before != after) & ~np.isin(kind, _ORDERS)
    after, before, kind = after[keep], before[keep], kind[keep]
    first = np.unique(numbered(after, before, kind), return_index=True)[1]
    return TaskLinks(after[first], before[first], kind[first])


def _predecessors(frozen: Frozen, tasks: Int64) -> tuple[Int64, Int64, Int8]:
    """Of every dependency of the tasks: which of them it belongs to (its position in `tasks`), the task that it waits for, the kind."""
    edges = frozen.edges
    position = np.empty(len(frozen), np.int64)
    position[edges.order] = np.arange(len(frozen))
    first = edges.pred_offset[position[tasks]]
    size = edges.pred_offset[position[tasks] + 1] - first
    flat = places(first, size)
    return np.repeat(np.arange(len(tasks)), size), edges.pred[flat].astype(np.int64), edges.pred_kind[flat]


def link_columns(links: TaskLinks, pieces: int) -> dict[str, Any]:
    """The links as columns: list i of `offset` holds what piece i waited for, as how many pieces before i these are."""
    offset = differences(offsets(np.bincount(links.after, minlength=pieces)))
    return {"offset": offset, "back": column(links.after - links.before), "kind": column(links.kind)}


#: What a dependency is called in the browser, by its number.
LINK_WORDS = tuple(kind.word for kind in Dependency)


#: The rows that may enclose others.
_ENCLOSING = (Category.OPERATOR, Category.ANNOTATION)


class Enclosing:
    """The operators and annotations around some tasks, numbered from 1 in the order of their starts on each thread; 0 is none."""

    def __init__(self, graph: Graph, job: Job | None, tasks: Int64) -> None:
        """tasks: the tasks of a drawing. job: the recording of the graph; without it, nothing is known to enclose a task."""
        self._graph = graph
        self._parent: list[int] = [0]
        self._text: list[str] = [""]
        self._of_task = np.zeros(len(graph), np.int64)
        tasks = unique(tasks)
        tasks = tasks[graph.event[tasks] >= 0]
        rank = graph.rank_of_task[tasks]
        tasks, rank = tasks[order := np.argsort(rank, kind="stable")], rank[order]
        for trace in job.traces if job else ():
            here = tasks[np.searchsorted(rank, trace.rank) : np.searchsorted(rank, trace.rank, side="right")]
            if len(here):
                self._of_task[here] = self._numbers(trace, graph.event[here].astype(np.int64))

    def of(self, tasks: Int64) -> Int64:
        """The number of the innermost operator of each task, int64[tasks]: of an operator's own time, the operator itself."""
        innermost: Int64 = self._of_task[tasks]
        return innermost

    def columns(self, number: Callable[[list[str]], Int64]) -> dict[str, Any]:
        """What encloses each operator, and its name, as columns; entry 0 is for none. number: of each of some names."""
        return {"parent": differences(np.array(self._parent, np.int64)), "name": column(number(self._text))}

    def _numbers(self, trace: Trace, rows: Int64) -> Int64:
        """The number of the innermost operator of each row, int64[rows], adding those that are new."""
        encloses = trace.is_any(*_ENCLOSING)
        within = unique(np.flatnonzero(encloses), rows)
        parent = parents(trace, within, encloses[within])
        innermost = launched_by(trace, rows, np.flatnonzero(encloses))
        innermost = np.where(innermost >= 0, innermost, np.where(encloses[rows], rows, parent[rows]))
        used = level = unique(innermost[innermost >= 0])
        while len(level := unique(parent[level][parent[level] >= 0])):
            used = unique(used, level)
        used = used[np.lexsort((-trace.duration[used], trace.start[used], trace.lane[used]))]
        number = np.zeros(len(trace) + 1, np.int64)  # the last entry is that of row -1, none
        number[used] = len(self._parent) + np.arange(len(used))
        self._parent += number[parent[used]].tolist()
        self._text += [str(trace.strings[name]) for name in trace.name[used].tolist()]
        numbers: Int64 = number[innermost]
        return numbers
