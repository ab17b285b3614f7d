"""The answer of a what-if: the step of the changed job, that of the base (the job as it was), and what moved between them.

Both are simulated, so the replay's own error is in both and cancels in their difference. All figures are those of one step
of the job over all ranks: the step whose length in the base is the median. A change that lets the CPU run further ahead lets a
step begin while the device still works on the step before it; overlap beyond that of the base is not counted (`StepWindow`).
`moved` compares the critical paths of base and change, class by class; the entries sum to the difference of the two steps.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from lumos.analyze.breakdown import working
from lumos.analyze.critical_path import PATH_GROUPS, CriticalPath, Link, attribute, critical_paths
from lumos.analyze.steps import Members, job_steps, members, only_steps, step_spans
from lumos.diagnostics import Diagnostic
from lumos.errors import LumosError
from lumos.intervals import either, union, within
from lumos.result import Shown, plain
from lumos.simulate import Timeline, measured, simulate
from lumos.units import duration

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from lumos.graph.table import Graph
    from lumos.predict.predict import Prediction
    from lumos.trace.table import Int64
    from lumos.whatif.planned import Planned

#: Half-width of the 80 % interval of a normal distribution, in standard deviations.
Z80 = 1.2816
#: Standard deviation of a normal distribution, divided by the median distance from its median.
NORMAL = 1.4826
#: A step shorter than this share of the median one was cut by the window.
CUT = 0.7
#: The fewest whole steps from which the spread of the steps is estimated.
FEWEST = 3
#: How many contributions an answer lists.
LARGEST = 5


class Parts(NamedTuple):
    """The four parts of a step's time, each the mean over the ranks, in seconds; they sum to the step."""

    exposed_compute_s: float
    overlapped_s: float
    exposed_communication_s: float
    other_s: float


@dataclass(frozen=True, slots=True)
class PeakMemory:
    """Peak memory of the stage that needs most, bytes; None where the job's model is not known."""

    parameters_bytes: int | None = None
    gradients_bytes: int | None = None
    optimizer_bytes: int | None = None
    activations_bytes: int | None = None
    peak_bytes: int | None = None
    fits: bool | None = None


@dataclass(frozen=True, slots=True, repr=False)
class Outcome(Shown):
    """The step of one job. low, high: the ends of its 80 % interval. critical_path: share of the step by class of work."""

    step: str
    step_time_s: float
    step_time_low_s: float
    step_time_high_s: float
    breakdown: Parts
    tokens_per_s_per_gpu: float | None
    model_flops_utilization: float | None
    memory: PeakMemory
    critical_path: dict[str, float]


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


@dataclass(frozen=True, slots=True, repr=False)
class Answer(Shown):
    """The changed job and its base. moved: the largest contributions to the difference, then the rest as one."""

    outcome: Outcome
    base: Outcome
    measured_step_s: float | None
    changes: tuple[str, ...]
    moved: tuple[Contribution, ...]
    share: Provenance
    diagnostics: tuple[Diagnostic, ...] = field(default_factory=tuple)

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


