"""The answer of a what-if: the step of the changed job, that of the base (the job as it was), and what moved between them.

Both are simulated, so the replay's own error is in both and cancels in their difference. All figures are those of the mean step of
the job over all ranks, as the loop of its recorded steps takes it in the long run (`analyze.loop.steady`): the period, so that a change
which lets the CPU run further ahead of the devices does not look like one that makes the job slower. In a recording without periods they
are those of the mean latency. `moved` compares the critical paths of base and change, class by class; the entries sum to the
difference of the two steps.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from lumos.analyze.critical_path import CriticalPath, critical_paths
from lumos.analyze.loop.bounds import beyond_bounds, device_reaction
from lumos.analyze.loop.noise import identity, measured_step, noise_unknown, spread, step_times_of
from lumos.analyze.loop.steady import Steady, SweptLoop, altered, part_of_steps, steady, with_other_durations
from lumos.analyze.loop.steps import Members, members
from lumos.analyze.task_class import working
from lumos.analyze.trust import SOUND, Trust, grade
from lumos.changes.as_recorded import as_recorded
from lumos.changes.certainty.unmeasured import mostly_modelled, unmeasured
from lumos.errors import LumosError
from lumos.intervals import either, union, within
from lumos.prediction.ranks import whole
from lumos.result import Shown, plain
from lumos.simulation import Timeline, simulate
from lumos.trace.table import CHANGED, Origin
from lumos.units import duration
from lumos.vocabulary import Basis, Grade

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from lumos.analyze.loop.steps import StepTimes
    from lumos.diagnostics import Diagnostic
    from lumos.graph.table import Evidence, Graph
    from lumos.prediction.predict import Prediction
    from lumos.trace.table import Int64, Job

#: How many contributions an answer lists.
_LARGEST = 5


class Parts(NamedTuple):
    """The four parts of a step's time, each the mean over the ranks, in seconds; they sum to the step."""

    exposed_compute_s: float
    overlapped_s: float
    exposed_communication_s: float
    other_s: float


@dataclass(frozen=True, slots=True)
class PeakMemory:
    """Peak memory of the stage that needs most, bytes; None where neither the job's model nor its allocations are known, and for a change
    of which the recorded allocations do not tell. grade: of what follows from recorded allocations (`changes.memory`)."""

    parameters_bytes: int | None = None
    gradients_bytes: int | None = None
    optimizer_bytes: int | None = None
    activations_bytes: int | None = None
    peak_bytes: int | None = None
    fits: bool | None = None
    grade: Grade | None = None


@dataclass(frozen=True, slots=True, repr=False)
class Outcome(Shown):
    """The step of one job. basis: whether its time is a period or a latency. low, high: the ends of its 80 % interval. critical_path:
    share of the step by class of work. samples: entries of the batch, of a job that has no tokens as well."""

    basis: Basis
    step_time_s: float
    step_time_low_s: float
    step_time_high_s: float
    breakdown: Parts
    tokens_per_s_per_gpu: float | None
    model_flops_utilization: float | None
    memory: PeakMemory
    critical_path: dict[str, float]
    samples_per_s_per_gpu: float | None = None


class Contribution(NamedTuple):
    """The time of one class of work on the critical path of the base and of the changed job, in seconds."""

    what: str
    base_s: float
    changed_s: float

    @property
    def delta_s(self) -> float:
        return self.changed_s - self.base_s


class Provenance(NamedTuple):
    """The shares of the changed step's critical path with measured, scaled and modelled durations; they sum to 1."""

    measured: float
    scaled: float
    modelled: float


