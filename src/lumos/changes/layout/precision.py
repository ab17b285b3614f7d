"""Another number format in a measured job: which kernels then work in it, and what they take.

Three changes are told apart by the types in which the recording multiplies and has its weights:

    fp32 ↔ tf32, fp16 ↔ bf16    only the rate of multiplications, convolutions and attention changes
    fp32, tf32 → bf16, fp16     as under `torch.autocast`: weights and optimizer stay, see `autocast`
    bf16, fp16 → fp32, tf32     every tensor of 16 bits takes 32, and the casts between the two fall away; where weights and gradients
                                have 16 bits as well, so do the optimizer's work and the exchanges

What operators of other types then take is in `reprice`.

Limits: kernels that exist for one type only (flash attention) keep their kind; memory that a smaller type sets free is not used.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from lumos.analyze.task_class import bound_by_arithmetic
from lumos.changes.layout.autocast import autocast
from lumos.changes.layout.measured_layout import rewriting
from lumos.changes.layout.prices import GONE, around
from lumos.changes.layout.regroup import regroup
from lumos.changes.layout.rescale import BYTES_INTERVAL, KERNEL_FLOOR, holding
from lumos.changes.settings import SETTINGS, Way
from lumos.errors import LumosError
from lumos.graph.places import innermost
from lumos.graph.table import Kind
from lumos.operators.kernels import rounds_to_tf32
from lumos.operators.shaped import has_rate, type_of
from lumos.segment.program import shapes_of
from lumos.segment.rank import recordings_of
from lumos.trace.table import excluding
from lumos.vocabulary import DType, Phase, Precision

if TYPE_CHECKING:
    from lumos.changes.layout.measured_layout import MeasuredLayout
    from lumos.changes.layout.rescale import Devices
    from lumos.cost.cluster import Accelerator
    from lumos.operators.shaped import ShapedOperator
    from lumos.segment.rank import RankRecording
    from lumos.simulation.durations import Mask
    from lumos.trace.table import Job

#: Types of 16 bits, and those of 32.
HALF, SINGLE = (DType.BF16, DType.FP16), (DType.FP32, DType.TF32)
#: Operators that change the type of a tensor, and the nodes of autograd around them.
_CASTS = re.compile(r"aten::(to|_to_copy|copy_)$|(autograd::engine::evaluate_function: )?ToCopyBackward\d*$")
#: How a cast says to which type, among its arguments: PyTorch's numbers of types.
_TO = {"5": DType.FP16, "6": DType.FP32, "15": DType.BF16}


def computing(layout: MeasuredLayout, job: Job) -> DType | None:
    """The type in which most of the time of multiplications, convolutions and attention is spent; None where shapes do not show it."""
    graph = layout.segmentation.graph
    arithmetic = bound_by_arithmetic(graph)
    spent: Counter[DType] = Counter()
    beside: Counter[DType] = Counter()  # of kernels whose names do not say that they multiply
    for rank in recordings_of(layout.segmentation, job):
        for task, _, o in rank.work.in_order(has_rate):
            dtype = type_of(o)
            if dtype is not None:
                rounded = dtype is DType.FP32 and rounds_to_tf32(graph.names[graph.name[task]])
                (spent if arithmetic[task] else beside)[DType.TF32 if rounded else dtype] += int(graph.duration[task])
    return next((counted.most_common(1)[0][0] for counted in (spent, beside) if counted), None)


def in_precision(layout: MeasuredLayout, job: Job, devices: Devices, wanted: str) -> MeasuredLayout:
    """The layout in another number format. devices: on which the job ran and is to run.

    Raises LumosError for a job on CPUs, where shapes do not show in which type the job multiplies, where that is none of 16 or 32 bits, and
    for a format that the device lacks.
    """
    SETTINGS["precision"].check_for(Way.BLOCKS, wanted)
    new = Precision(wanted).multiplications
    recorded, accelerator = devices
    if accelerator is None or recorded is None:
        raise LumosError("--set precision: the trace of a job on CPUs does not show how fast its cores compute in another type")
    old = computing(layout, job)
    if old is None:
        raise LumosError(
            f"--set precision: {job.traces[0].path} has no multiplications with shapes and types, so it does not show in which type it"
            " computes; record with record_shapes=True"
        )
    if old not in (*HALF, *SINGLE):
        raise LumosError(f"--set precision: the job multiplies in {old}, and only changes between 16 and 32 bits are made on its trace")
    _check_rate(new, accelerator)
    if old is DType.TF32 and old not in accelerator.peak_flops:
        old = DType.FP32
    _check_rate(old, recorded)
    if old == new:
        return replace(layout, changes=(*layout.changes, f"precision = {wanted} (as measured)"))
    casts = old in SINGLE and new in HALF
    changed = autocast(layout, job, accelerator, new) if casts else _in_type(layout, job, old, new)
    how = ", under autocast" if casts else ""
    return replace(changed, changes=(*layout.changes, f"precision = {wanted} (measured: {old}{how})"))


def _check_rate(dtype: DType, accelerator: Accelerator) -> None:
    """Raise LumosError for a type that the accelerator lacks."""
    if dtype not in accelerator.peak_flops:
        raise LumosError(f"--set precision: {accelerator.name} has no rate for {dtype}; it has {', '.join(accelerator.peak_flops)}")


def _in_type(layout: MeasuredLayout, job: Job, old: DType, new: DType) -> MeasuredLayout:
    """The layout of a job whose tensors of as many bits as `old` have the type `new`."""
    after, becomes = layout, partial(_retyped, HALF if old in HALF else SINGLE, new)
    for position, trace in enumerate(job.traces):
        after = rewriting(after, position, shapes_of(trace).rows.tolist(), becomes)
    return after if old.bytes == new.bytes else _without_casts(after, job)


def _retyped(old: tuple[DType, ...], new: DType, _: ShapedOperator, o: ShapedOperator) -> ShapedOperator:
    """An operator whose tensors of the types `old` have the type `new`, in which it multiplies as well."""
    name = new.value if has_rate(o) else new.profiler_name
    return o._replace(dtypes=tuple(name if DType.parse(dtype) in old else dtype for dtype in o.dtypes))


def _uncalled(_: ShapedOperator, o: ShapedOperator) -> ShapedOperator:
    """An operator that is no longer called: it has no inputs."""
    return o._replace(shapes=((),) * len(o.shapes))


def _without_casts(layout: MeasuredLayout, job: Job) -> MeasuredLayout:
    """The layout of a job whose tensors had 16 bits and have 32: it casts none, and its optimizer's work and exchanges have as many as the
    gradients."""
    graph, segmentation, prices = layout.segmentation.graph, layout.segmentation, layout.prices.copy()
    owners, update = segmentation.owners, segmentation.phase == Phase.OPTIMIZER
    for rank in recordings_of(segmentation, job):
        work, mine = rank.work, rank.tasks
        if any(g.width < DType.FP32.bytes for g in rank.gradients):
            facts = graph.collectives
            rows = facts.rows_of(mine).tolist() if facts is not None else []
            layout = regroup(layout, rows, lambda before: (before.of(2.0),))
            kernels = mine[update[mine] & owners.on_device[mine] & (graph.kind[mine] == Kind.KERNEL)]
            unseen = excluding(kernels, work.of(lambda o: any(o.shapes)))
            prices.multiply(unseen, around(2.0, BYTES_INTERVAL, KERNEL_FLOOR))
        gone = _inside_casts(rank)
        prices.multiply(gone, GONE)
        layout = rewriting(layout, rank.position, set(work.rows[gone[work.tasks]].tolist()), _uncalled)
    return replace(layout, prices=prices)


def _inside_casts(rank: RankRecording) -> Mask:
    """The tasks of a rank that cast between 16 and 32 bits, with all that the CPU does around them, bool[n]."""
    owners, trace, mine = rank.segmentation.owners, rank.trace, rank.tasks
    graph = owners.graph
    concrete = trace.dense("Concrete Inputs")
    calls = {row: o for _, row, o in rank.work.in_order(lambda o: _CASTS.match(o.name))}
    casts = [row for row, o in sorted(calls.items()) if _is_cast(o, trace.strings[concrete[row]] if concrete[row] >= 0 else "")]
    spans = np.array(holding(trace, casts, lambda name: _CASTS.match(name) is not None), np.int64)
    out = np.zeros(len(graph), bool)
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
