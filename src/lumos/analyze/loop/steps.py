"""The steps of a job: the tasks that each owns, when it begins and is complete, and how long it takes.

A step is complete with the last task that it issued to the processors that complete steps (`analyze.loop.window`); the step of a job, when
it is on every rank. The *period* of a step is the time from the completion of the step before to its own: what the loop takes for a step,
however far the CPU runs ahead of the devices, and whatever Python and data loading lie between the steps. Its *latency* is the time from
its first work to its completion. Where the CPU runs ahead, latency is longer than the period, because the devices still work on the steps
before; where Python runs between the steps, it is shorter.

The time of a job's step is the mean period of the steps that count (`analyze.loop.window`). In a recording with a single step, without
marks, or of whole operations, whose times hold within a step only, it is the mean latency. `Basis` says which of the two a figure is.
Which tasks a step owns is in `analyze.loop.spans`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.analyze.loop.spans import beside_the_loop, launches, prefix, task_spans
from lumos.analyze.loop.window import (
    completing_processors,
    completing_tasks,
    counted_steps,
    cycle_of,
    kinds_of,
    lacks_work_ahead,
    once_in_steps,
    work_ahead,
)
from lumos.choices import check_step
from lumos.diagnostics import Diagnostic
from lumos.errors import GraphError
from lumos.graph.lists import Lists, grouped
from lumos.graph.places import number_of
from lumos.graph.table import Dependency, Graph, Kind, Step
from lumos.simulation.timeline import measured
from lumos.trace.table import unique
from lumos.units import count, duration
from lumos.vocabulary import Basis

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from lumos.simulation.timeline import Timeline
    from lumos.trace.table import Int32, Int64

#: The median step is said beside the mean where they differ by more than this share.
MEDIAN_DIFFERS = 0.05


class JobStep(NamedTuple):
    """One step of the whole job.

    parts: the ranks' steps that it consists of, indices into `Members.steps`. previous: position in `Members.job` of the step that
    the loop took just before it, -1 where the recording does not have it. once: what happens in it that happens once in a job, such as
    "module-loading"; "" where nothing does. counts: whether its time counts in the figures of the job.
    """

    name: str
    parts: tuple[int, ...]
    previous: int
    once: str = ""
    counts: bool = True


@dataclass(frozen=True, eq=False)
class Members:
    """For each of a graph's n tasks: the rank that runs it, the task that launched it and the step that owns it.

    steps: the steps that own any work, by rank and start. step: int32[n], index into `steps`, -1 none.
    previous: int32[steps], the step of the same rank that the loop took just before; -1 where the recording does not have it.
    job: the steps of the whole job, in order. cycle: after how many of them their measured periods come round, 0 where they do not.
    rank: int32[n], position in `graph.joined.ranks`. on_device: bool[n]. launch: int32[n], the launching task, -1 none.
    prefix: bool[n], device work launched before the window.
    completes: bool[n], the tasks that a step is complete with: work on the processors that complete steps. completing:
    bool[processors], these processors.
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
    completing: NDArray[np.bool_]
    order: Int64
    offset: Int64
    rank_order: Int64
    rank_offset: Int64
    cycle: int = 0

    def tasks(self, step: int) -> Int64:
        """The tasks that a step owns, in ascending id."""
        return self.order[self.offset[step] : self.offset[step + 1]]

    def of_rank(self, position: int) -> Int64:
        """The tasks of a rank, in ascending id."""
        return self.rank_order[self.rank_offset[position] : self.rank_offset[position + 1]]

    def step_rank(self) -> Int64:
        """Position in `graph.joined.ranks` of every step's rank."""
        position = {rank: i for i, rank in enumerate(self.graph.ranks)}
        return np.array([position[s.rank] for s in self.steps], np.int64)

    def of_job(self, position: int) -> Int64:
        """The tasks of a step of the job on all ranks, in ascending id."""
        return np.sort(np.concatenate([self.tasks(part) for part in self.job[position].parts]))

    def only(self, name: str) -> Members:
        """The same where only the step of that name counts, for figures of one step. UsageError where the job has no such step."""
        name = check_step(name, [step.name for step in self.job])
        return replace(self, job=tuple(step._replace(counts=step.name == name) for step in self.job))

    @property
    def counted(self) -> tuple[int, ...]:
        """The positions in `job` of the steps that count, ascending."""
        return tuple(i for i, step in enumerate(self.job) if step.counts)

    @cached_property
    def kinds(self) -> tuple[int, ...]:
        """Of which kind each step of the job is: steps of one kind do the same."""
        return kinds_of(self.graph, [self.of_job(i) for i in range(len(self.job))])

    @cached_property
    def position(self) -> Int64:
        """For each of `steps` its position in `job`; -1 for one that is no part of any, and behind them, as what index -1 finds."""
        return _positions(self.job, len(self.steps))

    @property
    def has_period(self) -> bool:
        """Whether the steps that count follow recorded ones, so that the recording shows what the loop takes."""
        return any(step.counts and step.previous >= 0 for step in self.job)