@dataclass(frozen=True, repr=False)
class Answer(Shown):
    """The changed job and its base. moved: the largest contributions to the difference, then the rest as one. trust: how far the answer can
    be trusted. job: the changed job as simulated, a loop of measured work or a prediction with measured prices. recorded: the traces whose
    rows the graph's `event` names, with the shapes that they have after the change; None where these are not known. altered: whether any
    work of the job changed. base_origin: what made the base, where no device ran it."""

    outcome: Outcome
    base: Outcome
    measured_step_s: float | None
    changes: tuple[str, ...]
    moved: tuple[Contribution, ...]
    share: Provenance
    diagnostics: tuple[Diagnostic, ...] = field(default_factory=tuple)
    trust: Trust = SOUND
    job: Steady | Prediction | None = field(default=None, compare=False)
    recorded: Job | None = field(default=None, compare=False)
    altered: bool = field(default=True, compare=False)
    base_origin: Origin | None = field(default=None, compare=False)

    @property
    def origin(self) -> Origin:
        """What files of the changed job say of it: what made it, its grade and its interval."""
        made, step = (self.base_origin.what if self.base_origin else ""), self.outcome.step_time_s or 1.0
        what = made if made.endswith(CHANGED) else f"{made}, then {CHANGED}" if made else CHANGED
        return Origin(what, self.trust.grade, (self.outcome.step_time_low_s / step, self.outcome.step_time_high_s / step))

    @cached_property
    def timeline(self) -> Timeline:
        """The run of the changed job: every rank's tasks, and the steps of which the answer tells. `lumos.export` writes it as files.

        Raises LumosError where a predicted job is too large for all of its ranks (`prediction.ranks`).
        """
        if isinstance(self.job, Steady):
            return as_recorded(self.job)
        if self.job is None:
            raise LumosError("this answer was made without a job")
        return simulate(whole(self.job).graph)

    @property
    def graph(self) -> Graph:
        """The dependency graph of the changed job, to simulate, change or export."""
        return self.timeline.graph

    def to_dict(self) -> dict[str, Any]:
        """The keys of `lumos whatif --json`."""
        return {**contracted(self), "changes": list(self.changes)}

    def described(self) -> str:
        """The changed step and the base's, the interval, and what was changed."""
        changed, low, high, base = (
            duration(1e9 * s)
            for s in (self.outcome.step_time_s, self.outcome.step_time_low_s, self.outcome.step_time_high_s, self.base.step_time_s)
        )
        what = ", ".join(self.changes) or "nothing changed"
        return f"{changed} a step instead of {base} (80 % interval {low} to {high}): {what}"


@dataclass(frozen=True, slots=True, eq=False)
class Changed:
    """A changed job of n tasks, ready to simulate.

    owners: the steps of `graph`. low, high: int64[n], the durations of all tasks at the ends of the 80 % interval of the step, ns.
    scaled: bool[n], tasks with a scaled measured duration. modelled: bool[n], tasks whose duration comes from a model alone.
    """

    graph: Graph
    owners: Members
    low: Int64
    high: Int64
    scaled: NDArray[np.bool_]
    modelled: NDArray[np.bool_]
    changes: tuple[str, ...] = ()
    diagnostics: tuple[Diagnostic, ...] = ()

    def with_separate_errors(self, together: NDArray[np.bool_]) -> Changed:
        """The job where `low` and `high` are those of each task alone, with both at the ends of the interval of the step: as far from the
        tasks' times as their errors add up. One unknown decides the tasks `together`, bool[n], which stay at their ends. Other kernels of
        one name are priced in one way and err together; all these errors are independent of each other, so that their sum is the root of
        the sum of their squares, and by what is left of it the other tasks come nearer."""
        of, best = np.where(together, 0, 1 + self.graph.name), self.graph.duration

        def nearer(end: Int64) -> Int64:
            off = end - best
            errors = np.bincount(of, np.abs(off))
            share = (np.linalg.norm(errors) - errors[0]) / max(errors[1:].sum(), 1)
            return np.where(together, end, best + np.rint(off * share).astype(np.int64))

        return replace(self, low=nearer(self.low), high=nearer(self.high))


class StepWork(NamedTuple):
    """The work of one step of a rank, None where the trace does not show it: tokens, model FLOPs, the device's peak FLOP/s, and samples."""

    tokens: int | None = None
    flops: float | None = None
    peak_flops: float | None = None
    samples: float | None = None


class JobBase(NamedTuple):
    """What every answer about a job has in common: its steps, its loop, its steps as measured, and how far the loop is off from them."""

    owners: Members
    figures: LoopFigures
    times: StepTimes
    off: float
    grounds: tuple[Evidence, ...]


@lru_cache(maxsize=2)
def base_of(graph: Graph, repeat: bool) -> JobBase:
    """The same for a job. It is kept for the next what-ifs about that job. repeat: of a loop of the step, also where there is one only."""
    owners = members(graph)
    loop, times = steady(owners, repeat=repeat or None), step_times_of(graph, owners)
    return JobBase(owners, LoopFigures(loop), times, *identity(graph, loop, times))


