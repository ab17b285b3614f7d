"""Work that no device of its kind does in so little time: multiplications, convolutions and attention above the peak rate.

A factor on durations may ask for such a step. Then the step would take longer by what is missing to the peak rate of the number format in
which the operator computes; in fp32 that of tf32 where the device has it, since shapes do not show which of the two runs. Work that is left
out, or takes no time, is taken as not needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from lumos.analyze.attribution import innermost
from lumos.analyze.flops import counted_operators
from lumos.analyze.loop.steady import typical_position
from lumos.analyze.loop.steps import members
from lumos.graph.evidence import NEGLIGIBLE
from lumos.graph.table import Evidence
from lumos.segment.dimensions import Shapes
from lumos.units import duration
from lumos.vocabulary import DType, Grade
from lumos.whatif.layout.precision import type_of

if TYPE_CHECKING:
    from lumos.cost.cluster import Accelerator
    from lumos.graph.table import Graph
    from lumos.trace.table import Int64, Job, Trace


def above_peak_rate(graph: Graph, altered: Graph, job: Job, accelerator: Accelerator | None, step_s: float) -> tuple[Evidence, ...]:
    """The finding that work of the typical step takes less time than the device needs at its peak rate; () where it is negligible.

    altered: `graph` with other durations. accelerator: on which the job runs; None where that is not known. step_s: the measured step,
    of which the finding gives a share, seconds.
    """
    owners = members(graph)
    shorter = owners.on_device & (owners.launch >= 0) & (altered.duration < graph.duration)
    if accelerator is None or not shorter.any():
        return ()
    step = owners.job[typical_position(owners)]
    missing = 0.0
    for part in step.parts:
        tasks = owners.tasks(part)
        tasks = tasks[owners.on_device[tasks] & (owners.launch[tasks] >= 0)]
        if shorter[tasks].any():
            trace = job.traces[int(owners.rank[tasks[0]])]
            calls = graph.event[owners.launch[tasks]].astype(np.int64)
            missing = max(missing, _missing_ns(trace, calls, (graph.duration[tasks], altered.duration[tasks]), accelerator))
    if missing <= NEGLIGIBLE * 1e9 * step_s:
        return ()
    message = (
        f"the changed step has multiplications, convolutions or attention above the peak rate of {accelerator.name}: at that rate they"
        f" take {duration(missing)} a step more, which the interval includes"
    )
    return (Evidence("above-peak-rate", message, Grade.LIMITED, min(missing / (1e9 * step_s), 1.0)),)


def _missing_ns(trace: Trace, calls: Int64, times: tuple[Int64, Int64], accelerator: Accelerator) -> float:
    """By how much the changed work of a rank's step is shorter than at the peak rate, ns. calls: the row that launches each kernel. times:
    of the kernels, ns, as measured and as changed. Work that was measured above the peak rate is not what its shapes say: it is skipped."""
    counted, shapes = counted_operators(trace), Shapes(trace)
    rows = innermost(trace, np.array(sorted(counted), np.int64), calls)
    missing = 0.0
    for row in np.unique(rows[rows >= 0]).tolist():
        before, after = (int(time[rows == row].sum()) for time in times)
        operator = shapes[row]
        rate = _peak(type_of(operator), accelerator) if operator is not None else None
        least = 1e9 * counted[row][1] / rate if rate else 0.0
        if before >= least and after:
            missing += max(least - after, 0.0)
    return missing


def _peak(dtype: DType | None, accelerator: Accelerator) -> float | None:
    """The most FLOP/s on tensors of a type; None where that is not known."""
    types = (DType.FP32, DType.TF32) if dtype is DType.FP32 else (dtype,)
    return max((accelerator.peak_flops[t] for t in types if t in accelerator.peak_flops), default=None)
