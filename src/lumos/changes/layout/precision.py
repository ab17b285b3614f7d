"""Another number format in a measured job: which kernels then work in it, and what they take.

Three changes are told apart by the types in which the recording multiplies and has its weights:

    fp32 ↔ tf32, fp16 ↔ bf16    only the rate of multiplications, convolutions and attention changes
    fp32, tf32 → bf16, fp16     as under `torch.autocast`: weights and optimizer stay, see `autocast`
    bf16, fp16 → fp32, tf32     every tensor of 16 bits takes 32, and the casts between the two fall away; where weights and gradients
                                have 16 bits as well, so do the optimizer's work and the exchanges

Multiplications, attention and recurrent layers take measured × model(new type) / model(old type); convolutions and multiplications of
groups, which no model covers, the ratio of the device's rates. A convolution that took longer than its arithmetic at the peak rate waited
for memory, too, which it does less where the rate falls: where it falls to less than a quarter, the new time keeps only a part of what was
beyond (`at_lower_rate`), and the interval reaches from the arithmetic alone to the ratio. Everything else takes time as the bytes that it
moves, also the kernels of a library that bring the tensors of a convolution into another order.

Limits: kernels that exist for one type only (flash attention) keep their kind; memory that a smaller type sets free is not used.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from lumos.analyze.attribution import innermost
from lumos.analyze.flops import counted_operators
from lumos.analyze.task_class import bound_by_arithmetic
from lumos.changes.layout.measured_layout import rewriting
from lumos.changes.layout.operator_tasks import operator_tasks
from lumos.changes.layout.prices import Ratio, around
from lumos.changes.layout.rescale import KERNEL_FLOOR, RATES_INTERVAL, holding, model_ratio
from lumos.errors import LumosError
from lumos.graph.table import Kind
from lumos.operators.kernel_formats import rounds_to_tf32, type_by_name
from lumos.operators.shaped import convolution_work, elements, grouped_product, is_attention, is_recurrent, product
from lumos.segment.dimensions import shapes_of
from lumos.segment.weights import gradients
from lumos.vocabulary import DType, Phase

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lumos.changes.layout.measured_layout import MeasuredLayout
    from lumos.changes.layout.operator_tasks import OperatorWork
    from lumos.cost.cluster import Accelerator
    from lumos.operators.shaped import ShapedOperator
    from lumos.simulation.durations import Mask
    from lumos.trace.table import Int64, Job, Trace

#: Types of 16 bits, and those of 32.
HALF, SINGLE = (DType.BF16, DType.FP16), (DType.FP32, DType.TF32)
#: Operators that change the type of a tensor, and the nodes of autograd around them.
_CASTS = re.compile(r"aten::(to|_to_copy|copy_)$|(autograd::engine::evaluate_function: )?ToCopyBackward\d*$")
#: How a cast says to which type, among its arguments: PyTorch's numbers of types.
_TO = {"5": DType.FP16, "6": DType.FP32, "15": DType.BF16}
#: Half-width of the 80 % interval of a ratio of bytes, as a fraction.
BYTES_INTERVAL = 0.1


def computing(layout: MeasuredLayout, job: Job) -> DType | None:
    """The type in which most of the time of multiplications, convolutions and attention is spent; None where shapes do not show it."""
    graph = layout.segmentation.graph
    arithmetic = bound_by_arithmetic(graph)
    spent: Counter[DType] = Counter()
    beside: Counter[DType] = Counter()  # of kernels whose names do not say that they multiply
    for position, trace in enumerate(job.traces):
        for task, _, o in operator_tasks(layout.segmentation, position, trace).in_order(has_rate):
            dtype = type_of(o)
            if dtype is not None:
                rounded = dtype is DType.FP32 and rounds_to_tf32(graph.names[graph.name[task]])
                (spent if arithmetic[task] else beside)[DType.TF32 if rounded else dtype] += int(graph.duration[task])
    return next((found.most_common(1)[0][0] for found in (spent, beside) if found), None)


def type_of(o: ShapedOperator) -> DType | None:
    """The type of an operator's first tensor."""
    found = (DType.parse(name) for shape, name in zip(o.shapes, o.dtypes, strict=True) if shape and name)
    return next((dtype for dtype in found if dtype is not None), None)


def has_rate(o: ShapedOperator) -> bool:
    """Whether the rate of a number format decides what an operator takes: it multiplies, convolves or attends."""
    return (
        product(o) is not None or is_attention(o.name) or is_recurrent(o.name) or convolution_work(o) > 0 or grouped_product(o) is not None
    )