def answer(
    base: Graph, changed: Changed, before: StepWork = StepWork(), after: StepWork = StepWork(), *, repeat: bool = False,
    step_only: bool = False,
) -> Answer:  # fmt: skip
    """Simulate both jobs and compare them. The changed job has the steps of the base. repeat: compare what a loop of the step takes, also
    where the recording has one step only. step_only: say nothing of critical paths, which take longer than all else.

    Raises LumosError where the change leaves the compared step without work.
    """
    owners, figures, times, off, grounds = base_of(base, repeat)
    first = figures.loop
    second = changed_loop(first, owners, changed)
    changed_figures = LoopFigures(second)
    error = spread(times, off)
    low, high = (_with_durations(second, changed, durations).step_time_ns for durations in (changed.low, changed.high))
    unknown = unmeasured(first, second)
    low, high = min(low, unknown.low_ns), max(high, unknown.high_ns)
    length = max(second.step_time_ns, 1)
    interval = (min(low / length, 1.0) * (1 - error), max(high / length, 1.0) * (1 + error))
    share = Provenance(1.0, 0.0, 0.0) if step_only and not changed.modelled.any() else changed_figures.provenance(changed)
    graph, same_tasks = changed.graph, changed.graph.pred is base.pred
    physics = held(first, second) if same_tasks else ()
    other = same_tasks and (graph.left_out is not None or not np.array_equal(graph.duration, base.duration))
    return Answer(
        outcome(changed_figures, interval, after, step_only=step_only),
        outcome(figures, (1 - error, 1 + error), before, step_only=step_only),
        measured_step(base, times),
        changed.changes,
        () if step_only else contributions(figures.by_class, changed_figures.by_class),
        share,
        (
            *base.diagnostics,
            *changed.diagnostics,
            *noise_unknown(times),
            *part_of_steps(owners),
            *first.findings("the job"),
            *second.findings("the changed job"),
        ),
        trust=grade((*grounds, *physics, *unknown.evidence, *mostly_modelled(share.modelled))),
        job=second,
        altered=second.step_time_ns != first.step_time_ns or other,
    )


def loop_ratio(base: Graph, changed: Graph) -> float:
    """The step of a loop with other durations, as a multiple of that of the base's loop, also where the recording has one step only."""
    owners, figures, *_ = base_of(base, True)
    length = figures.loop.step_time_ns
    return 1e-9 * figures.swept.step_time_ns(replace(owners, graph=changed)) / (1e-9 * length) if length else 1.0


def held(base: Steady, changed: Steady) -> tuple[Evidence, ...]:
    """What physics says against the answer that a job with other durations gives. base, changed: its loops."""
    return (*beyond_bounds(base, changed), *device_reaction(base, changed))


def changed_loop(base: Steady, owners: Members, changed: Changed) -> Steady:
    """The loop of the changed job, which is made of the base's where only durations changed. owners: of the base."""
    after = replace(changed.owners, graph=changed.graph)
    if after.job == owners.job and after.graph.pred is owners.graph.pred:
        return altered(base, after)
    left = {step.name for step in after.job if step.counts}
    empty = [owners.job[i].name for i in owners.counted if owners.job[i].name not in left]
    if empty:
        raise LumosError(f"the change leaves step {empty[0]} without work")
    return steady(after, repeat=base.basis is Basis.PERIOD)


def _with_durations(loop: Steady, changed: Changed, durations: Int64) -> Steady:
    """The changed job's loop with durations at one end of their interval."""
    return loop if np.array_equal(durations, changed.graph.duration) else with_other_durations(loop, durations)


class LoopFigures:
    """What the answer says of a job's loop: the means over the copies of its cycle."""

    def __init__(self, loop: Steady) -> None:
        self.loop = loop
        self.copies = len(loop.cycle)

    @cached_property
    def swept(self) -> SweptLoop:
        """The loop in the order of its work, for what changes only durations."""
        return SweptLoop(self.loop)

    @cached_property
    def paths(self) -> tuple[CriticalPath, ...]:
        """The critical path of every copy of the cycle; they follow one another."""
        return tuple(critical_paths(self.loop.timeline, self.loop.loop.owners, names=self.loop.cycle))

    @cached_property
    def by_class(self) -> dict[str, float]:
        """The time of each class of work on the critical path of a step, ns, the largest first; sums to the step."""
        total: dict[str, float] = {}
        for path in self.paths:
            for name, time in path.by_class.items():
                total[name] = total.get(name, 0) + time / self.copies
        return dict(sorted(total.items(), key=lambda item: -item[1]))

    @cached_property
    def parts(self) -> Parts:
        """The four parts of a step, the mean over the ranks; they sum to the step."""
        owners = self.loop.loop.owners
        return parts_within(self.loop.timeline, working_tasks(owners), self.loop.windows, self.copies)

    def provenance(self, changed: Changed) -> Provenance:
        """The shares of the critical path with measured, scaled and modelled durations."""
        length = max(self.loop.step_time_ns * self.copies, 1)
        masks = changed.modelled, changed.scaled & ~changed.modelled
        source = self.loop.loop.source
        modelled, scaled = (
            sum(link.end_ns - link.start_ns for path in self.paths for link in path.links if mask[source[link.task]]) / length
            for mask in masks
        )
        return Provenance(1 - modelled - scaled, scaled, modelled)


