"""The steps of a job: the tasks that each owns, when it begins and is complete, and how long it takes.

A step is complete when the last task that it issued has ended, on a CPU or a device, and so have the steps before it; the step of
a job, when it is on every rank. The *period* of a step is the time from the completion of the step before to its own: what the
loop takes for a step, however far the CPU runs ahead of the devices, and whatever Python and data loading lie between the steps.
Its *latency* is the time from its first work to its completion. Where the CPU runs ahead, latency is longer than the period, because
the devices still work on the steps before; where Python runs between the steps, it is shorter.

A recording shows a period where it has two steps that follow one another, and the time of a step is then the period. In a recording with
a single step, without marks, or of whole operations, whose times hold within a step only, it is the latency. `Basis` says which
of the two a figure is.

A step of the job that takes more than OUTLIER times as long as the median step (the lower of two), or as much less, stands apart
(warm-up, a recompilation, a checkpoint): it is listed, but it counts in no figure of the job. The time of the job's step is the
median over the steps that count. Which tasks a step owns is in `analyze.loop.spans`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.analyze.loop.spans import beside_the_loop, launches, prefix, task_spans
from lumos.diagnostics import Diagnostic
from lumos.errors import GraphError
from lumos.graph.lists import Lists, grouped
from lumos.graph.steps import number_of
from lumos.graph.table import Dependency, Graph, Kind, Step
from lumos.simulate.timeline import Timeline, measured
from lumos.units import duration
from lumos.vocabulary import Basis

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from numpy.typing import NDArray

    from lumos.trace.table import Int32, Int64

#: A step whose time is more than this many times the median, or less than the median divided by it, stands apart.
OUTLIER = 1.5


class JobStep(NamedTuple):
    """One step of the whole job.

    parts: the ranks' steps that it consists of, indices into `Members.steps`. previous: position in `Members.job` of the step that
    the loop took just before it, -1 where the recording does not have it. apart: whether it took so much longer than the others, for
    instance to warm up, that it is no example of them.
    """

    name: str
    parts: tuple[int, ...]
    previous: int
    apart: bool


@dataclass(frozen=True, slots=True, eq=False)
class Members:
    """For each of a graph's n tasks: the rank that runs it, the task that launched it and the step that owns it.

    steps: the steps that own any work, by rank and start. step: int32[n], index into `steps`, -1 none.
    previous: int32[steps], the step of the same rank that the loop took just before; -1 where the recording does not have it.
    job: the steps of the whole job, in order.
    rank: int32[n], position in `graph.joined.ranks`. on_device: bool[n]. launch: int32[n], the launching task, -1 none.
    prefix: bool[n], device work launched before the window.
    completes: bool[n], the tasks that a step is complete with: neither pauses nor the work of threads beside the loop.
    order, offset: step i owns tasks order[offset[i]:offset[i + 1]], in ascending id.
    rank_order, rank_offset: the same for the ranks, by position.
    """

    graph: Graph
    steps: tuple[Step, ...]
    step: Int32
    previous: Int32
    job: tuple[JobStep, ...]
    rank: Int32
    on_device: NDArray[np.bool_]
    launch: Int32
    prefix: NDArray[np.bool_]
    completes: NDArray[np.bool_]
    order: Int64
    offset: Int64
    rank_order: Int64
    rank_offset: Int64

    def tasks(self, step: int) -> Int64:
        """The tasks that a step owns, in ascending id."""
        return self.order[self.offset[step] : self.offset[step + 1]]

    def of_rank(self, position: int) -> Int64:
        """The tasks of a rank, in ascending id."""
        return self.rank_order[self.rank_offset[position] : self.rank_offset[position + 1]]

    def step_rank(self) -> Int64:
        """Position in `graph.joined.ranks` of every step's rank."""
        place = {rank: i for i, rank in enumerate(self.graph.ranks)}
        return np.array([place[s.rank] for s in self.steps], np.int64)

    @property
    def apart(self) -> frozenset[str]:
        """The names of the job's steps that stand apart."""
        return frozenset(step.name for step in self.job if step.apart)

    @property
    def has_period(self) -> bool:
        """Whether any step of the job follows a recorded one, so that the recording shows what the loop takes."""
        return any(step.previous >= 0 for step in self.job)


