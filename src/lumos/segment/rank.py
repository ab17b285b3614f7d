"""One rank of a segmented job: its place among the ranks, its trace, and what these tell of its work and its weights, worked out once.

Its weights are those whose gradients autograd gathers or, where a trace does not show that, those that the operators of a forward pass use.
Autograd gathers the gradient of every weight once in a backward pass, in the order in which they are ready, and its row has the shape and
the type of the gradient. A weight that two operators share (an embedding's and a head's) is gathered once. Of a weight that is spread over
ranks as one tensor the row has the whole shape; this rank's part of it is read from the multiplications that launch its kernels.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.graph.lists import equal_rows
from lumos.graph.places import innermost
from lumos.graph.table import Kind
from lumos.operators.calls import GATHERS
from lumos.operators.shaped import ShapedOperator, elements, factors, weight_inputs
from lumos.operators.table import Shape, of_torch
from lumos.segment.program import Shapes, shapes_of
from lumos.segment.sizes import sizes
from lumos.trace.table import ABSENT, Category, unique
from lumos.vocabulary import DType, Phase

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from lumos.segment.segment import Label, Segmentation
    from lumos.segment.sizes import Resized, Sizes
    from lumos.segment.units import Units
    from lumos.simulation.durations import Mask
    from lumos.trace.table import Int64, Job, Trace

#: The operator with which autograd gathers the gradient of a weight.
GATHERED = re.compile(f"{GATHERS}$")


class Gradient(NamedTuple):
    """The gradient of one weight. layer: -1 outside the layers. shape: of this rank's part. width: bytes of a value. row: of the operator
    that gathers it. rows: the same in every pass that gathers as many."""

    layer: int
    shape: Shape
    width: int
    row: int
    rows: tuple[int, ...] = ()


def gradients(trace: Trace, units: Units, labels: Sequence[Label]) -> tuple[Gradient, ...]:
    """The gradients that a rank gathers in a backward pass, in order, of the pass that gathers most; () where the trace
    does not show their shapes."""
    shapes = shapes_of(trace)
    shaped = np.array([bool(o.shapes and o.shapes[0]) for o in shapes.operators] or [False], bool)
    of_unit = shapes.of_row[units.row]
    gathers = np.flatnonzero(trace.named(GATHERED.match)[units.row] & (of_unit >= 0) & shaped[of_unit])
    if not len(gathers):
        return ()
    microbatch = np.fromiter((label.microbatch for label in labels), np.int64, len(labels))
    phase = np.fromiter((label.phase for label in labels), np.uint8, len(labels))
    begins = np.isin(phase, (Phase.FORWARD, Phase.OPTIMIZER)) | np.append(True, np.diff(microbatch) != 0)
    of_pass = np.cumsum(begins)[gathers]
    many = np.bincount(of_pass)
    passes = [gathers[of_pass == one] for one in np.flatnonzero(many == many.max())]
    chosen, rows = passes[0].tolist(), zip(*(units.row[of].tolist() for of in passes), strict=True)
    parts, whole = _parts(shapes), [shapes.operators[of_unit[i]] for i in chosen]
    own = _own_parts([o.shapes[0] for o in whole], [labels[i].layer >= 0 for i in chosen], parts)
    types = (DType.parse(o.dtypes[0]) or DType.FP32 for o in whole)
    each = zip(chosen, own, types, rows, strict=True)
    return tuple(Gradient(labels[i].layer, part, dtype.bytes, of[0], of) for i, part, dtype, of in each)


def _parts(shapes: Shapes) -> dict[int, set[Shape]]:
    """The matrices that this rank's innermost multiplications use as weights, as [out, in] and [in, out], by each of their sizes. A
    multiplication of tensors that are spread over ranks holds that of this rank's parts."""
    known = defaultdict[int, set[Shape]](set)
    for i in unique(shapes.of_row[shapes.own]).tolist():
        o = shapes.operators[i]
        multiplication = factors(o)
        if multiplication is not None and of_torch(o.name) and len(o.shapes[multiplication.second]) == 2:
            a, b = o.shapes[multiplication.second]
            for size in (a, b):
                known[size] |= {(a, b), (b, a)}
    return known


