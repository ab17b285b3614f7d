"""What a recording says of single tasks beyond their times: shapes, types, bytes, launch geometry, and the operator that launched them.

A fact is one line of text, and the same line is stored once: a job repeats the same few shapes in every step. Facts are "key: value".
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from lumos.cost.operators import launched_by
from lumos.graph.joined.arguments import text
from lumos.graph.lists import numbered
from lumos.result import cut
from lumos.trace.table import ABSENT, Category, unique

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lumos.graph.table import Graph
    from lumos.trace.table import Int64, Job, Trace

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
