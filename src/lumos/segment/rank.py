"""One rank of a segmented job: its place among the ranks, its trace, and what these tell of its work and its weights, worked out once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.graph.lists import equal_rows
from lumos.graph.places import innermost
from lumos.graph.table import Kind
from lumos.segment.dimensions import shapes_of
from lumos.segment.sizes import sizes
from lumos.segment.weights import gradients, weights
from lumos.trace.table import ABSENT, Category

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lumos.operators.shaped import ShapedOperator
    from lumos.segment.dimensions import Shapes
    from lumos.segment.segment import Label, Segmentation
    from lumos.segment.sizes import Resized, Sizes
    from lumos.segment.units import Units
    from lumos.segment.weights import Gradient
    from lumos.simulation.durations import Mask
    from lumos.trace.table import Int64, Job, Trace


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
        passing: Mask = passes[self.number]
        return passing

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


@dataclass(frozen=True, eq=False)
class RankRecording:
    """What was recorded of one rank of a job. position: its place among the ranks."""

    segmentation: Segmentation
    position: int
    trace: Trace

    @property
    def tasks(self) -> Int64:
        """Its tasks in the measured graph."""
        return self.segmentation.owners.of_rank(self.position)

    @property
    def units(self) -> Units:
        """The units of its passes."""
        return self.segmentation.units[self.position]

    @property
    def labels(self) -> tuple[Label, ...]:
        """What each of its units is."""
        return self.segmentation.unit_labels[self.position]

    @property
    def shapes(self) -> Shapes:
        """Its operators, by their shapes."""
        return shapes_of(self.trace)

    @property
    def sizes(self) -> Sizes:
        """The sizes of its part of the model."""
        return sizes(self.trace)

    @cached_property
    def work(self) -> OperatorWork:
        """Its work by operators of one name and shape."""
        return self.work_of(self.shapes)

    @cached_property
    def gradients(self) -> tuple[Gradient, ...]:
        """The gradients that it gathers in a backward pass (`segment.weights`)."""
        return gradients(self.trace, self.units, self.labels)

    def weights(self, resize: Resized | None = None) -> dict[int, int]:
        """The elements of its weights by layer, -1 outside the layers, under other sizes (`segment.weights`)."""
        return weights(self.gradients, self.trace, self.units, self.labels, resize)

    def work_of(self, shapes: Shapes) -> OperatorWork:
        """Its work by the operators of `shapes`."""
        graph, owners = self.segmentation.graph, self.segmentation.owners
        tasks, column = self.tasks, self.trace.args.get("Input Dims")
        device = tasks[owners.on_device[tasks]]
        if column is None:
            tasks = rows = tasks[:0]
        elif len(device):
            tasks = device[(graph.kind[device] != Kind.COLLECTIVE) & (owners.launch[device] >= 0)]
            calls = graph.event[owners.launch[tasks]].astype(np.int64)
            shaped = column.rows.astype(np.int64)[self.trace.category[column.rows] == Category.OPERATOR]
            rows = innermost(self.trace, shaped, calls)
            tasks, rows = tasks[rows >= 0], rows[rows >= 0]
        else:
            tasks = tasks[(graph.kind[tasks] == Kind.OPERATOR) & (graph.event[tasks] != ABSENT)]
            rows = graph.event[tasks].astype(np.int64)
        return OperatorWork(tasks, rows, shapes.of_row[rows].astype(np.int64), shapes.operators)


@lru_cache(maxsize=4)
def recordings_of(segmentation: Segmentation, job: Job) -> tuple[RankRecording, ...]:
    """What was recorded of every rank of a job, in the order of its traces. It is kept for the next question about the same job."""
    return tuple(RankRecording(segmentation, position, trace) for position, trace in enumerate(job.traces))
