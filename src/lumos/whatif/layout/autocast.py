"""A measured job that computes in fp32 or tf32, as it would run under `torch.autocast` with 16 bits.

PyTorch then casts what multiplications, convolutions and attention read: weights once in a forward pass, activations for each operator that
reads them, and their gradients back again. Norms, softmax, powers, sums and losses stay in fp32, whose inputs are cast back (PyTorch's
documentation, "Autocast Op Reference"). Any other operator has the widest of the types of its inputs. A recording does not show which
operator made a tensor; a tensor is taken for the last one of as many elements, and one that is added to another for the sum before it (the
residual stream). Each cast is a kernel that reads and writes its tensor, and an operator on the CPU.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from lumos.analyze.attribution import innermost
from lumos.analyze.loop.steps import members
from lumos.cost.memory_bound import moved
from lumos.cost.operators import elements
from lumos.segment.batch import shapes_of_weights
from lumos.segment.dimensions import Shapes
from lumos.segment.products import product
from lumos.trace.table import Category
from lumos.vocabulary import DType, Phase
from lumos.whatif.layout.accumulate import operator_ns
from lumos.whatif.layout.measured_layout import NOTHING, Extra
from lumos.whatif.layout.precision import Ratio, has_rate, heavy_ratio, type_of
from lumos.whatif.layout.rescale import KERNEL_FLOOR, multiply, operator_rows

if TYPE_CHECKING:
    from lumos.cost.cluster import Accelerator
    from lumos.cost.operators import Shape
    from lumos.segment.products import ShapedOperator
    from lumos.trace.table import Job, Trace
    from lumos.whatif.layout.measured_layout import MeasuredLayout

#: Operators that autocast runs in fp32.
_IN_FP32 = re.compile(
    r"aten::(\w*layer_norm\w*|\w*group_norm\w*|\w*softmax\w*|(linalg_\w*)?norm|pow|exp|log|rsqrt|reciprocal|sum|prod|cumsum|mean|\w*_loss\w*|"
    r"binary_cross_entropy\w*|embedding\w*|erfinv|cdist|softplus|mse_loss)$"
)
#: What autograd's engine calls the evaluation of a node.
_NODE = re.compile(r"autograd::engine::evaluate_function")
#: Bytes of a cast of an element: read in one type and written in the other.
_CAST_BYTES = DType.FP32.bytes + DType.BF16.bytes


class _Types:
    """What is known of the types of tensors while a pass runs. halves: by number of elements, whether the last tensor has 16 bits. sums:
    the same of the last sum. activations: the numbers of elements of those that were cast. last: whether the last
    tensor has 16 bits, which a tensor of unknown origin is taken for. weights: shapes of weights."""

    def __init__(self, weights: frozenset[Shape]) -> None:
        self.weights = weights
        self.halves: dict[int, bool] = {}
        self.sums: dict[int, bool] = {}
        self.activations: set[int] = set()
        self.last = False

    def reads(self, o: ShapedOperator) -> tuple[bool, ...]:
        """Of each tensor that an operator reads, whether it has 16 bits."""
        sizes = [elements(shape) for shape in o.shapes if shape]
        halves = [
            shape not in self.weights and self.halves.get(n, self.last) for shape, n in zip(filter(None, o.shapes), sizes, strict=True)
        ]
        if "add" in o.name and len(sizes) > 1 and sizes[0] == sizes[1] and halves[0]:
            halves[0] = self.sums.get(sizes[0], True)
        return tuple(halves)

    def cast(self, o: ShapedOperator) -> list[int]:
        """The elements of each tensor that a multiplication of a forward pass reads and that must be cast."""
        found = [elements(s) for s in o.shapes if s and (s in self.weights or not self.halves.get(elements(s), self.last))]
        self.activations.update(elements(s) for s in o.shapes if s and s not in self.weights and elements(s) in found)
        return found

    def cast_back(self, o: ShapedOperator) -> list[int]:
        """The elements of each gradient that a multiplication of a backward pass makes and that must be cast: of weights, and of
        activations that were cast."""
        found = product(o)
        if found is None:
            return [elements(s) for s in o.shapes[1:] if s and (s in self.weights or elements(s) in self.activations)]
        size = found.m * found.n * found.batch
        return [size] if (found.m, found.n) in self.weights or size in self.activations else []

    def is_cast_back(self, o: ShapedOperator) -> bool:
        """Whether a gradient of an activation that a multiplication of a backward pass makes is cast."""
        found = product(o)
        if found is None:
            return any(elements(s) in self.activations for s in o.shapes[1:] if s and s not in self.weights)
        return found.m * found.n * found.batch in self.activations

    def made(self, o: ShapedOperator, half: bool) -> None:
        """Note what an operator makes."""
        found = product(o)
        sizes = [elements(shape) for shape in o.shapes if shape]
        size = found.m * found.n * found.batch if found is not None else max(sizes, default=0)
        self.halves[size] = self.last = half
        if "add" in o.name and len(sizes) > 1 and sizes[0] == sizes[1]:
            self.sums[size] = half


def autocast(layout: MeasuredLayout, job: Job, accelerator: Accelerator, old: DType, new: DType) -> MeasuredLayout:
    """The layout of the job under autocast. old: the type in which it multiplies. new: one of 16 bits."""
    columns = layout.factor.copy(), layout.low.copy(), layout.high.copy()
    segmentation, graph = layout.segmentation, layout.segmentation.graph
    owners = members(graph)
    extra: dict[int, Extra] = defaultdict(Extra)
    for position, trace in enumerate(job.traces):
        shapes = Shapes(trace)
        types = _Types(shapes_of_weights(shapes.counted()))
        each = _cast_ns(layout, position, trace)
        tasks, rows = operator_rows(segmentation, position, trace, owners)
        ratios: dict[tuple[int, tuple[bool, ...]], Ratio] = {}
        order = np.lexsort((rows, trace.start[rows]))
        for same in np.split(order, np.flatnonzero(np.diff(rows[order])) + 1):  # all that one operator does: its inputs are cast once
            o, piece = shapes[int(rows[same[0]])], int(segmentation.piece[tasks[same[0]]])
            phase = layout.pieces[piece].label.phase
            if o is None or phase == Phase.OPTIMIZER or type_of(o) is not DType.FP32:
                continue
            heavy = has_rate(o)
            reads = () if heavy else types.reads(o)
            key = int(shapes.of_row[rows[same[0]]]), reads
            if key not in ratios:
                ratios[key] = heavy_ratio(o, old, new, accelerator) if heavy else _bytes_ratio(o, reads, phase == Phase.BACKWARD)
            multiply(columns, tasks[same], graph.duration, ratios[key], 0.0 if heavy else KERNEL_FLOOR)
            back = phase == Phase.BACKWARD
            for n in _casts(o, types, heavy, reads, back):
                extra[piece] += Extra(round(each[back]), int(moved(_CAST_BYTES * n, accelerator, "pointwise").time))
            types.made(o, not (back and types.is_cast_back(o)) if heavy else _makes_half(o, reads, back))
    ranks = tuple(tuple(replace(i, extra=i.extra + extra.get(i.piece, NOTHING)) for i in items) for items in layout.ranks)
    return replace(layout, ranks=ranks, factor=columns[0], low=columns[1], high=columns[2])


def _cast_ns(layout: MeasuredLayout, position: int, trace: Trace) -> tuple[float, float]:
    """What a cast takes on the CPU in a forward and in a backward pass, ns: an operator with one kernel inside another, and inside a node
    of autograd."""
    graph, owners = layout.segmentation.graph, members(layout.segmentation.graph)
    forward = operator_ns(layout, position, trace)
    tasks = owners.of_rank(position)
    own = tasks[(graph.event[tasks] >= 0) & ~owners.on_device[tasks]]
    nodes = np.flatnonzero(trace.is_any(Category.OPERATOR) & trace.named(_NODE.match))
    spent = np.bincount(innermost(trace, nodes, graph.event[own].astype(np.int64)) + 1, graph.duration[own], len(trace) + 1)[1:]
    device = tasks[owners.on_device[tasks] & (owners.launch[tasks] >= 0)]
    kernels = np.bincount(innermost(trace, nodes, graph.event[owners.launch[device]].astype(np.int64)) + 1, minlength=len(trace) + 1)[1:]
    single = nodes[kernels[nodes] == 1]
    return forward, max(float(np.median(spent[single])), forward) if len(single) else forward


def _casts(o: ShapedOperator, types: _Types, heavy: bool, reads: tuple[bool, ...], back: bool) -> list[int]:
    """The elements of the tensors that are cast around an operator. back: it is of a backward pass, where autocast does nothing, and where
    the gradient of a bias, a sum, is cast like those of other weights."""
    if heavy:
        return types.cast_back(o) if back else types.cast(o)
    if back:
        return [1] if o.name == "aten::sum" and any(reads) else []
    if not _IN_FP32.match(o.name):
        return []
    return [elements(s) for s, half in zip((s for s in o.shapes if s), reads, strict=True) if half]


def _makes_half(o: ShapedOperator, reads: tuple[bool, ...], back: bool) -> bool:
    """Whether what an operator makes has 16 bits: no large tensor among its inputs has 32, and it does not run in 32."""
    sizes = [elements(shape) for shape in o.shapes if shape]
    runs_in_fp32 = not back and bool(_IN_FP32.match(o.name))
    return bool(sizes) and not runs_in_fp32 and all(half for n, half in zip(sizes, reads, strict=True) if n == max(sizes))


def _bytes_ratio(o: ShapedOperator, reads: tuple[bool, ...], back: bool) -> Ratio:
    """By what the bytes that an operator moves are multiplied; the interval reaches to no change, as types are assumed."""
    if not any(reads) or (not back and _IN_FP32.match(o.name)):
        return Ratio(1.0, 1.0, 1.0)
    sizes = [elements(shape) for shape in o.shapes if shape]
    before = 2 * (sum(sizes) + max(sizes))
    made = max(sizes) * (1 if _makes_half(o, reads, back) else 2)
    after = sum(n * (1 if half else 2) for n, half in zip(sizes, reads, strict=True)) + made
    return Ratio(after / before, after / before, 1.0)
