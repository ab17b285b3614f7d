"""What a step of a measured job computes, before and after a change: its tokens, its model FLOPs and the rate of the device that runs it.

Model FLOPs are 6 for each weight and token, and those of attention, of which a causal one does half; nothing that is computed again
counts. The rate is that of the device for the type in which the job multiplies.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lumos.changes.answer import StepWork
from lumos.changes.layout.precision import computing
from lumos.changes.layout.rescale import single
from lumos.changes.machine import has_device
from lumos.changes.settings import counts
from lumos.errors import LumosError
from lumos.segment.rank import recordings_of
from lumos.segment.sizes import Resized, sizes
from lumos.vocabulary import DType, Phase, Precision

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lumos.changes.changes import Changes
    from lumos.changes.layout.measured_layout import MeasuredLayout
    from lumos.segment.sizes import Sizes
    from lumos.trace.table import Job


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
