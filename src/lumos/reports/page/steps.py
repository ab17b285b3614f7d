"""The steps of a job as the report lists them: the time of each, and what its ranks did in that time; and how well the steps use the
devices, in the few figures that a report begins with: operations, matrix units, occupancy.

Every rank is broken down over the interval of the job's step, so that the parts of each rank, and their mean over the ranks, sum to
the step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from lumos.analyze.breakdown import breakdowns
from lumos.analyze.flops import achieved_flops
from lumos.analyze.loop.steps import step_times
from lumos.analyze.tables import tensor_cores
from lumos.analyze.task_class import bound_by_arithmetic
from lumos.cost.from_trace import accelerator_of
from lumos.errors import LumosError
from lumos.graph.table import Kind
from lumos.result import plain
from lumos.vocabulary import DType

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from lumos.analyze.loop.steps import Members
    from lumos.simulation.timeline import Timeline
    from lumos.trace.table import Job


def steps_shown(measured: Timeline, replayed: Timeline, owners: Members, job: Job | None = None) -> list[dict[str, Any]]:
    """Every step of the job, in order, in values that JSON can hold.

    basis: whether time_ns and replayed_ns are a period or a latency. latency_ns: as measured. begin_ns: its first start, from where the
    timeline of the step begins. once: what in it happens once; "" for nothing. counts: whether its time counts in the figures of the job.
    measured, replayed: its parts (`FourWay` and `NamedParts`), ns, as a mean over the ranks. ranks: the same for every rank. job: the
    recording; without it, data loading counts as the host's.
    """
    times = step_times(measured, owners)
    simulated = step_times(replayed, owners).job
    parts = {
        run: [{"four": row.breakdown._asdict(), "named": row.parts._asdict()} for row in breakdowns(timeline, owners, job)]
        for run, timeline in (("measured", measured), ("replayed", replayed))
    }
    out = []
    for step, time, other in zip(owners.job, times.job, simulated, strict=True):
        facts = {"name": plain(step.name), "basis": time.basis, "once": step.once, "counts": step.counts}
        lengths = {"time_ns": time.length_ns, "latency_ns": time.latency_ns, "replayed_ns": other.length_ns}
        lengths["begin_ns"] = time.begin_ns - time.since_ns
        means = {run: _mean([rows[i] for i in step.parts]) for run, rows in parts.items()}
        ranks = [{"rank": owners.steps[i].rank, **{run: rows[i] for run, rows in parts.items()}} for i in step.parts]
        out.append({**facts, **lengths, **means, "ranks": ranks})
    return out


def _mean(ranks: Sequence[dict[str, dict[str, int]]]) -> dict[str, dict[str, float]]:
    return {kind: {key: sum(rank[kind][key] for rank in ranks) / len(ranks) for key in keys} for kind, keys in ranks[0].items()}


#: The types of which a device's peak is taken, the first that it has: what MFU is said of by convention.
_PEAK_IN = (DType.BF16, DType.FP16)
#: A figure needs this share of the time that it is of: what is left out could be anything.
_ENOUGH = 0.8


class DeviceUse(NamedTuple):
    """Means over the ranks and the steps that count; None where the recording does not say. flops_per_s: of products, attention and
    convolutions, on a device. peak_flops_per_s: dense, of the device in 16 bits. matrix_units: of the time of all device work, as
    `lumos.analyze.tables.tensor_cores` counts it. occupancy: of the device's warps, the profiler's estimate, the mean over the time of
    kernels that have one."""

    flops_per_s: float | None
    peak_flops_per_s: float | None
    matrix_units: float | None
    occupancy: float | None


def device_use(timeline: Timeline, owners: Members, job: Job, counted: NDArray[np.bool_], steps_ns: float) -> DeviceUse:
    """The figures of a job. counted: bool[n], the tasks of the steps that count, which take `steps_ns` together."""
    graph = timeline.graph
    kernels = np.flatnonzero(counted & (graph.kind == Kind.KERNEL))
    time = (timeline.end - timeline.start)[kernels]
    counts = achieved_flops(timeline, owners, job) if len(kernels) else ()
    known = steps_ns > 0 and sum(row.time_ns for row in counts) >= _ENOUGH * time[bound_by_arithmetic(graph)[kernels]].sum()
    rate = sum(row.flops * row.calls for row in counts) / (1e-9 * steps_ns * len(graph.ranks)) if counts and known else None
    units = tensor_cores(timeline, owners)
    named = units.unknown_ns <= (1 - _ENOUGH) * time.sum()
    return DeviceUse(rate, _peak(job), units.share if named else None, _occupancy(owners, job, kernels, time))


def _peak(job: Job) -> float | None:
    try:
        peaks = accelerator_of(job.traces[0]).peak_flops
    except LumosError:
        return None
    return next((peaks[dtype] for dtype in _PEAK_IN if dtype in peaks), None)


def _occupancy(owners: Members, job: Job, kernels: NDArray[np.int64], time: NDArray[np.int64]) -> float | None:
    """The profiler writes 0 where it does not know, and, as it rounds down, for kernels of less than a warp on each multiprocessor."""
    percent, few = np.zeros(len(kernels)), np.zeros(len(kernels), bool)
    for position, trace in enumerate(job.traces):
        here = owners.rank[kernels] == position
        rows = owners.graph.event[kernels[here]]
        percent[here] = trace.dense("est. achieved occupancy %", 0)[rows]
        few[here] = trace.dense("warps per SM", 1)[rows] < 1
    return _known_mean(percent / 100, time, (percent > 0) | few)


def _known_mean(values: NDArray[np.float64], time: NDArray[np.int64], known: NDArray[np.bool_]) -> float | None:
    """The mean of the known values by time; None where what is known is too little of the time."""
    total = float(time[known].sum())
    return float((values * time)[known].sum()) / total if total and total >= _ENOUGH * time.sum() else None