def unchanged_tasks(base: Graph, graph: Graph, changes: tuple[str, ...]) -> Changed:
    """The job whose tasks are those of `base` and whose durations are those of `graph`."""
    same = np.zeros(len(graph), bool)
    return Changed(
        graph, replace(members(base), graph=graph), graph.duration, graph.duration, graph.duration != base.duration, same, changes
    )


def outcome(figures: LoopFigures, spread: tuple[float, float], work: StepWork, *, step_only: bool = False) -> Outcome:
    """The figures of a job's step. spread: the low and the high end of the interval, as multiples of the step. step_only: of `answer`."""
    length = figures.loop.step_time_ns
    seconds = length * 1e-9
    return Outcome(
        basis=figures.loop.basis,
        step_time_s=seconds,
        step_time_low_s=seconds * max(spread[0], 0.0),
        step_time_high_s=seconds * spread[1],
        breakdown=figures.parts,
        tokens_per_s_per_gpu=work.tokens / seconds if work.tokens and seconds else None,
        model_flops_utilization=work.flops / seconds / work.peak_flops if work.flops and work.peak_flops and seconds else None,
        memory=PeakMemory(),
        critical_path={name: ns / length for name, ns in figures.by_class.items()} if length and not step_only else {},
        samples_per_s_per_gpu=work.samples / seconds if work.samples and seconds else None,
    )


def working_tasks(owners: Members) -> tuple[tuple[Int64, Int64], ...]:
    """For each rank: its tasks that compute and its tasks that communicate, each in ascending id."""
    computes, communicates = working(owners)
    ranks = [owners.of_rank(position) for position in range(len(owners.graph.ranks))]
    return tuple((tasks[computes[tasks]], tasks[communicates[tasks]]) for tasks in ranks)


def parts_within(timeline: Timeline, tasks: Sequence[tuple[Int64, Int64]], windows: Sequence[tuple[int, int]], steps: int) -> Parts:
    """The four parts of the time of `windows` (begin, end, ns) on every rank, the mean over the ranks and over the `steps` steps in them.

    tasks: `working_tasks` of the job.
    """
    begin, finish = (np.array(ends, np.int64) for ends in zip(*windows, strict=True))
    first, last, length = begin.min(), finish.max(), int((finish - begin).sum())
    by_rank = []
    for of_rank in tasks:
        busy = ((timeline.start[t], timeline.end[t]) for t in of_rank)
        compute, communication = (union(s[here], e[here]) for s, e in busy for here in [(e > first) & (s < last)])
        a, b, both = (int(within(u, begin, finish).sum()) for u in (compute, communication, either(compute, communication)))
        by_rank.append((both - b, a + b - both, both - a, length - both))
    return Parts(*(np.array(by_rank, float).mean(axis=0) / steps * 1e-9).tolist())


def contributions(base: Mapping[str, float], changed: Mapping[str, float]) -> tuple[Contribution, ...]:
    """The classes whose time on the critical path (ns) changed most, and what remains as "everything else"."""
    names = dict.fromkeys([*base, *changed])
    every = [Contribution(n, base.get(n, 0) * 1e-9, changed.get(n, 0) * 1e-9) for n in names]
    return largest(every)


def largest(all_classes: list[Contribution]) -> tuple[Contribution, ...]:
    """The contributions that changed most, largest first, and the sum of the rest."""
    all_classes = sorted((c for c in all_classes if c.delta_s), key=lambda c: -abs(c.delta_s))
    rest = all_classes[_LARGEST:]
    if rest:
        all_classes = [
            *all_classes[:_LARGEST],
            Contribution("everything else", sum(c.base_s for c in rest), sum(c.changed_s for c in rest)),
        ]
    return tuple(all_classes)


def contracted(result: Answer) -> dict[str, Any]:
    """The object of `lumos whatif --json`: the changed job's keys, the base's under `base`."""
    return {
        **plain(result.outcome),
        "base": plain(result.base),
        "measured_step_s": result.measured_step_s,
        "changes": result.changes,
        "moved": [{**c._asdict(), "delta_s": c.delta_s} for c in result.moved],
        "share": plain(result.share),
        "trust": plain(result.trust),
        "diagnostics": plain(result.diagnostics),
    }
