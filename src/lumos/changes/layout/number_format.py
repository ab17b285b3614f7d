"""`--set precision` on a measured job: from the type in which it multiplies to the change that another one means."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from lumos.changes.layout.autocast import autocast
from lumos.changes.layout.precision import HALF, SINGLE, check_rate, computing, multiplications, with_single_tensors
from lumos.changes.settings import SETTINGS, Way
from lumos.errors import LumosError
from lumos.vocabulary import DType, Precision

if TYPE_CHECKING:
    from lumos.changes.layout.measured_layout import MeasuredLayout
    from lumos.cost.cluster import Accelerator
    from lumos.trace.table import Job


def in_precision(
    layout: MeasuredLayout, job: Job, accelerator: Accelerator | None, wanted: str, recorded: Accelerator | None = None
) -> MeasuredLayout:
    """The layout in another number format (`precision`, `autocast`). accelerator: that the changed job runs on; None for a job on CPUs.
    recorded: that of the trace, where it is another. It says what the change is worth where the new one lacks the recorded format.

    Raises LumosError for a job on CPUs, where shapes do not show in which type the job multiplies, where that is none of 16 or 32 bits, and
    for a format that the device lacks.
    """
    SETTINGS["precision"].check_for(Way.BLOCKS, wanted)
    new = Precision(wanted).multiplications
    if accelerator is None:
        raise LumosError("--set precision: the trace of a job on CPUs does not show how fast its cores compute in another type")
    old = computing(layout, job)
    if old is None:
        raise LumosError(
            f"--set precision: {job.traces[0].path} has no multiplications with shapes and types, so it does not show in which type it"
            " computes; record with record_shapes=True"
        )
    if old not in (*HALF, *SINGLE):
        raise LumosError(f"--set precision: the job multiplies in {old}, and only changes between 16 and 32 bits are made on its trace")
    check_rate(new, accelerator)
    if old is DType.TF32 and old not in accelerator.peak_flops:
        old = DType.FP32
    if recorded is not None and old not in accelerator.peak_flops:
        accelerator = recorded
    if old == new:
        return replace(layout, changes=(*layout.changes, f"precision = {wanted} (as measured)"))
    if (old in HALF) == (new in HALF):
        changed = multiplications(layout, job, accelerator, old, new)
    else:
        changed = (autocast if new in HALF else with_single_tensors)(layout, job, accelerator, old, new)
    how = ", under autocast" if old in SINGLE and new in HALF else ""
    return replace(changed, changes=(*layout.changes, f"precision = {wanted} (measured: {old}{how})"))