def _own_parts(whole: Sequence[Shape], in_layer: Sequence[bool], parts: dict[int, set[Shape]]) -> list[Shape]:
    """This rank's parts of weights: of each the largest matrix that its multiplications use and that is a whole fraction of it along one
    side. Where a rank has a part of those matrices of the layers that it does not use whole, and the same of each, it has that part of the
    others as well: their whole shapes are used only by chance, as of another weight's part or of activations."""
    largest = [_used(shape, parts)[:1] for shape in whole]
    telling = in_layer if any(in_layer) else [True] * len(whole)
    ranks = {elements(w) // elements(o[0]) for w, o, tells in zip(whole, largest, telling, strict=True) if tells and o and o[0] != w}
    if len(ranks) != 1:
        return [o[0] if o else w for w, o in zip(whole, largest, strict=True)]
    count = ranks.pop()
    return [
        next((s for s in _used(w, parts) if elements(s) * count == elements(w)), o[0] if o else w)
        for w, o in zip(whole, largest, strict=True)
    ]


def _used(whole: Shape, parts: dict[int, set[Shape]]) -> list[Shape]:
    """The matrices that a rank's multiplications use and that are a whole fraction of a weight along one side, the largest first."""
    if len(whole) != 2 or not parts:
        return []
    rows, columns = whole
    fractions = {s for s in parts[columns] if s[1] == columns and rows % s[0] == 0}
    fractions |= {s for s in parts[rows] if s[0] == rows and columns % s[1] == 0}
    return sorted(fractions, key=lambda s: (elements(s), s), reverse=True)


def weights(
    gathered: Sequence[Gradient], trace: Trace, units: Units, labels: Sequence[Label], resize: Resized | None = None
) -> dict[int, int]:
    """Elements of the weights of a rank by layer (-1: outside the layers), after `resize` has changed the shapes.

    gathered: its gradients. Without `resize` the weights are as measured. Empty where the trace shows neither the gradients nor a forward
    pass with shapes.
    """
    total: dict[int, int] = defaultdict(int)
    shapes = shapes_of(trace)
    for gradient in gathered:
        total[gradient.layer] += round(elements(gradient.shape) * (1 if resize is None else _grown(gradient, shapes, resize)))
    if gathered:
        return dict(total)
    for i in _first_whole_pass(labels):
        o, layer = shapes[int(units.row[i])], labels[i].layer
        if o is not None:
            total[layer] += sum(map(elements, weight_shapes(o if resize is None else resize.at(int(units.row[i]), o))))
    return dict(total)


def _grown(gradient: Gradient, shapes: Shapes, resize: Resized) -> float:
    """How many times as many elements a weight has after a change."""
    o = shapes[gradient.row]
    if o is not None and o.shapes[0] != gradient.shape:
        return resize.of_weights(gradient.shape)
    before = elements(o.shapes[0]) if o is not None else 0
    return elements(resize.at(gradient.row, o).shapes[0]) / before if o is not None and before else 1.0


def weight_shapes(o: ShapedOperator) -> tuple[Shape, ...]:
    """Shapes of the inputs of a forward operator that are weights: those that are known to be, else the matrices that it multiplies by."""
    multiplication = factors(o) if not weight_inputs(o) else None
    if multiplication is None:
        return weight_inputs(o)
    by = o.shapes[multiplication.second]
    return (by,) if len(by) == 2 + (multiplication.groups > 0) else ()


def _first_whole_pass(labels: Sequence[Label]) -> range:
    """Units of the first of those forward passes that have the most layers. labels: of all units."""
    best, begin, most = range(0), 0, -1
    for i in range(len(labels) + 1):
        if i < len(labels) and labels[i].phase == Phase.FORWARD:
            continue
        seen = len({label.layer for label in labels[begin:i]})
        if i > begin and seen > most:
            best, most = range(begin, i), seen
        begin = i + 1
    return best


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
        """The gradients that it gathers in a backward pass (`segment.rank`)."""
        return gradients(self.trace, self.units, self.labels)

    def weights(self, resize: Resized | None = None) -> dict[int, int]:
        """The elements of its weights by layer, -1 outside the layers, under other sizes (`segment.rank`)."""
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