def members(graph: Graph) -> Members:
    """Assign every task of the graph to its step. A graph without marked steps is one step per rank."""
    facts = _facts(graph)
    if graph.steps and graph.measured_start is not None:
        marked = graph.steps
        step = task_spans(graph, graph.measured_start, facts.by_rank, facts.on_device, facts.launch)
    else:
        marked = tuple(Step(r, "step", 0, 0) for r in graph.ranks)
        step = facts.rank.copy()
    found = _members(graph, tuple(marked), step, facts)
    return found if graph.measured_start is None else replace(found, job=_told_apart(found))


def assigned(graph: Graph, steps: tuple[Step, ...], step: Int32, apart: Collection[str] = ()) -> Members:
    """The members of a graph whose steps are known already. step: int32[n], index into `steps`, -1 none. apart: names of the job's
    steps that stand apart."""
    found = _members(graph, steps, step.copy(), _facts(graph))
    return replace(found, job=tuple(each._replace(apart=each.name in apart) for each in found.job))


class _Facts(NamedTuple):
    """What `Members` holds that does not depend on steps. by_rank: the tasks of each rank."""

    rank: Int32
    by_rank: Lists
    on_device: NDArray[np.bool_]
    launch: Int32
    prefix: NDArray[np.bool_]


def _facts(graph: Graph) -> _Facts:
    rank, on_device, launch = graph.position_of_task, graph.on_device, launches(graph)
    return _Facts(rank, grouped(rank, len(graph.ranks)), on_device, launch, prefix(graph, rank, on_device, launch))


def _members(graph: Graph, marked: tuple[Step, ...], step: Int32, facts: _Facts) -> Members:
    """Members with only those of the `marked` steps that own any work. step: index into `marked`, changed in place."""
    rank, by_rank, on_device, launch, early = facts
    step[early | np.array([p.timer for p in graph.processors], bool)[graph.processor]] = -1
    completes = (graph.kind != Kind.HOST) & ~beside_the_loop(graph, marked, launch)
    owning = np.unique(step[(step >= 0) & completes])
    number = np.full(len(marked) + 1, -1, np.int32)  # the last is what index -1 finds
    number[owning] = np.arange(len(owning))
    step = number[step]
    by_step = grouped(step, len(owning))
    steps = tuple(marked[i] for i in owning)
    previous = _previous(graph, steps)
    job = _job(steps, previous)
    previous[[part for whole in job if whole.previous < 0 for part in whole.parts]] = -1
    return Members(
        graph=graph,
        steps=steps,
        step=step,
        previous=previous,
        job=job,
        rank=rank,
        on_device=on_device,
        launch=launch,
        prefix=early,
        completes=completes,
        order=by_step.flat,
        offset=by_step.offset,
        rank_order=by_rank.flat,
        rank_offset=by_rank.offset,
    )


def step_names(graph: Graph) -> tuple[str, ...]:
    """The names of the job's steps, in order."""
    return tuple(step.name for step in members(graph).job)


def is_operation_level(graph: Graph) -> bool:
    """Whether the tasks of a measured graph are whole operations whose data dependencies are known: a recording of operations, or a Chakra
    set that does not say which call launched what. `Graph.steps_alone` says less: that steps have no common clock, as in a recording of
    operations, but not in every Chakra set."""
    has_data, has_calls = bool((graph.pred_kind == Dependency.DATA).any()), bool((graph.kind == Kind.LAUNCH).any())
    return graph.measured_start is not None and has_data and not has_calls


def _job(steps: tuple[Step, ...], previous: Int32) -> tuple[JobStep, ...]:
    """The steps of the job: those that all of its ranks recorded or, where the ranks share none, those of each rank.

    Where a rank has several steps of one name, the second is called "name (2)", and so on.
    """
    indices: dict[str, list[int]] = {}
    seen: dict[tuple[int, str], int] = {}
    for i, step in enumerate(steps):
        again = seen[step.rank, step.name] = seen.get((step.rank, step.name), 0) + 1
        indices.setdefault(step.name if again == 1 else f"{step.name} ({again})", []).append(i)
    ranks = len({step.rank for step in steps})
    shared = {name: parts for name, parts in indices.items() if len(parts) == ranks} or indices
    place = {part: position for position, parts in enumerate(shared.values()) for part in parts}
    before = [{place.get(int(previous[part]), -1) for part in parts} for parts in shared.values()]
    return tuple(
        JobStep(name, tuple(parts), earlier.pop() if len(earlier) == 1 else -1, False)
        for (name, parts), earlier in zip(shared.items(), before, strict=True)
    )


