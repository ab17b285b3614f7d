"""A measured job that computes in fp32 or tf32, as it would run under `torch.autocast` with 16 bits.

PyTorch then casts what multiplications, convolutions and attention read: weights once in a forward pass, activations for each operator that
reads them, and their gradients back again. Norms, softmax, powers, sums and losses stay in fp32, whose inputs are cast back (PyTorch's
documentation, "Autocast Op Reference"). Any other operator has the widest of the types of its inputs. Which operator made a tensor is
inferred from the recording (`operators.inference`), and gradients have the types of their tensors: what was cast in the forward pass is
cast once more in the node of the backward pass that undoes it. Each cast is a kernel that reads and writes its tensor, and an operator on
the CPU.

Attention that is computed operator by operator stays in fp32: PyTorch casts its queries, keys and values back before it, and its result
after it (`_scaled_dot_product_attention_math` in aten/src/ATen/native/transformers/attention.cpp). With 16 bits another way of computing it
may be chosen, so the interval of its multiplications reaches to what they take with 16.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from lumos.changes.layout.accumulate import operator_ns
from lumos.changes.layout.measured_layout import NOTHING, Extra, as_before, rewriting
from lumos.changes.layout.rescale import holding
from lumos.cost.memory_bound_model import moved
from lumos.graph.lists import equal_rows
from lumos.graph.places import innermost
from lumos.operators.calls import BACKWARD_NODE, GATHERS, nodes_around
from lumos.operators.inference import given_number
from lumos.operators.shaped import elements, has_rate, is_attention, type_of
from lumos.operators.table import Shape, own_name, views
from lumos.segment.program import axes_of, shapes_of
from lumos.segment.rank import recordings_of
from lumos.trace.table import Category
from lumos.vocabulary import DType, Phase

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lumos.changes.layout.measured_layout import MeasuredLayout
    from lumos.cost.cluster import Accelerator
    from lumos.operators.shaped import ShapedOperator
    from lumos.segment.rank import RankRecording
    from lumos.segment.segment import Label
    from lumos.trace.table import Job, Trace

#: Operators that autocast runs in fp32.
_IN_FP32 = re.compile(
    r"aten::(\w*layer_norm\w*|\w*group_norm\w*|\w*softmax\w*|(linalg_\w*)?norm|pow|exp|log|rsqrt|reciprocal|sum|prod|cumsum|\w*_loss\w*|"
    r"binary_cross_entropy\w*|embedding\w*|erfinv|cdist|softplus|mse_loss)$"
)
#: Attention that is computed operator by operator.
_PLAIN_ATTENTION = "aten::_scaled_dot_product_attention_math"
#: Bytes of a cast of an element: read in one type and written in the other.
_CAST_BYTES = DType.FP32.bytes + DType.BF16.bytes


class _Flow:
    """The types of the tensors of a trace's program under autocast. launching: the calls that launch, and of which piece they are.

    reads: by call, of each tensor that it takes whether that has 16 bits. kept: the calls of attention that stays in fp32. casts: by call
    that launches, the elements of each tensor that is cast around it.
    """

    def __init__(self, trace: Trace, launching: Mapping[int, Label]) -> None:
        axes = axes_of(trace)
        self.shapes, self.calls, self.rows = shapes_of(trace), axes.program.calls, axes.program.rows
        self.makers, self.given, self.forward = axes.inferred.makers, axes.inferred.given, axes.inferred.forward
        self.launching = launching
        self.undone = set(self.forward.values())  # the calls that have a node in the backward pass
        self.node = nodes_around(self.calls)
        self.half = [False] * len(self.calls)  # whether what a call makes has 16 bits
        self.root = [-1] * len(self.calls)  # of which tensor from outside what it makes is a view, as `Axes.makers` has it
        self.trained = self._trained()
        self.left = Counter[Shape]()  # the weights of each shape that this forward pass has not cast yet
        self.latest: dict[Shape, bool] = {}  # whether the last tensor of each shape that this forward pass took has 16 bits
        self.back: dict[int, list[int]] = {}  # by call, the casts of its forward pass whose gradients are cast as well
        self.begin, self.last = 0, False  # the first call of this forward pass, and whether what it made last has 16 bits
        self.reads: dict[int, tuple[bool, ...]] = {}
        self.kept, self.entered = set[int](), set[int]()
        self.casts: dict[int, list[int]] = {}
        self._run()

    def _run(self) -> None:
        now: Label | None = None
        for number, call in enumerate(self.calls):
            if self.node[number] >= 0 and not (call.forward and call.sequence >= 0):
                of = self.forward.get(self.calls[self.node[number]].sequence, -1)
                self._backward(number, of)
                if number in self.launching:
                    self.casts[number] = self.back.pop(of, [])
                continue
            label = self.launching.get(number, now)
            if label is not None and (now is None or (label.phase, label.microbatch) != (now.phase, now.microbatch)):
                self.left, self.latest, self.last, self.begin, now = +self.trained, {}, False, number, label
            self._forward(number)

    def _backward(self, number: int, of: int) -> None:
        """A call in the node of the forward pass's call `of`: gradients have the type in which that worked."""
        half = of >= 0 and self.half[of] and of not in self.kept
        if of in self.kept:
            self.kept.add(number)
        self.reads[number] = (half,) * sum(map(len, self.calls[number].inputs))
        self.half[number] = half

    def _forward(self, number: int) -> None:
        call, o = self.calls[number], self.shapes[int(self.rows[number])]
        makers = self.makers.get(number, ())
        shapes = [shape for several in call.inputs for shape in several]
        if len(makers) != len(shapes):
            makers = (-1,) * len(shapes)
        reads = self.reads[number] = tuple(map(self._reads_half, makers, shapes))
        sizes = [*map(elements, shapes)]
        if makers and own_name(call.name) in views():
            self.root[number] = makers[0] if makers[0] < -1 else self.root[makers[0]] if makers[0] >= 0 else -1
        around = call.parent in self.kept or call.name == _PLAIN_ATTENTION
        heavy = o is not None and has_rate(o)
        if around:
            self.kept.add(number)
        self.half[number] = self.last = call.name == _PLAIN_ATTENTION or (not around and (heavy or _makes_half(call.name, sizes, reads)))
        if number not in self.launching:
            return
        if around:
            casts = self._around(number)
        elif heavy:
            casts = [n for n, half, maker in zip(sizes, reads, makers, strict=True) if not half and self._is_cast(number, maker)]
        else:
            casts = [n for n, half in zip(sizes, reads, strict=True) if half] if _IN_FP32.match(call.name) else []
        self.casts[number] = casts
        while number >= 0 and self.forward.get(self.calls[number].sequence) != number:
            number = self.calls[number].parent
        if number >= 0:
            self.back.setdefault(number, []).extend(casts)

    def _around(self, number: int) -> list[int]:
        """The casts around attention that stays in fp32, at the first call in it that launches: what it reads is cast to 16 bits and back,
        and its result to 16 bits."""
        while self.calls[number].name != _PLAIN_ATTENTION:
            number = self.calls[number].parent
        if number in self.entered:
            return []
        self.entered.add(number)
        three = [elements(shape) for several in self.calls[number].inputs[:3] for shape in several]
        return [*(n for n, half in zip(three, self.reads[number], strict=False) if not half), *three, *three[:1]]

    def _reads_half(self, maker: int, shape: Shape) -> bool:
        """Whether a tensor that a call of a forward pass takes has 16 bits. One of which is not known where in this pass it comes from, and
        that is no weight, is like the last one of that shape, or else like what was made last."""
        if maker < self.begin and not (maker < -1 and self.given[given_number(maker)].weight):
            return self.latest.get(shape, self.last)
        self.latest[shape] = maker >= 0 and self.half[maker]
        return self.latest[shape]

    def _is_cast(self, number: int, maker: int) -> bool:
        """Whether a tensor of 32 bits is cast where a call multiplies it: a trained weight only once in a forward pass."""
        root = maker if maker < 0 else self.root[maker]
        given = self.given[given_number(root)] if root < -1 else None
        shape = self.calls[given.call].shapes[given.place] if given is not None and given.weight else ()
        if shape not in self.trained or (maker if maker >= 0 else number) not in self.undone:
            return True
        self.left[shape] -= 1
        return self.left[shape] >= 0

    def _trained(self) -> Counter[Shape]:
        """How many trained weights of each shape there are: the most whose gradients one backward pass gathers."""
        out, now = Counter[Shape](), Counter[Shape]()
        for call, node in zip(self.calls, self.node, strict=True):
            if node < 0:
                now.clear()
            elif call.name.startswith(GATHERS) and call.shapes:
                now[call.shapes[0]] += 1
                out |= now
        return out


