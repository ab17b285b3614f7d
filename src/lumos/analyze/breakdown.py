"""Where a step's time goes, four ways, and by named parts.

At every moment of a step, a rank's devices run communication, other work, both, or neither. The four parts sum exactly
to the step of the job, from the completion of the step before to its own (`analyze.loop.steps`), on every rank. All work of the rank
in that time counts, whichever step launched it, and counts once. On a rank without device work the CPU's tasks count instead:
operators compute, collectives (gloo) communicate.

The step's device idle time is split by cause in `analyze.waiting.idle`; `analyze.parts` names what the whole step was spent on.
`variability` says how much a rank's steps differ.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.analyze.loop.steps import Members, members, step_times
from lumos.analyze.parts import NamedParts, named_parts
from lumos.analyze.task_class import working
from lumos.analyze.waiting.idle import Idle, idle_intervals
from lumos.drawings import Bar
from lumos.intervals import either, union, within
from lumos.result import Rows, Shown
from lumos.trace.table import unique
from lumos.units import quantity

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lumos.simulation.timeline import Timeline
    from lumos.trace.table import Int64, Job
    from lumos.vocabulary import Basis


class FourWay(NamedTuple):
    """The four parts of a step's time, ns; their sum is the step."""

    exposed_compute_ns: int
    overlapped_ns: int
    exposed_communication_ns: int
    other_ns: int


@dataclass(frozen=True, slots=True, repr=False)
class StepBreakdown(Shown):
    """Where the time of one step of the job went on one rank.

    duration_ns: the step of the job, or of the rank where the others did not record it. basis: whether that is a period or a latency.
    latency_ns: from the first work of the step to its completion. counts: whether it counts in the figures of the job. breakdown, parts:
    each sums to duration_ns. idle: the time in which no device worked, by cause; None without device work.
    """

    rank: int
    name: str
    basis: Basis
    duration_ns: int
    latency_ns: int
    counts: bool
    breakdown: FourWay
    parts: NamedParts
    idle: Idle | None

    def bar(self) -> Bar:
        """The four parts of the step."""
        four = {quantity(key).name.replace("_", " "): float(ns) for key, ns in self.breakdown._asdict().items()}
        return Bar(f"rank {self.rank}, {self.name}", four)


def breakdowns(timeline: Timeline, owners: Members | None = None, job: Job | None = None) -> Rows[StepBreakdown]:
    """Where the time of every step goes, by rank and start, in a measured timeline or a simulated one.

    owners: which task belongs to which step, what `lumos.analyze.loop.steps.members` gives for the graph; worked out here where it is
    not given. job: the recording; without it, time in which a thread loads data counts as the host's.
    """
    owners = owners or members(timeline.graph)
    times = step_times(timeline, owners)
    interval = times.job_intervals()
    idle, four = idle_intervals(timeline, owners, interval), four_way(timeline, owners, interval)
    parts = named_parts(timeline, owners, interval, idle, job)
    return Rows(
        StepBreakdown(
            step.rank,
            time.name,
            time.basis,
            time.length_ns,
            time.latency_ns,
            counts,
            four[i],
            parts[i],
            None if idle_of_step is None else idle_of_step.by_cause(),
        )
        for i, (step, (time, counts), idle_of_step) in enumerate(zip(owners.steps, times.of_ranks(), idle, strict=True))
    )


def mean_parts(steps: Sequence[StepBreakdown]) -> dict[str, float]:
    """The named parts of the job's step, ns, the mean over the ranks and the steps that count; they sum to the step."""
    rows = [step.parts for step in steps if step.counts]
    return {key: float(np.mean([getattr(row, key) for row in rows])) for key in NamedParts._fields}


def four_way(timeline: Timeline, owners: Members, interval: tuple[Int64, Int64]) -> tuple[FourWay, ...]:
    """The four parts of every step of `owners` on its rank. interval: where each step begins and ends, int64[steps] ns."""
    computes, communicates = working(owners)
    start, end = interval
    step_rank = owners.step_rank()
    parts = np.empty((len(owners.steps), 4), np.int64)
    for rank in unique(step_rank):
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


class Variability(NamedTuple):
    """The steps of one rank that count (`analyze.loop.steps`), ns. `variation` is the standard deviation over the mean; None for a single
    step."""

    rank: int
    steps: int
    mean_ns: float
    min_ns: int
    max_ns: int
    variation: float | None


def variability(timeline: Timeline, owners: Members) -> tuple[Variability, ...]:
    """Every rank that has steps that count, in order."""
    times, step_rank = step_times(timeline, owners), owners.step_rank()
    start, end = times.rank_intervals()
    counts = times.rank_steps_counted()
    out = []
    for position in unique(step_rank[counts]):
        own = (end - start)[counts & (step_rank == position)]
        spread = float(own.std(ddof=1) / own.mean()) if len(own) > 1 and own.any() else None
        rank = owners.graph.ranks[int(position)]
        out.append(Variability(rank, len(own), float(own.mean()), int(own.min()), int(own.max()), spread))
    return tuple(out)
