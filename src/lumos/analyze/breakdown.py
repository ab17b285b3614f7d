"""Where a step's time goes, four ways, and by named parts.

At every moment of a step, a rank's devices run communication, other work, both, or neither. The four parts sum exactly
to the step of the job, from the completion of the step before to its own (`analyze.loop.steps`), on every rank. All work of the rank
in that time counts, whichever step launched it, and counts once. On a rank without device work the CPU's tasks count instead:
operators compute, collectives (gloo) communicate.

The step's device idle time is split by cause in `analyze.waiting.idle`; named parts say what the whole step was spent on.
`variability` says how much a rank's steps differ.

*Named parts* are computing, communicating, or waiting, and for what. Every moment of a step counts on each rank for the first that claims
it, so that the parts sum exactly to the step:

1. compute: a device runs work other than communication, whether or not it communicates too;
2. communication: it only communicates, and all members of a collective or transfer have arrived (or are not in the recording);
3. pipeline bubble: it waits in a send or receive for the other side;
4. imbalance: it waits in a collective for a rank that arrives later;
5. unexplained, kernel gaps, waits: no device works, for a cause other than the CPU (`analyze.waiting.idle`);
6. data loading: the CPU has not launched, and a thread of the loop is inside the data loader;
7. host: it has not launched, and a thread of the loop works in an operator or call;
8. host between operators: it has not launched, and the threads of the loop are between operators (Python);
9. host: whatever else leaves the devices without work, such as a rank that starts later than the others.

On a rank without devices the CPU's operators compute. Time in which such a rank runs nothing at all it waits for the others: a
pipeline bubble where it sends or receives, otherwise an imbalance.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.analyze.collectives import waiting
from lumos.analyze.loop.steps import Members, members, step_times
from lumos.analyze.task_class import working
from lumos.analyze.waiting.idle import Idle, IdleCause, IdleIntervals, idle_intervals
from lumos.drawings import Bar
from lumos.graph.lists import places
from lumos.graph.table import Kind
from lumos.intervals import EMPTY, Union, clipped, either, union, within
from lumos.result import Rows, Shown
from lumos.trace.table import Category, unique
from lumos.units import quantity
from lumos.vocabulary import CollectiveKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lumos.simulation.timeline import Timeline
    from lumos.trace.table import Int64, Job
    from lumos.vocabulary import Basis

#: Names of rows in which a thread loads data.
LOADING = re.compile(r"enumerate\(DataLoader\)|dataloader.*__next__|^\W*data_load(ing)?\W*$", re.IGNORECASE)


class NamedParts(NamedTuple):
    """Where the time of a step goes on one rank, ns; the parts sum to the step. What each of them is: see the module."""

    compute_ns: int
    communication_ns: int
    pipeline_bubble_ns: int
    imbalance_ns: int
    data_loading_ns: int
    host_between_operators_ns: int
    host_ns: int
    kernel_gap_ns: int
    wait_ns: int
    unexplained_ns: int


def named_parts(
    timeline: Timeline,
    owners: Members,
    interval: tuple[Int64, Int64],
    idle: Sequence[IdleIntervals | None],
    job: Job | None = None,
) -> tuple[NamedParts, ...]:
    """The parts of every step of `owners` on its rank.

    interval: where each step begins and ends, int64[steps] ns. idle: what `idle_intervals` gives for them. job: the recording, whose
    rows say when threads load data; without it that time is the host's.
    """
    activities = _Activities(timeline, owners, job)
    start, end = interval
    step_rank = owners.step_rank()
    out: list[NamedParts | None] = [None] * len(owners.steps)
    for rank in unique(step_rank).tolist():
        done = activities.of_rank(rank)
        for i in np.flatnonzero(step_rank == rank).tolist():
            out[i] = _parts(done, idle[i], int(start[i]), int(end[i]))
    return tuple(part for part in out if part is not None)


class _Done(NamedTuple):
    """When a rank does what. waits_for_peer: in sends and receives; waits_for_ranks: in collectives. works: a thread of the loop is in
    an operator or call; pauses: it is between them. in_pipeline: whether the rank sends or receives."""

    computes: Union
    transfers: Union
    waits_for_peer: Union
    waits_for_ranks: Union
    loads: Union
    works: Union
    pauses: Union
    in_pipeline: bool


def _parts(done: _Done, idle: IdleIntervals | None, start: int, end: int) -> NamedParts:
    """The parts of the time from start to end. idle: None on a rank without devices."""
    claimed = _Claims(start, end)
    compute, communication, bubble, imbalance = map(claimed.more, done[:4])
    causes = (IdleCause.UNEXPLAINED, IdleCause.KERNEL_GAP, IdleCause.WAIT)
    unexplained, gap, wait = (0, 0, 0) if idle is None else (claimed.more(idle.because(cause)) for cause in causes)
    loading, host, between = map(claimed.more, (done.loads, done.works, done.pauses))
    rest = end - start - claimed.total
    if idle is not None:
        host += rest
    elif done.in_pipeline:
        bubble += rest
    else:
        imbalance += rest
    return NamedParts(compute, communication, bubble, imbalance, loading, between, host, gap, wait, unexplained)


class _Claims:
    """The time of a window that parts have claimed so far."""

    def __init__(self, start: int, end: int) -> None:
        self._start, self._end = start, end
        self._claimed = EMPTY
        self.total = 0

    def more(self, wanted: Union) -> int:
        """How much of the wanted time nothing has claimed yet, ns; it is claimed now."""
        self._claimed = either(self._claimed, clipped(wanted, self._start, self._end))
        before, self.total = self.total, self._claimed.total
        return self.total - before


class _Activities:
    """What the ranks of a timeline do when."""

    def __init__(self, timeline: Timeline, owners: Members, job: Job | None) -> None:
        graph = owners.graph
        self._timeline, self._owners, self._job = timeline, owners, job
        self._computes, self._communicates = working(owners)
        self._began = waiting(timeline).began
        self._between_two = np.zeros(len(graph), bool)
        if (facts := graph.collectives) is not None:
            kinds = [i for i, kind in enumerate(facts.kinds) if kind in (CollectiveKind.SEND, CollectiveKind.RECEIVE)]
            self._between_two[facts.task[np.isin(facts.kind, kinds)]] = True
        loops = np.zeros(len(graph.processors), bool)
        loops[graph.processor[owners.completes & ~owners.on_device]] = True
        self._on_loop = loops[graph.processor]
        self._lane = np.array([p.lane for p in graph.processors], np.int64)

    def of_rank(self, rank: int) -> _Done:
        """What the rank at this position does."""
        graph, tasks = self._owners.graph, self._owners.of_rank(rank)
        start, end, began = self._timeline.start, self._timeline.end, self._began
        communicates = tasks[self._communicates[tasks]]
        between_two = self._between_two[communicates]
        on_loop = tasks[self._on_loop[tasks]]
        pauses = graph.kind[on_loop] == Kind.HOST
        computes, working, paused = tasks[self._computes[tasks]], on_loop[~pauses], on_loop[pauses]
        return _Done(
            computes=union(start[computes], end[computes]),
            transfers=union(began[communicates], end[communicates]),
            waits_for_peer=union(start[communicates[between_two]], began[communicates[between_two]]),
            waits_for_ranks=union(start[communicates[~between_two]], began[communicates[~between_two]]),
            loads=self._loads(rank, on_loop),
            works=union(start[working], end[working]),
            pauses=union(start[paused], end[paused]),
            in_pipeline=bool(between_two.any()),
        )

    def _loads(self, rank: int, tasks: Int64) -> Union:
        """When the tasks of a rank load data. They do so in the part of their time that was measured inside a row of the data loader."""
        graph, timeline = self._owners.graph, self._timeline
        if self._job is None or graph.measured_start is None or graph.measured_end is None:
            return EMPTY
        trace = self._job.traces[rank]
        rows = np.flatnonzero(trace.is_any(Category.OPERATOR, Category.ANNOTATION, Category.PYTHON) & trace.named(LOADING.search))
        lane = self._lane[graph.processor[tasks]]
        unions = [EMPTY]
        for number in unique(trace.lane[rows]).tolist():
            here = rows[trace.lane[rows] == number]
            loading = union(trace.start[here] - graph.origin, trace.start[here] + trace.duration[here] - graph.origin)
            own = tasks[lane == number]
            task, first, last = _overlaps(graph.measured_start[own], graph.measured_end[own], loading)
            begin = timeline.start[own[task]]
            unions.append(union(begin + first, np.minimum(begin + last, timeline.end[own[task]])))
        return union(np.concatenate([u.start for u in unions]), np.concatenate([u.end for u in unions]))


def _overlaps(start: Int64, end: Int64, during: Union) -> tuple[Int64, Int64, Int64]:
    """The tasks of a thread, in order, that overlap the intervals: index, and from when to when after their own start, ns."""
    low = np.searchsorted(end, during.start, side="right")
    high = np.maximum(np.searchsorted(start, during.end, side="left"), low)
    task = places(low, high - low)
    interval = np.repeat(np.arange(len(during.start)), high - low)
    first = np.maximum(start[task], during.start[interval])
    last = np.minimum(end[task], during.end[interval])
    return task, first - start[task], last - start[task]


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
