"""The work of a rank by its operators: which tasks take the time of which of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.analyze.attribution import innermost
from lumos.graph.lists import equal_rows
from lumos.graph.table import Kind
from lumos.segment.dimensions import shapes_of
from lumos.trace.table import ABSENT, Category

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lumos.operators.shaped import ShapedOperator
    from lumos.segment.dimensions import Shapes
    from lumos.segment.segment import Segmentation
    from lumos.simulation.durations import Mask
    from lumos.trace.table import Int64, Trace


class Calls(NamedTuple):
    """What the calls of one operator do. tasks: of the measured graph. rows: of each the row of the call."""

    operator: ShapedOperator
    tasks: Int64
    rows: Int64


class OperatorTask(NamedTuple):
    """A task of the measured graph, the row of the operator to whose call it belongs, and that."""

    task: int
    row: int
    operator: ShapedOperator


@dataclass(frozen=True, slots=True, eq=False)
class OperatorWork:
    """The tasks of a rank whose time belongs to an operator: on devices the kernels of operators with shapes, in a job on CPUs the slices
    of the operators themselves.

    tasks: of the measured graph. rows: of each the row of its operator in the trace. number: of each its place among the distinct
    `operators`, -1 for one without shapes.
    """

    tasks: Int64
    rows: Int64
    number: Int64
    operators: tuple[ShapedOperator, ...]

    def like(self, test: Callable[[ShapedOperator], object]) -> Mask:
        """Which of the tasks belong to operators with shapes that pass a test."""
        passes = np.array([*(bool(test(o)) for o in self.operators), False], bool)
        found: Mask = passes[self.number]
        return found

    def of(self, test: Callable[[ShapedOperator], object]) -> Int64:
        """The tasks of operators with shapes that pass a test."""
        return self.tasks[self.like(test)]

    def in_order(self, test: Callable[[ShapedOperator], object]) -> Iterator[OperatorTask]:
        """The same one by one, in the order of the measured graph."""
        chosen = np.flatnonzero(self.like(test))
        for i in chosen[np.argsort(self.tasks[chosen], kind="stable")].tolist():
            yield OperatorTask(int(self.tasks[i]), int(self.rows[i]), self.operators[self.number[i]])

    def by_operator(self) -> Iterator[Calls]:
        """The tasks of every distinct operator with shapes."""
        for mine in equal_rows(self.number):
            if self.number[mine[0]] >= 0:
                yield Calls(self.operators[self.number[mine[0]]], self.tasks[mine], self.rows[mine])


def operator_tasks(segmentation: Segmentation, position: int, trace: Trace, shapes: Shapes | None = None) -> OperatorWork:
    """The work of the rank at a position. shapes: its operators; None for those by their shapes alone."""
    graph, owners = segmentation.graph, segmentation.owners
    known, column = shapes or shapes_of(trace), trace.args.get("Input Dims")
    tasks = owners.of_rank(position)
    device = tasks[owners.on_device[tasks]]
    if column is None:
        tasks = rows = tasks[:0]
    elif len(device):
        tasks = device[(graph.kind[device] != Kind.COLLECTIVE) & (owners.launch[device] >= 0)]
        calls = graph.event[owners.launch[tasks]].astype(np.int64)
        shaped = column.rows.astype(np.int64)[trace.category[column.rows] == Category.OPERATOR]
        rows = innermost(trace, shaped, calls)
        tasks, rows = tasks[rows >= 0], rows[rows >= 0]
    else:
        tasks = tasks[(graph.kind[tasks] == Kind.OPERATOR) & (graph.event[tasks] != ABSENT)]
        rows = graph.event[tasks].astype(np.int64)
    return OperatorWork(tasks, rows, known.of_row[rows].astype(np.int64), known.operators)
