"""Where a step's time goes, four ways.

At every moment of a step, a rank's devices run communication, other work, both, or neither. The four parts sum exactly
to the step. All work of the rank between the step's start and end counts, also work that an earlier step launched. On a rank
without device work the CPU's tasks count instead: operators compute, collectives (gloo) communicate.

The step's device idle time is split by cause in `analyze.idle`. `variability` says how much a rank's steps differ.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.analyze.idle import Idle, device_idle
from lumos.analyze.steps import Members, lengths, members, step_spans
from lumos.graph.table import Kind
from lumos.intervals import either, union, within
from lumos.result import Rows, Shown

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from lumos.simulate.timeline import Timeline


class FourWay(NamedTuple):
    """The four parts of a step's time, ns; their sum is the step."""

    exposed_compute_ns: int
    overlapped_ns: int
    exposed_communication_ns: int
    other_ns: int


@dataclass(frozen=True, slots=True, repr=False)
class StepBreakdown(Shown):
    """One step's four parts, and its device idle time by cause (None for a rank without device work)."""

    rank: int
    name: str
    duration_ns: int
    breakdown: FourWay
    idle: Idle | None


def breakdown(timeline: Timeline, owners: Members | None = None) -> Rows[StepBreakdown]:
    """Every step's breakdown, by rank and start."""
    owners = owners or members(timeline.graph)
    start, end = step_spans(timeline, owners)
    idle = device_idle(timeline, owners)
    return Rows(
        StepBreakdown(step.rank, step.name, int(end[i] - start[i]), parts, idle[i])
        for i, (step, parts) in enumerate(zip(owners.steps, four_way(timeline, owners), strict=True))
    )


def four_way(timeline: Timeline, owners: Members) -> tuple[FourWay, ...]:
    """The four parts of every step of `owners`."""
    computes, communicates = working(owners)
    start, end = step_spans(timeline, owners)
    step_rank = owners.step_rank()
    parts = np.empty((len(owners.steps), 4), np.int64)
    for rank in np.unique(step_rank):
        steps = np.flatnonzero(step_rank == rank)
        tasks = owners.of_rank(int(rank))
        compute, communication = (union(timeline.start[t], timeline.end[t]) for t in (tasks[computes[tasks]], tasks[communicates[tasks]]))
        window = start[steps], end[steps]
        both = within(either(compute, communication), *window)
        alone = within(compute, *window), within(communication, *window)
        parts[steps, 0] = both - alone[1]
        parts[steps, 1] = alone[0] + alone[1] - both
        parts[steps, 2] = both - alone[0]
        parts[steps, 3] = window[1] - window[0] - both
    return tuple(FourWay(*row) for row in parts.tolist())


def working(owners: Members) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Masks over tasks: computing, communicating. On ranks without device work the CPU's operators compute."""
    graph = owners.graph
    communicates = graph.kind == Kind.COLLECTIVE
    has_device = np.zeros(len(graph.ranks), bool)
    has_device[owners.rank[owners.on_device]] = True
    on_cpu = (graph.kind == Kind.OPERATOR) & ~has_device[owners.rank]
    return (owners.on_device & ~communicates) | on_cpu, communicates


class Variability(NamedTuple):
    """The steps of one rank, ns. `variation` is the standard deviation over the mean; None for a single step."""

    rank: int
    steps: int
    mean_ns: float
    min_ns: int
    max_ns: int
    variation: float | None


def variability(timeline: Timeline, owners: Members) -> tuple[Variability, ...]:
    """Every rank that has steps, in order."""
    length, step_rank = lengths(timeline, owners), owners.step_rank()
    out = []
    for position in np.unique(step_rank):
        own = length[step_rank == position]
        spread = float(own.std(ddof=1) / own.mean()) if len(own) > 1 and own.any() else None
        rank = owners.graph.ranks[int(position)]
        out.append(Variability(rank, len(own), float(own.mean()), int(own.min()), int(own.max()), spread))
    return tuple(out)