def _previous(graph: Graph, steps: tuple[Step, ...]) -> Int32:
    """For each step the one of its rank with the number before, -1 without one and where the steps of the graph stand alone."""
    out = np.full(len(steps), -1, np.int32)
    if graph.steps_alone:
        return out
    at = {(step.rank, number): i for i, step in enumerate(steps) if (number := number_of(step.name)) is not None}
    for (rank, number), i in at.items():
        out[i] = at.get((rank, number - 1), -1)
    return out


def _told_apart(found: Members) -> tuple[JobStep, ...]:
    """The job's steps, with those marked that stand apart from the others as measured."""
    times = step_times(measured(found.graph), found)
    compared = [time.length_ns for time in times.job if time.basis is times.basis]
    if not compared:
        return found.job
    middle = sorted(compared)[(len(compared) - 1) // 2]
    return tuple(
        step._replace(apart=time.basis is times.basis and not middle / OUTLIER <= time.length_ns <= middle * OUTLIER)
        for step, time in zip(found.job, times.job, strict=True)
    )


class StepTime(NamedTuple):
    """One step of a job or of a rank, ns. begin: its first start. since: when the step before was complete, where its time is a period;
    else its first start. completion: when it was complete."""

    name: str
    basis: Basis
    begin_ns: int
    since_ns: int
    completion_ns: int

    @property
    def length_ns(self) -> int:
        """The time of the step: its period or its latency, as `basis` says."""
        return self.completion_ns - self.since_ns

    @property
    def latency_ns(self) -> int:
        """From its first start to its completion."""
        return self.completion_ns - self.begin_ns


class JobTime(NamedTuple):
    """The time of a job's step, ns: that of its typical step `step`, and on which basis."""

    step: str
    step_time_ns: int
    latency_ns: int
    basis: Basis


@dataclass(frozen=True, slots=True, eq=False)
class StepTimes:
    """The times of the steps of `owners` in one timeline.

    ranks: of each rank's step, in the order of `owners.steps`. job: of each of the job's steps, in the order of `owners.job`.
    """

    owners: Members
    ranks: tuple[StepTime, ...]
    job: tuple[StepTime, ...]

    @property
    def basis(self) -> Basis:
        """Whether the time of a step of this job is a period or a latency."""
        return Basis.PERIOD if self.owners.has_period else Basis.LATENCY

    @property
    def counted(self) -> tuple[StepTime, ...]:
        """The job's steps whose times count: those that do not stand apart, with a period where the recording shows any."""
        pairs = zip(self.owners.job, self.job, strict=True)
        return tuple(time for step, time in pairs if time.basis is self.basis and not step.apart)

    @property
    def typical(self) -> StepTime:
        """The job's step of median time (the lower of two). GraphError where no step owns any work."""
        counted = self.counted
        if not counted:
            raise GraphError("the job has no step that owns any work; record whole steps (ProfilerStep#… marks)")
        return sorted(counted, key=lambda time: time.length_ns)[(len(counted) - 1) // 2]

    @property
    def headline(self) -> JobTime:
        """The time of the job's step. GraphError where no step owns any work."""
        step = self.typical
        return JobTime(step.name, step.length_ns, step.latency_ns, step.basis)

    def named(self, name: str) -> StepTime:
        """The job's step of that name. KeyError without one."""
        return {step.name: step for step in self.job}[name]

    def rank_intervals(self) -> tuple[Int64, Int64]:
        """The interval of each rank's step by its own completions, int64[steps] ns."""
        return _columns(self.ranks)

    def job_intervals(self) -> tuple[Int64, Int64]:
        """The interval of the job's step that each rank's step is part of, int64[steps] ns; its own where it is part of none."""
        return _columns([time for time, _ in self.of_ranks()])

    def of_ranks(self) -> list[tuple[StepTime, bool]]:
        """For each rank's step, the job's step that it is part of, and whether that stands apart; its own where it is part of none."""
        out = [(time, False) for time in self.ranks]
        for step, time in zip(self.owners.job, self.job, strict=True):
            for part in step.parts:
                out[part] = time, step.apart
        return out

    def rank_steps_counted(self) -> NDArray[np.bool_]:
        """Which steps of the ranks are part of a step of the job that counts, bool[steps]."""
        counted = {time.name for time in self.counted}
        out = np.zeros(len(self.ranks), bool)
        out[[part for step in self.owners.job if step.name in counted for part in step.parts]] = True
        return out

    def tasks_counted(self) -> NDArray[np.bool_]:
        """Which tasks belong to a step of the job that counts, bool[n]."""
        return np.append(self.rank_steps_counted(), False)[self.owners.step]  # the last is what index -1 finds

    def findings(self) -> tuple[Diagnostic, ...]:
        """The diagnostic that names the steps that stand apart; () where none does."""
        apart = [f"{t.name} ({duration(t.length_ns)})" for s, t in zip(self.owners.job, self.job, strict=True) if s.apart]
        if not apart:
            return ()
        named = ", ".join(apart[:6]) + (f" and {len(apart) - 6} more" if len(apart) > 6 else "")
        usual = duration(self.typical.length_ns)
        message = f"left out, as each takes {OUTLIER} times the median step of {usual} or more, or as much less: {named}"
        return (Diagnostic("step-left-out", message),)


def step_times(timeline: Timeline, owners: Members) -> StepTimes:
    """When every step of `owners` begins and is complete in the timeline, per rank and for the job."""
    begin, completion = _begin_and_completion(timeline, owners)
    ranks = []
    for i, step in enumerate(owners.steps):
        before = int(owners.previous[i])
        since = int(completion[before]) if before >= 0 else int(begin[i])
        ranks.append(StepTime(step.name, _basis(before), int(begin[i]), since, int(completion[i])))
    job: list[StepTime] = []
    ends = [max(ranks[part].completion_ns for part in whole.parts) for whole in owners.job]
    for whole, end in zip(owners.job, ends, strict=True):
        first = min(ranks[part].begin_ns for part in whole.parts)
        job.append(StepTime(whole.name, _basis(whole.previous), first, ends[whole.previous] if whole.previous >= 0 else first, end))
    return StepTimes(owners, tuple(ranks), tuple(job))


def job_lengths(timeline: Timeline, owners: Members) -> Int64:
    """The lengths of the job's steps that `step_times` gives, int64[steps of the job] ns, for callers that try many timelines."""
    begin, completion = _begin_and_completion(timeline, owners)
    parts = [np.array(whole.parts, np.int64) for whole in owners.job]
    ends = np.array([completion[own].max() for own in parts], np.int64)
    since = [ends[whole.previous] if whole.previous >= 0 else begin[own].min() for whole, own in zip(owners.job, parts, strict=True)]
    return ends - np.array(since, np.int64)


def _basis(previous: int) -> Basis:
    return Basis.PERIOD if previous >= 0 else Basis.LATENCY


def _columns(times: Sequence[StepTime]) -> tuple[Int64, Int64]:
    return np.array([t.since_ns for t in times], np.int64), np.array([t.completion_ns for t in times], np.int64)


def _begin_and_completion(timeline: Timeline, owners: Members) -> tuple[Int64, Int64]:
    """The first start of every rank's step, and its completion: the running maximum, over the steps of the rank, of the last end."""
    if not owners.steps:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    first, tasks = owners.offset[:-1], owners.order
    completes = owners.completes[tasks]
    latest, earliest = np.iinfo(np.int64).max, np.iinfo(np.int64).min
    begin: Int64 = np.minimum.reduceat(np.where(completes, timeline.start[tasks], latest), first)
    completion: Int64 = np.maximum.reduceat(np.where(completes, timeline.end[tasks], earliest), first)
    for i in range(1, len(completion)):
        if owners.steps[i].rank == owners.steps[i - 1].rank:
            completion[i] = max(completion[i], completion[i - 1])
    return begin, completion