def autocast(layout: MeasuredLayout, job: Job, accelerator: Accelerator, new: DType) -> MeasuredLayout:
    """The layout of the job under autocast. new: a type of 16 bits."""
    segmentation = layout.segmentation
    extra: dict[int, Extra] = defaultdict(Extra)
    after = layout
    for rank in recordings_of(segmentation, job):
        work, trace = rank.work, rank.trace
        number = axes_of(trace).program.number_of_row(len(trace))
        labels = [layout.pieces[piece].label for piece in segmentation.piece[work.tasks].tolist()]
        flow = _Flow(trace, dict(zip(number[work.rows].tolist(), labels, strict=True)))
        cast_ns = _cast_ns(rank)
        halves: dict[tuple[bool, ...], list[int]] = defaultdict(list)
        kept: list[int] = []
        for same in equal_rows(trace.start[work.rows], work.rows):  # an operator of several kernels casts its inputs once
            row, tasks = int(work.rows[same[0]]), work.tasks[same]
            piece, o, call = int(segmentation.piece[tasks[0]]), work.operators[work.number[same[0]]], int(number[row])
            phase = layout.pieces[piece].label.phase
            if phase == Phase.OPTIMIZER or type_of(o) is not DType.FP32:
                continue
            back, reads = phase == Phase.BACKWARD, flow.reads.get(call, ())
            for n in flow.casts.get(call, ()):
                extra[piece] += Extra(round(cast_ns[back]), int(moved(_CAST_BYTES * n, accelerator, "pointwise").time))
            if call in flow.kept:
                if has_rate(o):
                    kept.append(row)
            elif has_rate(o):
                halves[()].append(row)
            elif any(reads) and len(reads) == sum(map(bool, o.shapes)) and (back or not _IN_FP32.match(o.name)):
                halves[reads].append(row)
        after = rewriting(after, rank.position, kept, as_before, partial(_halved, new, ()))
        after = rewriting(after, rank.position, holding(trace, halves.pop((), []), is_attention), partial(_halved, new, ()))
        for reads, rows in halves.items():
            after = rewriting(after, rank.position, rows, partial(_halved, new, reads), as_before)
    return replace(
        after, ranks=tuple(tuple(replace(i, extra=i.extra + extra.get(i.piece, NOTHING)) for i in items) for items in layout.ranks)
    )


