"""What a recording says of single tasks beyond their times: shapes, types, bytes, launch geometry, and the operators around them.

A fact is one line of text, and the same line is stored once: a job repeats the same few shapes in every step. Facts are "key: value",
and the operators around a task are those that were open on its thread when it began, the outermost first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from lumos.graph.joined.arguments import text
from lumos.trace.table import Category

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
#: The rows that may enclose a task.
_ENCLOSING = (Category.OPERATOR, Category.ANNOTATION)
#: At most so many operators around a task are listed, the innermost, and so many characters of a value.
_MOST_AROUND, _MOST_TEXT = 12, 300


class TaskFacts:
    """The lines of facts in use, numbered from 1 in the order in which they are first used; 0 is a task without any."""

    def __init__(self, graph: Graph, job: Job | None) -> None:
        self._graph = graph
        self._traces = {} if job is None else {trace.rank: trace for trace in job.traces}
        self._number: dict[tuple[str, ...], int] = {(): 0}
        self._known: dict[int, int] = {}

    @property
    def used(self) -> list[tuple[str, ...]]:
        return list(self._number)

    def of(self, tasks: Int64) -> Int64:
        """The number of the facts of each task, int64[tasks]."""
        new = np.array([task for task in np.unique(tasks).tolist() if task not in self._known], np.int64)
        ranks = self._graph.rank_of_task[new]
        for rank in np.unique(ranks).tolist():
            here = new[ranks == rank]
            trace = self._traces.get(rank)
            rows = self._graph.event[here]
            if trace is None:
                self._known.update(dict.fromkeys(here.tolist(), 0))
                continue
            around = _Around(trace, rows[rows >= 0])
            for task, row in zip(here.tolist(), rows.tolist(), strict=True):
                facts = () if row < 0 else tuple(_facts(trace, row, around))
                self._known[task] = self._number.setdefault(facts, len(self._number))
        return np.array([self._known[task] for task in tasks.tolist()], np.int64)


def _facts(trace: Trace, row: int, around: _Around) -> Iterator[str]:
    """The facts of one row, in the order in which they are shown."""
    for key, name in _KEYS.items():
        value = text(trace, row, key)
        if value not in (None, "", "[]"):
            yield f"{name}: {_cut(value)}"
    operator = around.operator_of(row)
    if operator >= 0:
        yield f"operator: {_cut(trace.strings[trace.name[operator]])}"
        for key in _OPERATOR_KEYS:
            value = text(trace, operator, key)
            if value not in (None, "", "[]"):
                yield f"{_KEYS[key]} of the operator: {_cut(value)}"
    inside = around.of(row)
    if inside:
        yield f"inside: {' › '.join(_cut(trace.strings[trace.name[i]]) for i in inside)}"


def _cut(value: str | None) -> str:
    plain = (value or "").encode("utf-8", "replace").decode()
    return plain if len(plain) <= _MOST_TEXT else f"{plain[: _MOST_TEXT - 1]}…"


class _Around:
    """The operators that enclose some rows of a trace, and the operator that launched a row of a device."""

    def __init__(self, trace: Trace, rows: Int64) -> None:
        self._trace = trace
        self._parent = _parents(trace, rows)
        operators = np.flatnonzero((trace.category == Category.OPERATOR) & (trace.external_id >= 0))
        order = np.argsort(trace.external_id[operators], kind="stable")
        self._operators = operators[order]
        self._ids = trace.external_id[operators][order]

    def of(self, row: int) -> list[int]:
        """The rows that enclose a row of a thread, the outermost first, itself left out."""
        out: list[int] = []
        while (row := self._parent.get(row, -1)) >= 0 and len(out) < _MOST_AROUND:
            out.append(row)
        return out[::-1]

    def operator_of(self, row: int) -> int:
        """The operator that launched the work of a device row, -1 for other rows and where it is not known."""
        found = int(self._trace.external_id[row])
        if found < 0 or self._trace.category[row] not in (Category.KERNEL, Category.MEMCPY, Category.MEMSET):
            return -1
        at = int(np.searchsorted(self._ids, found))
        return int(self._operators[at]) if at < len(self._ids) and self._ids[at] == found else -1


def _parents(trace: Trace, rows: Int64) -> dict[int, int]:
    """The innermost enclosing row of the given rows and of those that enclose them, where there is one."""
    if not len(rows):
        return {}
    first, last = int(trace.start[rows].min()), int((trace.start[rows] + trace.duration[rows]).max())
    wanted = trace.is_any(*_ENCLOSING) & (trace.start < last) & (trace.start + trace.duration > first)
    wanted[rows] = True
    wanted &= ~trace.is_any(Category.KERNEL, Category.MEMCPY, Category.MEMSET)
    found = np.flatnonzero(wanted)
    encloses = trace.is_any(*_ENCLOSING)[found]
    order = np.lexsort((-trace.duration[found], trace.start[found], trace.lane[found]))
    found, encloses = found[order], encloses[order]
    columns = (found, trace.lane[found], trace.start[found], trace.start[found] + trace.duration[found], encloses)
    out: dict[int, int] = {}
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
