"""How busy a step's devices are over time, and how far two runs of it differ.

Busy fraction: the share of each millisecond in which any device of the rank works (a rank without device work: any CPU
operator or collective). Both runs are aligned at the step's start.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lumos.analyze.breakdown import working
from lumos.analyze.steps import Members, spans
from lumos.intervals import Union, covered, union
from lumos.simulate.timeline import Timeline
from lumos.trace.table import Int64

#: Width of a bin, ns.
BIN_NS = 1_000_000


def busy_curves(timeline: Timeline, owners: Members) -> tuple[NDArray[np.float64], ...]:
    """The busy fraction of every step of `owners`, float64[⌈step / 1 ms⌉]."""
    start, end = spans(timeline, owners)
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


def difference(a: NDArray[np.float64], b: NDArray[np.float64]) -> float | None:
    """Mean absolute difference of two curves; the shorter one is idle where it has ended. None where both are empty."""
    bins = max(len(a), len(b))
    if bins == 0:
        return None
    padded = [np.pad(c, (0, bins - len(c))) for c in (a, b)]
    return float(np.abs(padded[0] - padded[1]).mean())


def _busy(timeline: Timeline, tasks: Int64, works: NDArray[np.bool_]) -> Union:
    tasks = tasks[works[tasks]]
    return union(timeline.start[tasks], timeline.end[tasks])
