"""The operators that enclose the tasks of a drawing, so that a lane can be opened and show them nested.

A thread runs the self-time slices of its operators, which a lane draws side by side. Here each of them knows the innermost operator or
annotation that it is part of, and each of these the one around it. Where an operator begins and ends in a run follows from its tasks:
from the first start to the last end of its own and of those of the operators inside it. So nesting has no times of its own, and a
replayed or a changed run nests by the same numbers. A device's work is part of the operator that launched it, or around the call that did.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from lumos.reports.page.columns import index
from lumos.trace.table import Category

if TYPE_CHECKING:
    from collections.abc import Callable

    from lumos.graph.table import Graph
    from lumos.trace.table import Int64, Job, Trace

#: The rows that may enclose others, and those of devices, which no row of a thread encloses.
_ENCLOSING = (Category.OPERATOR, Category.ANNOTATION)
_OF_DEVICES = (Category.KERNEL, Category.MEMCPY, Category.MEMSET)


class Enclosing:
    """The operators and annotations around some tasks, numbered from 1 in the order of their starts on each thread; 0 is none."""

    def __init__(self, graph: Graph, job: Job | None, tasks: Int64) -> None:
        """tasks: the tasks of a drawing. job: the recording of the graph; without it, nothing is known to enclose a task."""
        self._graph = graph
        self._parent: list[int] = [0]
        self._text: list[str] = [""]
        self._of_task = np.zeros(len(graph), np.int64)
        tasks = np.unique(tasks)
        tasks = tasks[graph.event[tasks] >= 0]
        rank = graph.rank_of_task[tasks]
        tasks, rank = tasks[order := np.argsort(rank, kind="stable")], rank[order]
        for trace in job.traces if job else ():
            here = tasks[np.searchsorted(rank, trace.rank) : np.searchsorted(rank, trace.rank, side="right")]
            if len(here):
                self._of_task[here] = self._numbers(trace, graph.event[here].astype(np.int64))

    def of(self, tasks: Int64) -> Int64:
        """The number of the innermost operator of each task, int64[tasks]: of an operator's own time, the operator itself."""
        found: Int64 = self._of_task[tasks]
        return found

    def columns(self, number: Callable[[list[str]], Int64]) -> dict[str, Any]:
        """What encloses each operator, and its name, as columns; entry 0 is for none. number: of each of some names."""
        return {"parent": index(np.array(self._parent, np.int64)), "name": index(number(self._text))}

    def _numbers(self, trace: Trace, rows: Int64) -> Int64:
        """The number of the innermost operator of each row, int64[rows], adding those that are new."""
        on_device = np.isin(trace.category[rows], _OF_DEVICES)
        asked = np.where(on_device, Launchers(trace).of_all(rows), rows)
        unsaid = on_device & (asked < 0)
        asked[unsaid] = _calls(trace, rows[unsaid])
        known = asked >= 0
        parent = _parents(trace, asked[known])
        encloses = trace.is_any(*_ENCLOSING)
        innermost = np.full(len(rows), -1, np.int64)
        innermost[known] = np.where(encloses[asked[known]], asked[known], parent[asked[known]])
        used = level = np.unique(innermost[innermost >= 0])
        while len(level := np.setdiff1d(parent[level], [-1])):
            used = np.union1d(used, level)
        used = used[np.lexsort((-trace.duration[used], trace.start[used], trace.lane[used]))]
        number = np.zeros(len(trace) + 1, np.int64)  # the last entry is that of row -1, none
        number[used] = len(self._parent) + np.arange(len(used))
        self._parent += number[parent[used]].tolist()
        self._text += [str(trace.strings[name]) for name in trace.name[used].tolist()]
        found: Int64 = number[innermost]
        return found


class Launchers:
    """The operators that launched the device work of a trace."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        operators = np.flatnonzero((trace.category == Category.OPERATOR) & (trace.external_id >= 0))
        order = np.argsort(trace.external_id[operators], kind="stable")
        self._operators = operators[order]
        self._ids = trace.external_id[operators][order]

    def of(self, row: int) -> int:
        """The operator that launched the work of a device row, -1 for other rows and where it is not known."""
        return int(self.of_all(np.array([row]))[0])

    def of_all(self, rows: Int64) -> Int64:
        """The same for many rows, int64[rows]."""
        if not len(self._ids):
            return np.full(len(rows), -1, np.int64)
        wanted = self._trace.external_id[rows]
        at = np.minimum(np.searchsorted(self._ids, wanted), len(self._ids) - 1)
        known = (wanted >= 0) & (self._ids[at] == wanted) & np.isin(self._trace.category[rows], _OF_DEVICES)
        return np.where(known, self._operators[at], -1)


def _calls(trace: Trace, rows: Int64) -> Int64:
    """The runtime call that launched each device row, by their correlation, int64[rows]; -1 where there is none."""
    calls = np.flatnonzero(trace.is_any(Category.RUNTIME) & (trace.correlation >= 0))
    if not len(calls):
        return np.full(len(rows), -1, np.int64)
    calls = calls[np.argsort(trace.correlation[calls], kind="stable")]
    at = np.minimum(np.searchsorted(trace.correlation[calls], trace.correlation[rows]), len(calls) - 1)
    return np.where(trace.correlation[calls[at]] == trace.correlation[rows], calls[at], -1)


def _parents(trace: Trace, rows: Int64) -> Int64:
    """The innermost row around each of the given rows and around those that enclose them, int64[rows of the trace]; -1 where there is
    none, and for rows that were not asked for."""
    out = np.full(len(trace), -1, np.int64)
    if not len(rows):
        return out
    first, last = int(trace.start[rows].min()), int((trace.start[rows] + trace.duration[rows]).max())
    wanted = trace.is_any(*_ENCLOSING) & (trace.start < last) & (trace.start + trace.duration > first)
    wanted[rows] = True
    found = np.flatnonzero(wanted)
    order = np.lexsort((-trace.duration[found], trace.start[found], trace.lane[found]))
    found = found[order]
    columns = (found, trace.lane[found], trace.start[found], trace.start[found] + trace.duration[found], trace.is_any(*_ENCLOSING)[found])
    open_rows: list[tuple[int, int]] = []
    lane_before = -1
    for row, lane, start, end, may_enclose in zip(*(c.tolist() for c in columns), strict=True):
        if lane != lane_before:
            open_rows, lane_before = [], lane
        while open_rows and open_rows[-1][1] < end:
            open_rows.pop()
        if open_rows and open_rows[-1][1] > start:
            out[row] = open_rows[-1][0]
        if may_enclose:
            open_rows.append((row, end))
    return out
