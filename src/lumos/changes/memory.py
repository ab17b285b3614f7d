"""What a step computes and what lives in a device's memory at the recorded peak, by role, before a change and after it.

A recording with allocations (`profile_memory=True`) says how much is allocated at any time, and which blocks came and went meanwhile. What
was there before its first operator are the weights, whose sizes the gradients tell, and the state of the optimizer. What else lives at the
peak was made by operators: each block becomes as many times as large as what its operator makes. Where the peak lies may move and blocks
are rounded, so the result is an estimate.

A step computes tokens, and model FLOPs at the rate of the device that runs it. Model FLOPs are 6 for each weight and token, and those of
attention, of which a causal one does half; nothing that is computed again counts. The rate is that of the device for the type in which the
job multiplies.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.changes.answer import Answer, PeakMemory, StepWork
from lumos.changes.layout.precision import computing
from lumos.changes.layout.rescale import single
from lumos.changes.machine import has_device
from lumos.changes.settings import counts
from lumos.errors import LumosError
from lumos.graph.places import innermost
from lumos.operators.shaped import elements, result_shapes
from lumos.operators.table import Shape, axis_rule
from lumos.segment.program import axes_of
from lumos.segment.rank import recordings_of
from lumos.segment.sizes import Resized, sizes
from lumos.trace.table import Category
from lumos.vocabulary import DType, Grade, Phase, Precision

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from lumos.changes.changes import Changes
    from lumos.changes.layout.measured_layout import MeasuredLayout
    from lumos.segment.rank import RankRecording
    from lumos.segment.segment import Segmentation
    from lumos.segment.sizes import Sizes
    from lumos.trace.table import Int64, Job, Trace

class AtPeak(NamedTuple):
    """A device's memory at its peak. total: bytes. made_by: rows of the allocations that live then, since the first operator.
    bytes: of each."""

    total: int
    made_by: Int64
    bytes: Int64


class RoleBytes(NamedTuple):
    """Bytes by role."""

    parameters: float
    gradients: float
    optimizer: float
    activations: float


def at_peak(trace: Trace) -> AtPeak | None:
    """The memory of the device of which most is allocated at once; None where the trace has no allocations with their totals."""
    rows = np.flatnonzero(trace.is_any(Category.MEMORY))
    total = trace.dense("Total Allocated")[rows]
    rows = rows[total >= 0]
    if not len(rows):
        return None
    rows = rows[np.argsort(trace.start[rows], kind="stable")]
    kind, device = trace.dense("Device Type")[rows], trace.dense("Device Id")[rows]
    total = trace.dense("Total Allocated")[rows]
    on_device = kind != 0 if (kind != 0).any() else kind == 0
    top = int(np.flatnonzero(on_device)[total[on_device].argmax()])
    before = rows[: top + 1][(kind[: top + 1] == kind[top]) & (device[: top + 1] == device[top])]
    live: dict[int, int] = {}
    for row, address, count in zip(before.tolist(), *(trace.dense(key)[before].tolist() for key in ("Addr", "Bytes")), strict=True):
        if count > 0:
            live[address] = row
        else:
            live.pop(address, None)
    began = trace.start[trace.is_any(Category.OPERATOR)].min(initial=trace.start[rows[top]])
    made_by = np.array(sorted(row for row in live.values() if trace.start[row] >= began), np.int64)
    return AtPeak(int(total[top]), made_by, trace.dense("Bytes")[made_by])


def with_memory(
    answered: Answer,
    job: Job,
    segmented: Callable[[], Segmentation],
    resized: Sequence[Resized | None],
    layers: float = 1.0,
    known: bool = True,
) -> Answer:
    """The answer with the memory of the rank that needs most, before and after the change. resized: by rank, the change of its sizes; None
    where they stay. layers: how many times as many layers. known: whether the change moves memory in no other way; else only that of the
    base is said."""
    best: tuple[RoleBytes, RoleBytes] | None = None
    peaks = [at_peak(trace) for trace in job.traces]
    ranks = recordings_of(segmented(), job) if any(peaks) else ()
    for rank, peak, change in zip(ranks, peaks, resized, strict=False):
        if peak is not None and (best is None or peak.total > sum(best[0])):
            best = _parts(rank, peak, None, 1.0), _parts(rank, peak, change, layers)
    if best is None:
        return answered
    before, after = map(_peak, best)
    return replace(
        answered,
        base=replace(answered.base, memory=before),
        outcome=replace(answered.outcome, memory=after if known else answered.outcome.memory),
    )


def _peak(parts: RoleBytes) -> PeakMemory:
    of_weights, of_gradients, of_optimizer, of_activations = (round(part) for part in parts)
    return PeakMemory(of_weights, of_gradients, of_optimizer, of_activations, round(sum(parts)), grade=Grade.LIMITED)


def _parts(rank: RankRecording, peak: AtPeak, change: Resized | None, layers: float) -> RoleBytes:
    """What lives at the peak by role, after a change of sizes and with so many times the layers."""
    trace, of_gradients = rank.trace, rank.gradients
    were = sum(elements(g.shape) * g.width for g in of_gradients)
    grown = _weights_grown(rank.weights(), rank.weights(change), layers)
    sizes_of_gradients = {_rounded(elements(g.shape) * g.width) for g in of_gradients}
    by_role: defaultdict[str, float] = defaultdict(float)
    units, labels = rank.units, rank.labels
    unit_of = {row: i for i, row in enumerate(units.row.tolist())}
    inside = innermost(trace, units.row, peak.made_by).tolist()
    axes = axes_of(trace)
    makers = axes.of_row[np.maximum(innermost(trace, axes.rows, peak.made_by), 0)].tolist() if len(axes.rows) else [-1] * len(inside)
    for row, maker, count in zip(inside, makers, peak.bytes.tolist(), strict=True):
        label = labels[unit_of[row]] if row >= 0 else None
        if label is not None and label.phase == Phase.OPTIMIZER:
            by_role["optimizer"] += count * grown
        elif label is not None and label.phase == Phase.BACKWARD and _rounded(count) in sizes_of_gradients:
            by_role["gradients"] += count * grown
        else:
            times = layers if label is not None and label.layer >= 0 else 1.0
            larger = _larger(axes.operators[maker], change.operator(maker)) if change is not None and maker >= 0 else 1.0
            by_role["activations"] += count * times * larger
    older = max(peak.total - int(peak.bytes.sum()), 0)
    parameters = min(were, older) if of_gradients else older
    return RoleBytes(parameters * grown, by_role["gradients"], (older - parameters) * grown + by_role["optimizer"], by_role["activations"])


def _weights_grown(before: Mapping[int, int], after: Mapping[int, int], layers: float) -> float:
    """How many times as many elements the weights have. before, after: by layer, -1 outside the layers."""
    was = sum(before.values())
    return sum(n * (layers if layer >= 0 else 1.0) for layer, n in after.items()) / was if was else 1.0


def _rounded(count: int) -> int:
    """Bytes as the caching allocator of PyTorch rounds a block (`kMinBlockSize` of c10/cuda/CUDACachingAllocator.h)."""
    return -(-count // 512) * 512


def _larger(before: object, after: object) -> float:
    """How many times as much an operator makes."""
    was, now = (_made(getattr(o, "name", ""), getattr(o, "shapes", ())) for o in (before, after))
    return now / was if was else 1.0


def _made(name: str, shapes: Sequence[Shape]) -> int:
    """How many elements an operator makes: by the letters of its table, else as many as its largest input has."""
    made = result_shapes(name, tuple(shapes)) if axis_rule(name, tuple(shapes)) is not None else None
    return elements(made[0]) if made else max(map(elements, shapes), default=0)


def work(measured: MeasuredLayout, job: Job, changes: Changes, resized: Mapping[str, int], shared: float) -> tuple[StepWork, StepWork]:
    """The work of a step of the first rank, before and after the change; unknown where shapes or the backward pass are missing. measured:
    the layout before the change. resized: its new sizes. shared: by how many ranks the work is shared that one did."""
    segmentation, old = measured.segmentation, sizes(job.traces[0])
    if not old.micro_batch or not any(p.label.phase == Phase.BACKWARD for p in segmentation.pieces):
        return StepWork(), StepWork()
    settings = counts(changes.settings)
    measured_microbatches = 1 + max(p.label.microbatch for p in segmentation.pieces)
    before, after = _peaks(measured, job, changes)
    count = segmentation.layers

    def work_of(s: Sizes, layer_count: int, microbatch_count: int, ranks: float, peak: float | None) -> StepWork:
        by_layer = recordings_of(segmentation, job)[0].weights(Resized(job.traces[0], old, s))
        inner, outer = sum(v for layer, v in by_layer.items() if layer >= 0), by_layer.get(-1, 0)
        tokens = round(s.micro_batch * s.seq * microbatch_count / ranks)
        parameters = outer + (inner * layer_count / count if count else 0)
        attended = 6.0 * layer_count * s.seq * s.heads * s.head_dim  # 12 · layers · seq · width for a token, half of it as causal
        return StepWork(tokens, tokens * (6.0 * parameters + attended), peak, s.micro_batch * microbatch_count / ranks)

    return work_of(old, count, measured_microbatches, 1, before), work_of(
        old._replace(**resized), settings.get("layers", count), settings.get("microbatches", measured_microbatches), shared, after
    )


def _peaks(measured: MeasuredLayout, job: Job, changes: Changes) -> tuple[float | None, float | None]:
    """FLOP/s of the device that the job ran on, and of the one that it is to run on, for dense matrices of the type in which it multiplies
    there; None where that is not known."""
    graph = measured.segmentation.graph
    dtype = computing(measured, job) if has_device(graph) else None
    if dtype is None:
        return None, None
    machine = changes.machine(job, graph)
    try:
        old, new = machine.recorded.accelerator, machine.goal.accelerator
    except LumosError:
        return None, None
    wanted = changes.settings.get("precision")
    later = Precision(wanted).multiplications if wanted else single(new) if dtype is DType.TF32 else dtype
    return old.peak_flops.get(dtype), new.peak_flops.get(later)