@lru_cache(maxsize=4)
def members(graph: Graph) -> Members:
    """Assign every task of the graph to its step. A graph without marked steps is one step per rank. The answer is kept, since nearly every
    question about a graph begins with it."""
    facts = _facts(graph)
    if graph.steps and graph.measured_start is not None:
        marked = graph.steps
        step = task_spans(graph, graph.measured_start, facts.by_rank, facts.on_device, facts.launch)
    else:
        marked = tuple(Step(r, "step", 0, 0) for r in graph.ranks)
        step = facts.rank.copy()
    of_graph = _members(graph, tuple(marked), step, facts)
    if not of_graph.has_period or graph.measured_start is None:
        return of_graph
    counted = list(of_graph.counted)
    cycle = cycle_of(job_lengths(measured(graph), of_graph)[counted], lambda: [of_graph.kinds[i] for i in counted])
    works_ahead = work_ahead(graph, [of_graph.of_job(i) for i in counted])
    whole = counted[:-1] if lacks_work_ahead(works_ahead, cycle) else counted
    kept = whole[len(whole) % cycle if cycle else 0 :]
    job = tuple(job_step._replace(counts=i in kept) for i, job_step in enumerate(of_graph.job))
    return replace(of_graph, job=job, cycle=cycle)


def assigned(graph: Graph, steps: tuple[Step, ...], step: Int32, like: Members | None = None) -> Members:
    """The members of a graph whose steps are known already. step: int32[n], index into `steps`, -1 none. like: the members of another graph
    of the job: the same processors complete steps, where all of these have work, and, where it has the same steps, the same ones count.
    GraphError where the graph leaves out all the work of a step."""
    if like is None:
        return _members(graph, steps, step.copy(), _facts(graph))
    stays = graph.processor if graph.left_out is None else graph.processor[~graph.left_out]
    works = np.bincount(stays, minlength=len(graph.processors)) > 0
    names = {like.job[i].name for i in like.counted} if steps is like.steps else None
    completing = like.completing if len(like.completing) == len(works) and works[like.completing].all() else None
    of_graph = _members(graph, steps, step.copy(), _facts(graph), names, completing)
    if graph.left_out is not None and len(of_graph.steps) < len(steps):
        without = next(missing for missing in steps if missing not in of_graph.steps)
        raise GraphError(f"what is left out is all the work of a step of rank {without.rank}")
    return of_graph


def still_working(owners: Members, graph: Graph) -> Members:
    """The members of a graph with the same tasks, some of which it leaves out. GraphError where a step then has no work."""
    return assigned(graph, owners.steps, owners.step, owners)


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


def _members(
    graph: Graph,
    marked: tuple[Step, ...],
    step: Int32,
    facts: _Facts,
    counted: Collection[str] | None = None,
    completing: NDArray[np.bool_] | None = None,
) -> Members:
    """Members with only those of the `marked` steps that own any work. step: index into `marked`, changed in place. counted: the names of
    the steps that count, and completing: the processors that complete steps, where they are known."""
    rank, by_rank, on_device, launch, early = facts
    step[early | np.array([p.timer for p in graph.processors], bool)[graph.processor]] = -1
    works = (graph.kind != Kind.HOST) & ~beside_the_loop(graph, marked, step, launch)
    if graph.left_out is not None:
        works &= ~graph.left_out
    owning = unique(step[(step >= 0) & works])
    number = np.full(len(marked) + 1, -1, np.int32)  # the last is what index -1 finds
    number[owning] = np.arange(len(owning))
    step = number[step]
    by_step = grouped(step, len(owning))
    steps = tuple(marked[i] for i in owning)
    previous = _previous(graph, steps)
    job = _counting(_job(steps, previous), once_in_steps(graph, step), counted)
    previous[[part for whole in job if whole.previous < 0 for part in whole.parts]] = -1
    if completing is None:
        position = _positions(job, len(steps))
        chosen = [i for i, whole in enumerate(job) if whole.counts]
        completing = completing_processors(graph, works, position[step], chosen, [whole.previous for whole in job])
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
        completes=completing_tasks(works, completing[graph.processor], step, len(steps)),
        completing=completing,
        order=by_step.flat,
        offset=by_step.offset,
        rank_order=by_rank.flat,
        rank_offset=by_rank.offset,
    )


def _positions(job: tuple[JobStep, ...], steps: int) -> Int64:
    position = np.full(steps + 1, -1, np.int64)
    for at, whole in enumerate(job):
        position[list(whole.parts)] = at
    return position


