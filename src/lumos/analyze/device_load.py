"""How loaded a rank's devices are over time: the busy fraction of each millisecond, the length of the launch queue, and memory.

Busy fraction: the share of each millisecond, counted from the step's start, in which any device of the rank works (on a rank
without device work: any CPU operator or collective). Where a step lasts more than 100 s the bins are wider, so that a curve needs
no more memory however long the step is. Queue: the device tasks that have been launched and have not ended.

Memory is what the profiler recorded with `profile_memory=True`. In a notebook `lumos.utilization` and `lumos.memory` draw themselves.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.analyze.contents import memory_curves
from lumos.analyze.loop.steps import Members, members, step_names, step_times
from lumos.analyze.task_class import working
from lumos.choices import check_step
from lumos.drawings import Curve
from lumos.intervals import Union, covered, union
from lumos.result import Rows, Shown
from lumos.trace.source import Source, as_job
from lumos.trace.table import unique
from lumos.units import quantity, with_unit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from lumos.simulation.timeline import Timeline
    from lumos.trace.table import Int64

#: Width of a bin, ns, and the most bins of a curve: those of a step of 100 s. The bins of a longer step are wider.
BIN_NS = 1_000_000
MOST_BINS = 100_000


class BusyCurves(NamedTuple):
    """The busy fraction of every step in one run: each float64[⌈step / bin_ns⌉]. bin_ns is a whole number of milliseconds."""

    bin_ns: int
    steps: tuple[NDArray[np.float64], ...]


def busy_curves(
    runs: Sequence[Timeline], owners: Members, intervals: Sequence[tuple[Int64, Int64]] | None = None
) -> tuple[BusyCurves, ...]:
    """The busy fraction of every step of `owners` in each run, with bins of one width so that the runs can be compared.

    intervals: where each step begins and ends in each run, int64[steps] ns; by default as its own rank completes it.
    """
    bounds = intervals or [step_times(run, owners).rank_intervals() for run in runs]
    step_rank = owners.step_rank()
    computes, communicates = working(owners)
    works = computes | communicates
    width = bin_width(max((int((end - start).max(initial=0)) for start, end in bounds), default=0))
    out = []
    for run, (start, end) in zip(runs, bounds, strict=True):
        busy = {int(rank): _busy(run, owners.of_rank(int(rank)), works) for rank in unique(step_rank)}
        steps = range(len(owners.steps))
        out.append(BusyCurves(width, tuple(curve(busy[int(step_rank[i])], int(start[i]), int(end[i]), width) for i in steps)))
    return tuple(out)


def bin_width(longest: int) -> int:
    """The width of the bins, ns, where the longest step lasts `longest` ns: whole milliseconds, so few that MOST_BINS suffice."""
    return BIN_NS * max(-(-longest // (BIN_NS * MOST_BINS)), 1)


def curve(busy: Union, start: int, end: int, bin_ns: int = BIN_NS) -> NDArray[np.float64]:
    """The share of each bin from `start` that is busy before `end`, float64[⌈(end − start) / bin_ns⌉]."""
    bins = -(-(end - start) // bin_ns)
    edges = np.minimum(start + bin_ns * np.arange(bins + 1), end)
    return np.diff(covered(busy, edges)) / bin_ns


def busy_difference(a: NDArray[np.float64], b: NDArray[np.float64]) -> float | None:
    """Mean absolute difference of two curves; after its end the shorter one counts as idle. None where both are empty."""
    bins = max(len(a), len(b))
    if bins == 0:
        return None
    padded = [np.pad(c, (0, bins - len(c))) for c in (a, b)]
    return float(np.abs(padded[0] - padded[1]).mean())


def _busy(timeline: Timeline, tasks: Int64, works: NDArray[np.bool_]) -> Union:
    tasks = tasks[works[tasks]]
    return union(timeline.start[tasks], timeline.end[tasks])


class QueueLength(NamedTuple):
    """The length of the queue during a step: time-weighted mean and maximum; None where nothing was launched."""

    mean: float | None
    maximum: int | None


def queue_steps(timeline: Timeline, owners: Members, rank: int, stream: int | None = None) -> tuple[Int64, Int64]:
    """The queue length of a rank (by position) as a step function: ascending times, int64[k] ns, and the length from each time
    on, int64[k]. A device task counts from the end of its launch call to its own end. stream: only this one, by its processor."""
    launched = (owners.rank == rank) & (owners.launch >= 0)
    tasks = np.flatnonzero(launched if stream is None else launched & (owners.graph.processor == stream))
    time = np.concatenate((timeline.end[owners.launch[tasks]], timeline.end[tasks]))
    change = np.repeat(np.array([1, -1], np.int64), len(tasks))
    order = np.argsort(time, kind="stable")
    return time[order], np.cumsum(change[order])


def queue_lengths(timeline: Timeline, owners: Members | None = None) -> tuple[QueueLength, ...]:
    """How much launched work the devices of a rank had in their queues, on average and at most, in each of its steps of the job."""
    owners = owners or members(timeline.graph)
    start, end = step_times(timeline, owners).job_intervals()
    step_rank = owners.step_rank()
    queues = {int(rank): queue_steps(timeline, owners, int(rank)) for rank in unique(step_rank)}
    return tuple(queue_during(*queues[int(step_rank[i])], int(start[i]), int(end[i])) for i in range(len(owners.steps)))


def queue_during(time: Int64, length: Int64, start: int, end: int) -> QueueLength:
    """The queue from start to end, ns. time, length: what `queue_steps` gives."""
    if len(time) == 0 or end <= start:
        return QueueLength(None, None)
    first, last = np.searchsorted(time, (start, end), side="right")
    lengths = np.concatenate(([length[first - 1] if first else 0], length[first:last]))
    edges = np.concatenate(([start], time[first:last], [end]))
    return QueueLength(float((lengths * np.diff(edges)).sum() / (end - start)), int(lengths.max()))


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
