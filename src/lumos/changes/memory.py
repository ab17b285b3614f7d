"""What lives in a device's memory at the recorded peak, by role, and what would under other sizes.

A recording with allocations (`profile_memory=True`) says how much is allocated at any time, and which blocks came and went meanwhile. What
was there before its first operator are the weights, whose sizes the gradients tell, and the state of the optimizer. What else lives at the
peak was made by operators: each block becomes as many times as large as what its operator makes. Where the peak lies may move and blocks
are rounded, so the result is an estimate.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.changes.answer import Answer, PeakMemory
from lumos.graph.places import innermost
from lumos.operators.shaped import elements, result_shapes
from lumos.operators.table import Shape, axis_rule
from lumos.segment.program import axes_of
from lumos.segment.rank import recordings_of
from lumos.trace.table import Category
from lumos.vocabulary import Grade, Phase

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from lumos.segment.rank import RankRecording
    from lumos.segment.segment import Segmentation
    from lumos.segment.sizes import Resized
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