def _counting(job: tuple[JobStep, ...], once: Mapping[int, str], counted: Collection[str] | None) -> tuple[JobStep, ...]:
    """The steps of the job with what happens once in them, and whether they count. counted: the names of those that do, where known."""
    job = tuple(step._replace(once=next((once[part] for part in step.parts if part in once), "")) for step in job)
    if counted is not None:
        return tuple(step._replace(counts=step.name in counted) for step in job)
    chosen = set(counted_steps([s.previous for s in job], [bool(s.once) for s in job], [number_of(s.name) for s in job]))
    return tuple(step._replace(counts=i in chosen) for i, step in enumerate(job))


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
    position_of = {part: position for position, parts in enumerate(shared.values()) for part in parts}
    before = [{position_of.get(int(previous[part]), -1) for part in parts} for parts in shared.values()]
    return tuple(
        JobStep(name, tuple(parts), earlier.pop() if len(earlier) == 1 else -1)
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
    """The time of a job's step, ns: the mean over its `steps` steps that count, and on which basis. median_ns: of these steps."""

    step_time_ns: int
    latency_ns: int
    basis: Basis
    median_ns: int
    steps: int

    @property
    def uneven(self) -> bool:
        """Whether the median is so far from the mean that both should be said."""
        return abs(self.median_ns - self.step_time_ns) > MEDIAN_DIFFERS * self.step_time_ns


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
        """The job's steps whose times count."""
        return tuple(self.job[i] for i in self.owners.counted)

    @property
    def middle(self) -> StepTime:
        """The job's step whose time is nearest to the mean: what to show where one step stands for all. GraphError as `headline`."""
        mean = self.mean_ns
        return min(self.counted, key=lambda time: abs(time.length_ns - mean))

    @property
    def mean_ns(self) -> float:
        """The time of the job's step, ns. GraphError where no step owns any work."""
        lengths = [time.length_ns for time in self.counted]
        if not lengths:
            raise GraphError("the job has no step that owns any work; record whole steps (ProfilerStep#… marks)")
        return sum(lengths) / len(lengths)

    @property
    def headline(self) -> JobTime:
        """The time of the job's step. GraphError where no step owns any work."""
        mean, steps = round(self.mean_ns), self.counted
        lengths, latencies = [step.length_ns for step in steps], [step.latency_ns for step in steps]
        return JobTime(mean, round(sum(latencies) / len(steps)), self.basis, round(median(lengths)), len(steps))

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
        """For each rank's step, the job's step that it is part of, and whether that counts; its own where it is part of none."""
        out = [(time, False) for time in self.ranks]
        for step, time in zip(self.owners.job, self.job, strict=True):
            for part in step.parts:
                out[part] = time, step.counts
        return out

    def rank_steps_counted(self) -> NDArray[np.bool_]:
        """Which steps of the ranks are part of a step of the job that counts, bool[steps]."""
        return np.array([counts for _, counts in self.of_ranks()], bool)

    def tasks_counted(self) -> NDArray[np.bool_]:
        """Which tasks belong to a step of the job that counts, bool[n]."""
        return np.append(self.rank_steps_counted(), False)[self.owners.step]  # the last is what index -1 finds

    def findings(self) -> tuple[Diagnostic, ...]:
        """What is said of the steps: those left out because something in them happens once, those of several kinds, and a median that is
        far from the mean."""
        return (*self._left_out(), *self._kinds(), *self._uneven())

    def _left_out(self) -> Iterator[Diagnostic]:
        pairs = list(zip(self.owners.job, self.job, strict=True))
        out = [(step, time) for step, time in pairs if step.once and not step.counts]
        if out:
            named = ", ".join(f"{time.name} ({duration(time.length_ns)}, {step.once})" for step, time in out[:6])
            more = f" and {len(out) - 6} more" if len(out) > 6 else ""
            yield Diagnostic("step-left-out", f"left out of every figure, as something in it happens once: {named}{more}")

    def _kinds(self) -> Iterator[Diagnostic]:
        steps = self.owners.counted
        kinds = Counter(self.owners.kinds[i] for i in steps) if len(steps) > 1 else Counter[int]()
        if len(kinds) > 1:
            first = {kind: next(self.job[i].name for i in steps if self.owners.kinds[i] == kind) for kind in kinds}
            listed = ", ".join(f"{number} like {first[kind]}" for kind, number in list(kinds.items())[:6])
            more = f" and {len(kinds) - 6} kinds more" if len(kinds) > 6 else ""
            yield Diagnostic("step-kinds", f"the {count(len(steps), 'step')} that count are of {len(kinds)} kinds: {listed}{more}")

    def _uneven(self) -> Iterator[Diagnostic]:
        if self.counted and (time := self.headline).uneven:
            message = f"the median of the {count(time.steps, 'step')} that count is {duration(time.median_ns)}, their mean"
            yield Diagnostic("steps-uneven", f"{message} {duration(time.step_time_ns)}")


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
    """The first start of every rank's step, and its completion: its last end."""
    if not owners.steps:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    first, tasks = owners.offset[:-1], owners.order
    completes = owners.completes[tasks]
    latest, earliest = np.iinfo(np.int64).max, np.iinfo(np.int64).min
    begin: Int64 = np.minimum.reduceat(np.where(completes, timeline.start[tasks], latest), first)
    completion: Int64 = np.maximum.reduceat(np.where(completes, timeline.end[tasks], earliest), first)
    return begin, completion
