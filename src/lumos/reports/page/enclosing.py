"""The operators that enclose the tasks of a drawing, so that a lane can be opened and show them nested.

A thread runs the self-time slices of its operators, which a lane draws side by side. Here each of them knows the innermost operator or
annotation that it is part of, and each of these the one around it. Where an operator begins and ends in a run follows from its tasks:
from the first start to the last end of its own and of those of the operators inside it. So nesting has no times of its own, and a
replayed or a changed run nests by the same numbers. A device's work is part of the operator that launched it, or around the call that did.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from lumos.cost.operators import launched_by
from lumos.reports.page.html import column, differences
from lumos.trace.nesting import parents
from lumos.trace.table import Category, unique

if TYPE_CHECKING:
    from collections.abc import Callable

    from lumos.graph.table import Graph
    from lumos.trace.table import Int64, Job, Trace

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
