"""How loaded a rank's devices are over time: the busy fraction of each millisecond, and the length of the launch queue.

Busy fraction: the share of each millisecond, counted from the step's start, in which any device of the rank works (on a rank
without device work: any CPU operator or collective). Queue: the device tasks that have been launched and have not ended.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.analyze.loop.steps import Members, step_times
from lumos.analyze.working import working
from lumos.intervals import Union, covered, union

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from lumos.simulate.timeline import Timeline
    from lumos.trace.table import Int64

#: Width of a bin, ns.
BIN_NS = 1_000_000


def busy_curves(timeline: Timeline, owners: Members, interval: tuple[Int64, Int64] | None = None) -> tuple[NDArray[np.float64], ...]:
    """The busy fraction of every step of `owners`, float64[⌈step / 1 ms⌉].

    interval: where each step begins and ends, int64[steps] ns; by default as its own rank completes it.
    """
    start, end = interval or step_times(timeline, owners).rank_intervals()
    step_rank = owners.step_rank()
    computes, communicates = working(owners)
    works = computes | communicates
    busy = {int(rank): _busy(timeline, owners.of_rank(int(rank)), works) for rank in np.unique(step_rank)}
    return tuple(curve(busy[int(step_rank[i])], int(start[i]), int(end[i])) for i in range(len(owners.steps)))


def curve(busy: Union, start: int, end: int) -> NDArray[np.float64]:
    """The share of each millisecond from `start` that is busy before `end`, float64[⌈(end − start) / 1 ms⌉]."""
    bins = -(-(end - start) // BIN_NS)
    edges = np.minimum(start + BIN_NS * np.arange(bins + 1), end)
    return np.diff(covered(busy, edges)) / BIN_NS


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


def queue_steps(timeline: Timeline, owners: Members, rank: int) -> tuple[Int64, Int64]:
    """The queue length of a rank (by position) as a step function: ascending times, int64[k] ns, and the length from each time
    on, int64[k]. A device task counts from the end of its launch call to its own end."""
    tasks = np.flatnonzero((owners.rank == rank) & (owners.launch >= 0))
    time = np.concatenate((timeline.end[owners.launch[tasks]], timeline.end[tasks]))
    change = np.repeat(np.array([1, -1], np.int64), len(tasks))
    order = np.argsort(time, kind="stable")
    return time[order], np.cumsum(change[order])


def queue_lengths(timeline: Timeline, owners: Members) -> tuple[QueueLength, ...]:
    """The queue of every step's rank during the step of the job."""
    start, end = step_times(timeline, owners).job_intervals()
    step_rank = owners.step_rank()
    queues = {int(rank): queue_steps(timeline, owners, int(rank)) for rank in np.unique(step_rank)}
    return tuple(_during(*queues[int(step_rank[i])], int(start[i]), int(end[i])) for i in range(len(owners.steps)))


def _during(time: Int64, length: Int64, start: int, end: int) -> QueueLength:
    if len(time) == 0 or end <= start:
        return QueueLength(None, None)
    first, last = np.searchsorted(time, (start, end), side="right")
    lengths = np.concatenate(([length[first - 1] if first else 0], length[first:last]))
    edges = np.concatenate(([start], time[first:last], [end]))
    return QueueLength(float((lengths * np.diff(edges)).sum() / (end - start)), int(lengths.max()))