def heavy_ratio(o: ShapedOperator, old: DType, new: DType, accelerator: Accelerator) -> Ratio:
    """By what the time of a multiplication, a convolution or an attention is multiplied.

    Raises LumosError for a type that the device lacks.
    """
    for dtype in (old, new):
        check_rate(dtype, accelerator)
    ratio = model_ratio(_in_type(o, old), _in_type(o, new), accelerator, accelerator)
    return ratio or around(float(accelerator.peak_flops[old]) / float(accelerator.peak_flops[new]), RATES_INTERVAL)


def check_rate(dtype: DType, accelerator: Accelerator) -> None:
    """Raise LumosError for a type that the accelerator lacks."""
    if dtype not in accelerator.peak_flops:
        raise LumosError(f"--set precision: {accelerator.name} has no rate for {dtype}; it has {', '.join(accelerator.peak_flops)}")


def _in_type(o: ShapedOperator, dtype: DType) -> ShapedOperator:
    return o._replace(dtypes=tuple(dtype.value if shape else "" for shape in o.shapes))


def multiplications(layout: MeasuredLayout, job: Job, accelerator: Accelerator, old: DType, new: DType) -> MeasuredLayout:
    """The layout whose multiplications, convolutions and attention are in another type of as many bits."""
    prices = layout.prices.copy()
    products = _Products(layout, old, new, accelerator)
    for position, trace in enumerate(job.traces):
        flops = counted_operators(trace)
        for o, tasks, rows in operator_tasks(layout.segmentation, position, trace).by_operator():
            if has_rate(o) and type_of(o) in (HALF if old in HALF else SINGLE):
                multiplying, _ = products.of(tasks)
                prices.multiply(multiplying, products.ratio(o, flops, multiplying, rows))
        layout = rewriting(layout, position, shapes_of(trace).rows.tolist(), partial(_retyped, old, new))
    return replace(layout, prices=prices)


class _Products:
    """The kernels of a job that multiply in one type and are to do so in another, and by what their time is multiplied."""

    def __init__(self, layout: MeasuredLayout, old: DType, new: DType, accelerator: Accelerator) -> None:
        graph = layout.segmentation.graph
        self.old, self.new, self.accelerator, self.duration = old, new, accelerator, graph.duration
        self.arithmetic = bound_by_arithmetic(graph)
        self.as_wanted = graph.named(lambda name: type_by_name(name) is new)

    def of(self, kernels: Int64) -> tuple[Int64, Int64]:
        """Of the kernels of an operator those that multiply in the old type, and those that do not multiply, such as a library's that
        bring a tensor into another order. Where no name says that a kernel multiplies, all may."""
        multiplies = self.arithmetic[kernels]
        if not multiplies.any():
            return kernels, kernels[:0]
        return kernels[multiplies & ~self.as_wanted[kernels]], kernels[~multiplies]

    def ratio(self, o: ShapedOperator, flops: Mapping[int, tuple[str, float]], kernels: Int64, rows: Int64) -> Ratio:
        """By what the time of an operator's kernels is multiplied. flops: of calls, by row, as `counted_operators` gives them. rows: of
        the operator's calls."""
        ratio, calls = heavy_ratio(o, self.old, self.new, self.accelerator), np.unique(rows).tolist()
        known = [flops[row][1] for row in calls if row in flops]
        if not convolution_work(o) or not known:
            return ratio
        least_ns = 1e9 * sum(known) / len(known) / float(self.accelerator.peak_flops[self.old])
        return at_lower_rate(ratio, least_ns, float(self.duration[kernels].sum()) / len(calls))


def at_lower_rate(ratio: Ratio, least_ns: float, measured_ns: float) -> Ratio:
    """By what the time of a convolution is multiplied where the peak rate falls by `ratio`. least_ns: its arithmetic at the peak rate
    before, ns; measured_ns: what it took. The rule is that of kernels far from any that was measured (`Factor.carried`)."""
    if ratio.best <= 1 or not 0 < least_ns < measured_ns:
        return ratio
    return ratio._replace(modelled=least_ns).carried(measured_ns)


def _retyped(old: DType, new: DType, _: ShapedOperator, o: ShapedOperator) -> ShapedOperator:
    """An operator whose tensors of the type `old` have the type `new`."""
    return o._replace(dtypes=tuple(new.profiler_name if DType.parse(name) is old else name for name in o.dtypes))


