"""A measured job that computes in fp32 or tf32, as it would run under `torch.autocast` with 16 bits.

PyTorch then casts what multiplications, convolutions and attention read: weights once in a forward pass, activations for each operator that
reads them, and their gradients back again. Norms, softmax, powers, sums and losses stay in fp32, whose inputs are cast back (PyTorch's
documentation, "Autocast Op Reference"). Any other operator has the widest of the types of its inputs. A recording does not show which
operator made a tensor; a tensor is taken for the last one of as many elements in this forward pass and what follows it, and one that is
added to another for the sum before it (the residual stream). Each cast is a kernel that reads and writes its tensor, and an operator on
the CPU.

Attention that is computed operator by operator stays in fp32: PyTorch casts its queries, keys and values back before it, and its result
after it (`_scaled_dot_product_attention_math` in aten/src/ATen/native/transformers/attention.cpp). With 16 bits another way of computing it
may be chosen, so the interval of its multiplications reaches to what they take with 16.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from lumos.analyze.attribution import innermost
from lumos.changes.layout.accumulate import operator_ns
from lumos.changes.layout.measured_layout import NOTHING, Extra, rewriting
from lumos.changes.layout.precision import has_rate, heavy_ratio, type_of
from lumos.changes.layout.prices import Ratio
from lumos.changes.layout.rescale import KERNEL_FLOOR, holding, operator_rows
from lumos.cost.memory_bound_model import moved
from lumos.operators.shaped import elements, is_attention, product, shapes_of_weights
from lumos.segment.dimensions import shapes_of
from lumos.trace.autograd import autograd_numbers
from lumos.trace.table import Category
from lumos.vocabulary import DType, Phase

if TYPE_CHECKING:
    from lumos.changes.layout.measured_layout import MeasuredLayout
    from lumos.cost.cluster import Accelerator
    from lumos.operators.shaped import ShapedOperator
    from lumos.operators.table import Shape
    from lumos.segment.dimensions import Shapes
    from lumos.trace.table import Int64, Job, Trace

#: Operators that autocast runs in fp32.
_IN_FP32 = re.compile(
    r"aten::(\w*layer_norm\w*|\w*group_norm\w*|\w*softmax\w*|(linalg_\w*)?norm|pow|exp|log|rsqrt|reciprocal|sum|prod|cumsum|\w*_loss\w*|"
    r"binary_cross_entropy\w*|embedding\w*|erfinv|cdist|softplus|mse_loss)$"
)
#: Attention that is computed operator by operator.
_PLAIN_ATTENTION = "aten::_scaled_dot_product_attention_math"
#: What autograd's engine calls the evaluation of a node.
_NODE = re.compile(r"autograd::engine::evaluate_function")
#: Bytes of a cast of an element: read in one type and written in the other.
_CAST_BYTES = DType.FP32.bytes + DType.BF16.bytes


class _Types:
    """What is known of the types of tensors while a pass runs.

    halves: by number of elements, whether the last tensor has 16 bits. sums: the same of the last sum. activations: the numbers of elements
    of those that were cast. last: whether the last tensor has 16 bits, which a tensor of unknown origin is taken for. raised: operators
    that cast what they read to 32 bits, and its number of elements. weights: shapes of weights.
    """

    def __init__(self, weights: frozenset[Shape]) -> None:
        self.weights = weights
        self.halves: dict[int, bool] = {}
        self.sums: dict[int, bool] = {}
        self.activations: set[int] = set()
        self.raised: set[tuple[str, int]] = set()
        self.last = False

    def begin(self) -> None:
        """Begin a forward pass, which reads no tensor that a pass before it made."""
        self.halves, self.sums, self.activations, self.raised, self.last = {}, {}, set(), set(), False

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

    def raise_inputs(self, o: ShapedOperator, reads: tuple[bool, ...]) -> list[int]:
        """The elements of each tensor of 16 bits that an operator of a forward pass reads in 32. reads: of each, whether it has 16."""
        found = [elements(s) for s, half in zip((s for s in o.shapes if s), reads, strict=True) if half]
        self.raised.update((o.name, n) for n in found)
        return found

    def lowered(self, o: ShapedOperator) -> list[int]:
        """The elements of the gradient that an operator of a backward pass makes and that is cast to 16 bits: of what was cast from them.
        The operator is called as the one of the forward pass, and a word more."""
        size = max((elements(shape) for shape in o.shapes if shape), default=0)
        return [n for name, n in self.raised if n == size and o.name.startswith(f"{name}_backward")][:1]

    def between(self, shapes: Shapes, left: int, entered: int, back: bool) -> list[int]:
        """The elements of each tensor that is cast where one attention in fp32 is left and another entered, by their rows, -1 for none; and
        note what they leave behind. back: their gradients are computed."""
        out: list[int] = []
        for row, comes in ((left, False), (entered, True)):
            o = shapes[row] if row >= 0 else None
            three = [elements(shape) for shape in o.shapes[:3]] if o is not None else []
            result = three[:1]
            out += result if comes == back else three
            if comes and not back:  # what was not of 16 bits is cast to them before
                out += [n for n in three if not self.halves.get(n, self.last)]
            self.halves.update(dict.fromkeys(three, True) if not comes else {})
            self.last = self.last or bool(three)
        return out

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
    prices = layout.prices.copy()
    segmentation, _graph = layout.segmentation, layout.segmentation.graph
    extra: dict[int, Extra] = defaultdict(Extra)
    for position, trace in enumerate(job.traces):
        shapes = shapes_of(trace)
        types = _Types(shapes_of_weights(shapes.counted()))
        each = _cast_ns(layout, position, trace)
        tasks, rows = operator_rows(segmentation, position, trace)
        ratios: dict[tuple[int, tuple[bool, ...], bool], Ratio] = {}
        attention, around = _plain_attention(trace, rows), -1
        halves: dict[tuple[bool, ...], list[int]] = defaultdict(list)
        order, before = np.lexsort((rows, trace.start[rows])), Phase.OTHER
        for same in np.split(order, np.flatnonzero(np.diff(rows[order])) + 1):  # all that one operator does: its inputs are cast once
            o, piece = shapes[int(rows[same[0]])], int(segmentation.piece[tasks[same[0]]])
            phase = layout.pieces[piece].label.phase
            if phase == Phase.FORWARD != before:
                types.begin()
            before = phase
            if o is None or phase == Phase.OPTIMIZER or type_of(o) is not DType.FP32:
                continue
            heavy, back, plain = has_rate(o), phase == Phase.BACKWARD, int(attention[same[0]])
            if plain != around:
                for n in types.between(shapes, around, plain, back):
                    extra[piece] += _cast(n, round(each[back]), accelerator)
                around = plain
            reads = () if heavy or plain >= 0 else types.reads(o)
            key = int(shapes.of_row[rows[same[0]]]), reads, plain >= 0
            if key not in ratios:
                ratio = heavy_ratio(o, old, new, accelerator) if heavy else _bytes_ratio(o, reads, back)
                ratios[key] = ratio if plain < 0 else Ratio(1.0, min(ratio.best, 1.0), 1.0)
            prices.multiply(tasks[same], ratios[key]._replace(fixed=0.0 if heavy else KERNEL_FLOOR))
            if plain >= 0:
                continue
            for n in _casts(o, types, heavy, reads, back):
                extra[piece] += _cast(n, round(each[back]), accelerator)
            half = not (back and types.is_cast_back(o)) if heavy else _makes_half(o, reads, back) or bool(back and types.lowered(o))
            types.made(o, half)
            halves[reads].append(int(rows[same[0]]))
        halves[()] = holding(trace, halves[()], is_attention)
        for reads, mine in halves.items():
            layout = rewriting(layout, position, mine, partial(_halved, new, reads))
    ranks = tuple(tuple(replace(i, extra=i.extra + extra.get(i.piece, NOTHING)) for i in items) for items in layout.ranks)
    return replace(layout, ranks=ranks, prices=prices)


def _halved(half: DType, reads: tuple[bool, ...], _: ShapedOperator, o: ShapedOperator) -> ShapedOperator:
    """An operator that reads tensors of 16 bits where `reads` says so of the tensors that have a shape; without, wherever it read 32."""
    flags = iter(reads)
    now = [
        bool(shape) and (next(flags) if reads else DType.parse(name) is DType.FP32) for shape, name in zip(o.shapes, o.dtypes, strict=True)
    ]
    return o._replace(dtypes=tuple(half.profiler_name if halved else name for halved, name in zip(now, o.dtypes, strict=True)))


def _cast(elements: int, host_ns: int, accelerator: Accelerator) -> Extra:
    """What a cast of so many elements adds."""
    return Extra(host_ns, int(moved(_CAST_BYTES * elements, accelerator, "pointwise").time))


def _plain_attention(trace: Trace, rows: Int64) -> Int64:
    """For each row, the attention that is computed operator by operator and holds it, or whose gradients it computes; -1 for none. Nodes of
    autograd have the numbers of the operators that made them."""
    spans = np.flatnonzero(trace.named(lambda name: name == _PLAIN_ATTENTION))
    out = innermost(trace, spans, rows)
    column = trace.args.get("Sequence number")
    if column is None or not len(spans):
        return out
    number = autograd_numbers(trace)
    numbered = column.rows.astype(np.int64)[column.values >= 0]
    holder = innermost(trace, spans, numbered)
    inside, holder = numbered[holder >= 0], holder[holder >= 0]
    known, at = np.unique(number[inside], return_index=True)
    nodes = np.flatnonzero(trace.is_any(Category.OPERATOR) & trace.named(_NODE.match))
    node = innermost(trace, nodes, rows)
    place = np.searchsorted(known, number[node])
    found = (node >= 0) & (out < 0) & np.isin(number[node], known)
    out[found] = holder[at][place[found]]
    return out


def _cast_ns(layout: MeasuredLayout, position: int, trace: Trace) -> tuple[float, float]:
    """What a cast takes on the CPU in a forward and in a backward pass, ns: an operator with one kernel inside another, and inside a node
    of autograd."""
    graph, owners = layout.segmentation.graph, layout.segmentation.owners
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
        return types.lowered(o) or ([1] if o.name == "aten::sum" and any(reads) else [])
    return types.raise_inputs(o, reads) if _IN_FP32.match(o.name) else []


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