def _halved(half: DType, reads: tuple[bool, ...], _: ShapedOperator, o: ShapedOperator) -> ShapedOperator:
    """An operator that reads tensors of 16 bits where `reads` says so of the tensors that have a shape; without, wherever it read 32."""
    flags = iter(reads or [True] * len(o.shapes))
    halved = [bool(shape) and next(flags) and DType.parse(name) is DType.FP32 for shape, name in zip(o.shapes, o.dtypes, strict=True)]
    return o._replace(dtypes=tuple(half.profiler_name if now else name for now, name in zip(halved, o.dtypes, strict=True)))


def _cast_ns(rank: RankRecording) -> tuple[float, float]:
    """What a cast takes on the CPU in a forward and in a backward pass, ns: an operator with one kernel inside another, and inside a node
    of autograd."""
    owners, trace, tasks = rank.segmentation.owners, rank.trace, rank.tasks
    graph, forward = owners.graph, operator_ns(rank)
    own = tasks[(graph.event[tasks] >= 0) & ~owners.on_device[tasks]]
    nodes = np.flatnonzero(trace.is_any(Category.OPERATOR) & trace.named(lambda name: name.startswith(BACKWARD_NODE)))
    spent = np.bincount(innermost(trace, nodes, graph.event[own].astype(np.int64)) + 1, graph.duration[own], len(trace) + 1)[1:]
    device = tasks[owners.on_device[tasks] & (owners.launch[tasks] >= 0)]
    kernels = np.bincount(innermost(trace, nodes, graph.event[owners.launch[device]].astype(np.int64)) + 1, minlength=len(trace) + 1)[1:]
    single = nodes[kernels[nodes] == 1]
    return forward, max(float(np.median(spent[single])), forward) if len(single) else forward


def _makes_half(name: str, sizes: Sequence[int], reads: Sequence[bool]) -> bool:
    """Whether what an operator makes has 16 bits: no large tensor among its inputs has 32, and it does not run in 32."""
    return bool(sizes) and not _IN_FP32.match(name) and all(half for n, half in zip(sizes, reads, strict=True) if n == max(sizes))