def _uncalled(_: ShapedOperator, o: ShapedOperator) -> ShapedOperator:
    """An operator that is no longer called: it has no inputs."""
    return o._replace(shapes=((),) * len(o.shapes))


def with_single_tensors(layout: MeasuredLayout, job: Job, accelerator: Accelerator, old: DType, new: DType) -> MeasuredLayout:
    """The layout of a job that computes with 16 bits, in which all tensors have 32."""
    graph, segmentation = layout.segmentation.graph, layout.segmentation
    prices = layout.prices.copy()
    owners = segmentation.owners
    update = segmentation.phase == Phase.OPTIMIZER
    products = _Products(layout, old, new, accelerator)
    for position, trace in enumerate(job.traces):
        work, flops = operator_tasks(segmentation, position, trace), counted_operators(trace)
        for o, same, calls in work.by_operator():
            if has_rate(o) and type_of(o) in HALF:
                multiplying, same = products.of(same)
                prices.multiply(multiplying, products.ratio(o, flops, multiplying, calls))
            if (by := _wider(o)) != 1:
                prices.multiply(same, around(by, BYTES_INTERVAL, KERNEL_FLOOR))
        mine = owners.of_rank(position)
        if any(g.width < DType.FP32.bytes for g in gradients(segmentation, position, trace)):
            facts = graph.collectives
            exchanges = np.intersect1d(facts.task, mine) if facts is not None else mine[:0]
            kernels = mine[update[mine] & owners.on_device[mine] & (graph.kind[mine] == Kind.KERNEL)]
            unseen = np.setdiff1d(kernels, work.of(lambda o: any(o.shapes)))
            for more in (exchanges, unseen):
                prices.multiply(more, around(2.0, BYTES_INTERVAL, KERNEL_FLOOR))
        gone = _inside_casts(layout, position, trace, work)
        prices.leave_out(gone)
        for half in HALF:
            layout = rewriting(layout, position, shapes_of(trace).rows.tolist(), partial(_retyped, half, DType.FP32))
        layout = rewriting(layout, position, set(work.rows[gone[work.tasks]].tolist()), _uncalled)
    return replace(layout, prices=prices)


def _wider(o: ShapedOperator) -> float:
    """By what the bytes of an operator's tensors are multiplied where those of 16 bits take 32."""
    typed = [(elements(shape), DType.parse(name)) for shape, name in zip(o.shapes, o.dtypes, strict=True) if shape and name]
    before = sum(n * dtype.bytes for n, dtype in typed if dtype is not None)
    after = sum(n * (DType.FP32 if dtype in HALF else dtype).bytes for n, dtype in typed if dtype is not None)
    return after / before if before else 1.0


def _inside_casts(layout: MeasuredLayout, position: int, trace: Trace, work: OperatorWork) -> Mask:
    """The tasks of a rank that cast between 16 and 32 bits, with all that the CPU does around them, bool[n]. work: of the rank."""
    graph, owners = layout.segmentation.graph, layout.segmentation.owners
    concrete = trace.dense("Concrete Inputs")
    calls = {row: o for _, row, o in work.in_order(lambda o: _CASTS.match(o.name))}
    casts = [row for row, o in sorted(calls.items()) if _is_cast(o, trace.strings[concrete[row]] if concrete[row] >= 0 else "")]
    spans = np.array(holding(trace, casts, lambda name: _CASTS.match(name) is not None), np.int64)
    out = np.zeros(len(graph), bool)
    mine = owners.of_rank(position)
    known = mine[(graph.event[mine] >= 0) & ~owners.on_device[mine]]
    out[known[innermost(trace, spans, graph.event[known].astype(np.int64)) >= 0]] = True
    device = mine[owners.on_device[mine] & (owners.launch[mine] >= 0)]
    out[device[out[owners.launch[device]]]] = True
    return out


def _is_cast(o: ShapedOperator, concrete: str) -> bool:
    """Whether one of _CASTS casts between 16 and 32 bits. concrete: its arguments, as the profiler writes them."""
    typed = [DType.parse(name) for shape, name in zip(o.shapes, o.dtypes, strict=True) if shape and name]
    if o.name.endswith("copy_"):
        return len(typed) > 1 and {typed[0] in HALF, typed[1] in HALF} == {True, False} and typed[0] in (*HALF, *SINGLE)
    said = re.findall(r'"([^"]*)"', concrete)
    target = _TO.get(said[1]) if len(said) > 1 else None
    return bool(typed) and target is not None and (typed[0] in HALF) != (target in HALF) and typed[0] in (*HALF, *SINGLE)
