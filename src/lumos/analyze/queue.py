"""How much launched work is waiting or running on a rank's devices, over time."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from lumos.analyze.steps import Members, spans
from lumos.simulate.timeline import Timeline
from lumos.trace.table import Int64


class QueueLength(NamedTuple):
    """Launches outstanding during a step: the time-weighted mean and the most; None where nothing was launched."""

    mean: float | None
    maximum: int | None


def queue_steps(timeline: Timeline, owners: Members, rank: int) -> tuple[Int64, Int64]:
    """Launched but unfinished device tasks of a rank (by position) as a step function: times, int64[k], ascending, and
    the length from each on. A task counts from the end of its launch call to its own end."""
    tasks = np.flatnonzero((owners.rank == rank) & (owners.launch >= 0))
    time = np.concatenate((timeline.end[owners.launch[tasks]], timeline.end[tasks]))
    change = np.repeat(np.array([1, -1], np.int64), len(tasks))
    order = np.argsort(time, kind="stable")
    return time[order], np.cumsum(change[order])


def queue_lengths(timeline: Timeline, owners: Members) -> tuple[QueueLength, ...]:
    """The queue of every step's rank during the step."""
    start, end = spans(timeline, owners)
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