def typical_step(paths: tuple[CriticalPath, ...]) -> int:
    """Position of the step of median length (the lower of two). LumosError where the job has no step with work."""
    if not paths:
        raise LumosError("the job has no step that owns any work; record whole steps (ProfilerStep#… marks)")
    lengths = [path.duration_ns for path in paths]
    return int(np.argsort(lengths, kind="stable")[(len(lengths) - 1) // 2])


@dataclass(frozen=True, slots=True, eq=False)
class Changed:
    """A changed job of n tasks, ready to simulate.

    owners: the steps of `graph`. low, high: int64[n], the durations at the ends of their 80 % interval, ns. scaled: bool[n], tasks
    with a scaled measured duration. modelled: bool[n], tasks whose duration comes from a model alone.
    """

    graph: Graph
    owners: Members
    low: Int64
    high: Int64
    scaled: NDArray[np.bool_]
    modelled: NDArray[np.bool_]
    changes: tuple[str, ...] = ()
    diagnostics: tuple[Diagnostic, ...] = ()


class StepWork(NamedTuple):
    """The work of one step of a rank, None where the trace does not show it: tokens, model FLOPs, and the device's peak FLOP/s."""

    tokens: int | None = None
    flops: float | None = None
    peak_flops: float | None = None


def answer(base: Graph, changed: Changed, before: StepWork = StepWork(), after: StepWork = StepWork()) -> Answer:
    """Simulate both jobs and compare them. The changed job has the steps of the base.

    Raises LumosError where the change leaves the compared step without work.
    """
    timeline, replayed = simulate(base), simulate(changed.graph)
    owners = members(base)
    paths, changed_paths = critical_paths(timeline, owners), critical_paths(replayed, changed.owners)
    at = typical_step(paths)
    error = spread(base, timeline, owners)
    path = paths[at]
    changed_path = next((p for p in changed_paths if p.name == path.name), None)
    if changed_path is None:
        raise LumosError(f"the change leaves step {path.name} without work")
    ahead = windows(timeline, owners)[path.name].overlap
    changed_path = since(changed_path, windows(replayed, changed.owners)[path.name].begin(ahead))
    low, high = (
        windows(simulate(changed.graph, durations), changed.owners)[path.name].length(ahead) for durations in (changed.low, changed.high)
    )
    length = max(changed_path.duration_ns, 1)
    times = {
        kind: sum(link.end_ns - link.start_ns for link in changed_path.links if mask[link.task]) / length
        for kind, mask in (("modelled", changed.modelled), ("scaled", changed.scaled & ~changed.modelled))
    }
    share = Provenance(1 - times["modelled"] - times["scaled"], times["scaled"], times["modelled"])
    interval = (min(low / length, 1.0) * (1 - error), max(high / length, 1.0) * (1 + error))
    return Answer(
        outcome(replayed, changed.owners, changed_path, interval, after),
        outcome(timeline, owners, path, (1 - error, 1 + error), before),
        measured_step(base, owners, path.name),
        changed.changes,
        contributions(path, changed_path),
        share,
        (*base.diagnostics, *changed.diagnostics, *noise_unknown(timeline, owners)),
    )


def unchanged_tasks(base: Graph, graph: Graph, changes: tuple[str, ...]) -> Changed:
    """The job whose tasks are those of `base` and whose durations are those of `graph`."""
    same = np.zeros(len(graph), bool)
    return Changed(graph, members(base), graph.duration, graph.duration, graph.duration != base.duration, same, changes)


def outcome(timeline: Timeline, owners: Members, path: CriticalPath, spread: tuple[float, float], work: StepWork) -> Outcome:
    """The figures of one step. spread: the low and the high end of the interval, as multiples of the step."""
    length = path.duration_ns
    shares = {name: ns / length for name, ns in path.by_class.items()} if length else {}
    seconds = length * 1e-9
    return Outcome(
        step=path.name,
        step_time_s=seconds,
        step_time_low_s=seconds * spread[0],
        step_time_high_s=seconds * spread[1],
        breakdown=step_parts(timeline, owners, path),
        tokens_per_s_per_gpu=work.tokens / seconds if work.tokens and seconds else None,
        model_flops_utilization=work.flops / seconds / work.peak_flops if work.flops and work.peak_flops and seconds else None,
        memory=PeakMemory(),
        critical_path=shares,
    )


def step_parts(timeline: Timeline, owners: Members, path: CriticalPath) -> Parts:
    """The four parts of the step of `path`, the mean over the ranks. Time before a rank's step begins and after it ends is `other`."""
    return parts_within(timeline, only_steps(owners, path.name), working_tasks(owners), (path.start_ns, path.start_ns + path.duration_ns))


def working_tasks(owners: Members) -> tuple[tuple[Int64, Int64], ...]:
    """For each rank: its tasks that compute and its tasks that communicate, each in ascending id."""
    computes, communicates = working(owners)
    ranks = [owners.of_rank(position) for position in range(len(owners.graph.ranks))]
    return tuple((tasks[computes[tasks]], tasks[communicates[tasks]]) for tasks in ranks)


def parts_within(timeline: Timeline, owners: Members, tasks: Sequence[tuple[Int64, Int64]], window: tuple[int, int]) -> Parts:
    """The four parts of the time of `window` (ns), the mean over the steps of `owners`. Each rank's work counts from the start to the
    end of its own step; the rest of the window is `other`. tasks: `working_tasks` of the job."""
    first, last = window
    by_rank = []
    for rank, start, stop in zip(owners.step_rank().tolist(), *step_spans(timeline, owners), strict=True):
        begin, finish = max(int(start), first), max(int(stop), first)
        busy = ((timeline.start[t], timeline.end[t]) for t in tasks[rank])
        compute, communication = (union(s[here], e[here]) for s, e in busy for here in [(e > begin) & (s < finish)])
        a, b, both = (
            int(within(u, np.array([begin]), np.array([finish]))[0]) for u in (compute, communication, either(compute, communication))
        )
        by_rank.append((both - b, a + b - both, both - a, last - first - both))
    return Parts(*(np.array(by_rank, float).mean(axis=0) * 1e-9).tolist())


def contributions(base: CriticalPath, changed: CriticalPath) -> tuple[Contribution, ...]:
    """The classes whose share of the critical path changed most, and what remains as "everything else"."""
    names = dict.fromkeys([*base.by_class, *changed.by_class])
    every = [Contribution(n, base.by_class.get(n, 0) * 1e-9, changed.by_class.get(n, 0) * 1e-9) for n in names]
    return _largest(every)


def _largest(all_classes: list[Contribution]) -> tuple[Contribution, ...]:
    """The contributions that changed most, largest first, and the sum of the rest."""
    all_classes = sorted((c for c in all_classes if c.delta_s), key=lambda c: -abs(c.delta_s))
    rest = all_classes[LARGEST:]
    if rest:
        all_classes = [*all_classes[:LARGEST], Contribution("everything else", sum(c.base_s for c in rest), sum(c.changed_s for c in rest))]
    return tuple(all_classes)


def planned_answer(
    planned: Planned, step: str, changes: tuple[str, ...], error: float, measured_s: float | None, diagnostics: tuple[Diagnostic, ...]
) -> Answer:
    """The answer of a change of the identified plan. error: half-width of the interval of the base, as a fraction of the step."""
    base, changed = (
        _of_prediction(p, step, planned.factor, error, is_base) for p, is_base in ((planned.base, True), (planned.changed, False))
    )
    names = dict.fromkeys([*base.critical_path, *changed.critical_path])
    every = [
        Contribution(n, base.critical_path.get(n, 0.0) * base.step_time_s, changed.critical_path.get(n, 0.0) * changed.step_time_s)
        for n in names
    ]
    share = Provenance(1 - planned.scaled, planned.scaled, 0.0)
    notes = tuple(dict.fromkeys((*diagnostics, *planned.changed.diagnostics)))
    return Answer(changed, base, measured_s, changes, _largest(every), share, notes)


def _of_prediction(p: Prediction, step: str, factor: float, error: float, is_base: bool) -> Outcome:
    """A prediction as an outcome. is_base: its time was measured, so the only error is that of the replay."""
    time = p.time.time_s * factor
    low, high = (time, time) if is_base else (p.time.low_s * factor, p.time.high_s * factor)
    total = sum(p.breakdown.values())
    m = p.memory
    return Outcome(
        step=step,
        step_time_s=time,
        step_time_low_s=low * (1 - error),
        step_time_high_s=high * (1 + error),
        breakdown=Parts(**{key: value / total * time for key, value in p.breakdown.items()}),
        tokens_per_s_per_gpu=p.tokens_per_s_per_gpu / factor,
        model_flops_utilization=p.model_flops_utilization / factor,
        memory=PeakMemory(m.parameters_bytes, m.gradients_bytes, m.optimizer_bytes, m.activations_bytes, m.peak_bytes, m.fits),
        critical_path=p.critical_path,
    )


def spread(graph: Graph, replayed: Timeline, owners: Members) -> float:
    """Half-width of the 80 % interval of an unchanged job, as a fraction of the step: the largest error of the replay over the
    recorded steps, and how much these differ among themselves. No answer from a trace has a narrower interval."""
    return float(np.hypot(replay_error(graph, replayed, owners), step_spread(replayed, owners)))


def replay_error(graph: Graph, replayed: Timeline, owners: Members) -> float:
    """The largest error of the replay over the job's steps, as a fraction; 0 for a graph that was never measured."""
    if graph.measured_start is None:
        return 0.0
    truth, simulated = (step_lengths(run, owners) for run in (measured(graph), replayed))
    return max((abs(simulated[name] / length - 1) for name, length in truth.items() if length), default=0.0)


def step_spread(timeline: Timeline, owners: Members) -> float:
    """Half-width of the 80 % interval in which the steps of a job lie, as a fraction; 0 with fewer than three whole steps.

    Computed from the median distance from the median step, so a slow first step does not widen it. Steps much shorter than
    the median were cut by the window and are left out.
    """
    lengths = _whole_steps(timeline, owners)
    if len(lengths) < FEWEST:
        return 0.0
    middle = np.median(lengths)
    return float(Z80 * NORMAL * np.median(np.abs(lengths - middle)) / middle)


def _whole_steps(timeline: Timeline, owners: Members) -> NDArray[np.float64]:
    """Lengths of the steps of the job that the window did not cut, ns."""
    lengths = np.array(list(step_lengths(timeline, owners).values()), float)
    return lengths[lengths >= CUT * np.median(lengths)] if len(lengths) else lengths


def noise_unknown(timeline: Timeline, owners: Members) -> tuple[Diagnostic, ...]:
    """The diagnostic for a trace with too few steps to estimate how much they differ; () where it has enough."""
    count = len(_whole_steps(timeline, owners))
    if count >= FEWEST:
        return ()
    word = f"{count} whole step{'s' if count != 1 else ''}"
    message = f"the trace has {word}: how much steps differ is unknown and not part of the interval; record {FEWEST} or more"
    return (Diagnostic("step-noise-unknown", message),)


class StepWindow(NamedTuple):
    """A step of the job, ns. start, end: its first start and its last end over all ranks. previous: the last end of the step that
    begins before it, or its own start where there is none."""

    start: int
    end: int
    previous: int

    @property
    def overlap(self) -> int:
        """How long it runs at the same time as the step before it."""
        return max(0, self.previous - self.start)

    def begin(self, overlap: int) -> int:
        """When the step begins if no more than `overlap` ns of that time are counted."""
        return min(max(self.start, self.previous - overlap), self.end)

    def length(self, overlap: int) -> int:
        """How long the step takes from then on."""
        return self.end - self.begin(overlap)


def windows(timeline: Timeline, owners: Members) -> dict[str, StepWindow]:
    """The window of every step of the job, by name."""
    start, end = step_spans(timeline, owners)
    every = [(name, int(start[parts].min()), int(end[parts].max())) for name, parts in job_steps(owners).items()]
    before: dict[str, int] = {}
    latest: int | None = None
    for name, first, last in sorted(every, key=lambda step: step[1:]):
        before[name], latest = first if latest is None else latest, last
    return {name: StepWindow(first, last, before[name]) for name, first, last in every}


def since(path: CriticalPath, begin: int) -> CriticalPath:
    """The part of the path from `begin` (ns) on."""
    late = begin - path.start_ns
    if late <= 0:
        return path
    links = tuple(_later(link, begin) for link in path.links if link.end_ns > begin)
    by_class = attribute(links)
    by_group = {group: total for group, names in PATH_GROUPS.items() if (total := sum(by_class.get(n, 0) for n in names))}
    return replace(path, start_ns=begin, duration_ns=path.duration_ns - late, by_class=by_class, by_group=by_group, links=links)


def _later(link: Link, begin: int) -> Link:
    """The part of a link after `begin`. What is cut off is first its delay, then its idle time, then its work."""
    start = link.start_ns - link.delay_ns - link.idle_ns
    delay = max(0, link.delay_ns - max(0, begin - start))
    idle = max(0, link.idle_ns - max(0, begin - start - link.delay_ns))
    return link._replace(start_ns=max(link.start_ns, begin), delay_ns=delay, idle_ns=idle)


def step_lengths(timeline: Timeline, owners: Members) -> dict[str, int]:
    """Length of each step of the job, from its first start to its last end over all ranks, ns."""
    return {name: window.end - window.start for name, window in windows(timeline, owners).items()}


def measured_step(graph: Graph, owners: Members, name: str) -> float | None:
    """The length of the step as recorded, in seconds; None for a graph that was never measured."""
    if graph.measured_start is None:
        return None
    length = step_lengths(measured(graph), owners).get(name)
    return None if length is None else length * 1e-9


def contracted(result: Answer) -> dict[str, Any]:
    """The object of `lumos whatif --json`: the changed job's keys, the base's under `base`."""
    return {
        **plain(result.outcome),
        "base": plain(result.base),
        "measured_step_s": result.measured_step_s,
        "changes": result.changes,
        "moved": [{**c._asdict(), "delta_s": c.delta_s} for c in result.moved],
        "share": plain(result.share),
        "diagnostics": plain(result.diagnostics),
    }
