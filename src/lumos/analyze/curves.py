"""`lumos.utilization` and `lumos.memory`: how busy the devices were over a step, and how much memory was allocated over a recording.

The busy share is that of `analyze.device_load`: of each millisecond of a step of the job, the part in which any device of the rank works
(on a rank without device work: any operator or collective of the CPU). Memory is what the profiler recorded with `profile_memory=True`.
In a notebook both draw themselves.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from lumos.analyze.contents import memory_curves
from lumos.analyze.device_load import busy_curves
from lumos.analyze.loop.steps import Members, members, step_names, step_times
from lumos.choices import check_step
from lumos.drawings import Curve
from lumos.result import Rows, Shown
from lumos.trace.source import Source, as_job
from lumos.units import quantity, with_unit

if TYPE_CHECKING:
    from lumos.simulation.timeline import Timeline


@dataclass(frozen=True, slots=True, repr=False)
class Utilization(Shown):
    """How busy a rank's devices were during one step of the job.

    busy: the share of each bin of bin_ns, from the step's begin, in which any of them worked; of the last bin, which the step's end may
    cut, the share until then.
    mean_busy: their share of the whole step; None for a step that takes no time.
    """

    rank: int
    name: str
    duration_ns: int
    bin_ns: int
    mean_busy: float | None
    busy: tuple[float, ...]

    def curve(self) -> Curve:
        """The busy share over the step."""
        edges = [min(i * self.bin_ns, self.duration_ns) for i in range(len(self.busy) + 1)]
        said = "" if self.mean_busy is None else f"mean {self.mean_busy:.0%}".replace("%", " %")
        return Curve(f"rank {self.rank}, {self.name}", edges, self.busy, 1.0, "", said)


@dataclass(frozen=True, slots=True, repr=False)
class MemoryUse(Shown):
    """Memory that was allocated on one device over a recording.

    device: its name ("CPU", "device 0"). time_ns: of each allocation and free, from the first; allocated_bytes: what was allocated from
    then on.
    """

    rank: int
    device: str
    peak_bytes: int
    time_ns: tuple[int, ...]
    allocated_bytes: tuple[int, ...]

    def curve(self) -> Curve:
        """What was allocated over time."""
        peak = with_unit(self.peak_bytes, quantity("peak_bytes"))
        return Curve(
            f"rank {self.rank}, {self.device}", (*self.time_ns, self.time_ns[-1]), self.allocated_bytes, 0.0, "_bytes", f"peak {peak}"
        )


def utilization(timeline: Timeline, owners: Members | None = None, *, step: str | None = None) -> Rows[Utilization]:
    """How busy the devices of every rank were, in every step of the job, measured or simulated. Raises UsageError for an unknown step."""
    owners = owners or members(timeline.graph)
    wanted = None if step is None else check_step(step, step_names(timeline.graph))
    start, end = step_times(timeline, owners).job_intervals()
    (curves,) = busy_curves([timeline], owners, [(start, end)])
    rows = []
    for i, (own, busy) in enumerate(zip(owners.steps, curves.steps, strict=True)):
        length = int(end[i] - start[i])
        if wanted is None or own.name == wanted:
            mean = float(busy.sum()) * curves.bin_ns / length if length else None
            if len(busy):
                busy = np.append(busy[:-1], busy[-1] * curves.bin_ns / (length - (len(busy) - 1) * curves.bin_ns))
            rows.append(Utilization(own.rank, own.name, length, curves.bin_ns, mean, tuple(busy.tolist())))
    return Rows(rows)


def memory(job: Source, *, repair: bool = False) -> Rows[MemoryUse]:
    """The memory of every rank and device over a recording; none where the job was recorded without `profile_memory=True`.

    job: what `lumos.read` takes or returns. Raises TraceError as `lumos.read` does.
    """
    return Rows(
        MemoryUse(trace.rank, curve.name, curve.peak_bytes, tuple((curve.time - curve.time[0]).tolist()), tuple(curve.allocated.tolist()))
        for trace in as_job(job, repair=repair).traces
        for curve in memory_curves(trace)
    )
