"""What a what-if answers: the step of the changed job beside that of the base, and what moved.

Both are simulated, so the replay's own error is in both and cancels in their difference. Figures are those of one step
of the job, all ranks together: the step whose length in the base is the median one. A change that lets the CPU run further
ahead has a step begin while the device still works on the one before; what it overlaps more than in the base is not counted
(`Window`). `moved` compares the critical paths of base and change, class by class; the entries sum to the difference of the
two steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lumos.analyze.breakdown import working
from lumos.analyze.critical_path import GROUPS, CriticalPath, Link, attribute, critical_paths
from lumos.analyze.steps import Members, job_steps, members, only, spans
from lumos.diagnostics import Diagnostic
from lumos.errors import LumosError
from lumos.graph.table import Graph
from lumos.intervals import either, union, within
from lumos.predict.predict import Prediction
from lumos.result import Shown, plain
from lumos.simulate import Timeline, measured, simulate
from lumos.trace.table import Int64
from lumos.units import duration
from lumos.whatif.planned import Planned

#: Half-width of the 80 % interval of a normal distribution, in standard deviations.
Z80 = 1.2816
#: Standard deviation of a normal distribution / its median distance to the median.
NORMAL = 1.4826
#: A step shorter than this share of the median one was cut by the window.
CUT = 0.7
#: Steps that tell how far steps are apart, at least.
FEWEST = 3
#: Contributions that an answer lists.
LARGEST = 5


class Parts(NamedTuple):
    """A step's time, four ways, the mean over the ranks; the four sum to it. Seconds."""

    exposed_compute_s: float
    overlapped_s: float
    exposed_communication_s: float
    other_s: float


@dataclass(frozen=True, slots=True)
class Memory:
    """Peak memory of the stage that needs most, bytes; None where the job's model is not known."""

    parameters_bytes: int | None = None
    gradients_bytes: int | None = None
    optimizer_bytes: int | None = None
    activations_bytes: int | None = None
    peak_bytes: int | None = None
    fits: bool | None = None


@dataclass(frozen=True, slots=True, repr=False)
class Outcome(Shown):
    """One job's step. low, high: 80 % interval. critical_path: share of the step by what it went to."""

    step: str
    step_time_s: float
    step_time_low_s: float
    step_time_high_s: float
    breakdown: Parts
    tokens_per_s_per_gpu: float | None
    model_flops_utilization: float | None
    memory: Memory
    critical_path: dict[str, float]


class Contribution(NamedTuple):
    """How much more (or less, negative) of the critical path one class of work takes. Seconds."""

    what: str
    base_s: float
    changed_s: float

    @property
    def delta_s(self) -> float:
        return self.changed_s - self.base_s


class Share(NamedTuple):
    """How much of the changed step's critical path keeps measured durations, scales them, or was modelled; sums to 1."""

    measured: float
    scaled: float
    modelled: float


@dataclass(frozen=True, slots=True, repr=False)
class Answer(Shown):
    """The changed job beside its base. moved: the largest contributions to the difference, then the rest as one."""

    outcome: Outcome
    base: Outcome
    measured_step_s: float | None
    changes: tuple[str, ...]
    moved: tuple[Contribution, ...]
    share: Share
    diagnostics: tuple[Diagnostic, ...] = field(default_factory=tuple)

    def to_dict(self) -> dict[str, Any]:
        """The keys of `lumos whatif --json`."""
        return {**contracted(self), "changes": list(self.changes)}

    def described(self) -> str:
        """The changed step beside the base's, its interval, and what was changed."""
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
    """A changed job, ready to simulate: its graph and steps, its durations at the ends of their interval (int64[n] ns), and
    which of its tasks (bool[n]) scale a measured duration or rest on a model alone."""

    graph: Graph
    owners: Members
    low: Int64
    high: Int64
    scaled: NDArray[np.bool_]
    modelled: NDArray[np.bool_]
    changes: tuple[str, ...] = ()
    diagnostics: tuple[Diagnostic, ...] = ()


class Work(NamedTuple):
    """What one step of a rank does, where the trace's shapes tell: tokens, model FLOPs, and the peak rate of its device."""

    tokens: int | None = None
    flops: float | None = None
    peak_flops: float | None = None


def answer(base: Graph, changed: Changed, before: Work = Work(), after: Work = Work()) -> Answer:
    """Simulate both jobs and compare. The changed one has the base's steps."""
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
    share = Share(1 - times["modelled"] - times["scaled"], times["scaled"], times["modelled"])
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
    """A job of the base's tasks with other durations."""
    same = np.zeros(len(graph), bool)
    return Changed(graph, members(base), graph.duration, graph.duration, graph.duration != base.duration, same, changes)


def outcome(timeline: Timeline, owners: Members, path: CriticalPath, spread: tuple[float, float], work: Work) -> Outcome:
    """The figures of one step. spread: low and high end of the interval / step."""
    length = path.duration_ns
    shares = {name: ns / length for name, ns in path.by_class.items()} if length else {}
    seconds = length * 1e-9
    return Outcome(
        step=path.name,
        step_time_s=seconds,
        step_time_low_s=seconds * spread[0],
        step_time_high_s=seconds * spread[1],
        breakdown=parts(timeline, owners, path),
        tokens_per_s_per_gpu=work.tokens / seconds if work.tokens and seconds else None,
        model_flops_utilization=work.flops / seconds / work.peak_flops if work.flops and work.peak_flops and seconds else None,
        memory=Memory(),
        critical_path=shares,
    )


def parts(timeline: Timeline, owners: Members, path: CriticalPath) -> Parts:
    """The step of `path` four ways: the mean over the ranks; time before a rank's step begins or after it ends is `other`."""
    mine = only(owners, path.name)
    return parts_within(timeline, mine, working_tasks(owners), (path.start_ns, path.start_ns + path.duration_ns))


def working_tasks(owners: Members) -> tuple[tuple[Int64, Int64], ...]:
    """By rank: its tasks that compute, and that communicate, in ascending id."""
    computes, communicates = working(owners)
    ranks = [owners.of_rank(position) for position in range(len(owners.graph.ranks))]
    return tuple((tasks[computes[tasks]], tasks[communicates[tasks]]) for tasks in ranks)


def parts_within(timeline: Timeline, owners: Members, tasks: Sequence[tuple[Int64, Int64]], window: tuple[int, int]) -> Parts:
    """The time of `window` (ns) four ways, the mean over the steps of `owners`, each in the window of its own; before and after
    that a rank does neither. tasks: `working_tasks` of the job."""
    first, last = window
    found = []
    for rank, start, stop in zip(owners.step_rank().tolist(), *spans(timeline, owners), strict=True):
        begin, finish = max(int(start), first), max(int(stop), first)
        busy = ((timeline.start[t], timeline.end[t]) for t in tasks[rank])
        compute, communication = (union(s[here], e[here]) for s, e in busy for here in [(e > begin) & (s < finish)])
        a, b, both = (
            int(within(u, np.array([begin]), np.array([finish]))[0]) for u in (compute, communication, either(compute, communication))
        )
        found.append((both - b, a + b - both, both - a, last - first - both))
    return Parts(*(np.array(found, float).mean(axis=0) * 1e-9).tolist())


def contributions(base: CriticalPath, changed: CriticalPath) -> tuple[Contribution, ...]:
    """The classes whose share of the critical path changed most, and what remains as "everything else"."""
    names = dict.fromkeys([*base.by_class, *changed.by_class])
    every = [Contribution(n, base.by_class.get(n, 0) * 1e-9, changed.by_class.get(n, 0) * 1e-9) for n in names]
    return _largest(every)


def _largest(every: list[Contribution]) -> tuple[Contribution, ...]:
    """Those that changed most, largest first, and the rest as one."""
    every = sorted((c for c in every if c.delta_s), key=lambda c: -abs(c.delta_s))
    rest = every[LARGEST:]
    if rest:
        every = [*every[:LARGEST], Contribution("everything else", sum(c.base_s for c in rest), sum(c.changed_s for c in rest))]
    return tuple(every)


def planned_answer(
    found: Planned, step: str, changes: tuple[str, ...], error: float, measured_s: float | None, diagnostics: tuple[Diagnostic, ...]
) -> Answer:
    """The answer of a change of plan. error: of the base's replay, as a fraction of the step."""
    base, changed = (_of_prediction(p, step, found.factor, error, whole) for p, whole in ((found.base, True), (found.changed, False)))
    names = dict.fromkeys([*base.critical_path, *changed.critical_path])
    every = [
        Contribution(n, base.critical_path.get(n, 0.0) * base.step_time_s, changed.critical_path.get(n, 0.0) * changed.step_time_s)
        for n in names
    ]
    share = Share(1 - found.scaled, found.scaled, 0.0)
    notes = tuple(dict.fromkeys((*diagnostics, *found.changed.diagnostics)))
    return Answer(changed, base, measured_s, changes, _largest(every), share, notes)


def _of_prediction(p: Prediction, step: str, factor: float, error: float, measured_: bool) -> Outcome:
    """A prediction as an outcome. measured_: it is the base, whose time is known but for the replay's error."""
    time = p.time.time_s * factor
    low, high = (time, time) if measured_ else (p.time.low_s * factor, p.time.high_s * factor)
    whole = sum(p.breakdown.values())
    m = p.memory
    return Outcome(
        step=step,
        step_time_s=time,
        step_time_low_s=low * (1 - error),
        step_time_high_s=high * (1 + error),
        breakdown=Parts(**{key: value / whole * time for key, value in p.breakdown.items()}),
        tokens_per_s_per_gpu=p.tokens_per_s_per_gpu / factor,
        model_flops_utilization=p.model_flops_utilization / factor,
        memory=Memory(m.parameters_bytes, m.gradients_bytes, m.optimizer_bytes, m.activations_bytes, m.peak_bytes, m.fits),
        critical_path=p.critical_path,
    )


def spread(graph: Graph, replayed: Timeline, owners: Members) -> float:
    """Half-width of the 80 % interval around an unchanged job, as a fraction of the step: by how much the replay misses the
    steps of the trace at the most, and how far these are apart themselves. All answers from a trace hold at least this."""
    return float(np.hypot(replay_error(graph, replayed, owners), step_spread(replayed, owners)))


def replay_error(graph: Graph, replayed: Timeline, owners: Members) -> float:
    """The largest error of the replay over the job's steps, as a fraction; 0 for a graph that was never measured."""
    if graph.measured_start is None:
        return 0.0
    truth, found = (step_lengths(run, owners) for run in (measured(graph), replayed))
    return max((abs(found[name] / length - 1) for name, length in truth.items() if length), default=0.0)


def step_spread(timeline: Timeline, owners: Members) -> float:
    """Half-width of the 80 % interval of a step among those of its job, as a fraction; 0 with fewer than three whole steps.

    From the median distance to the median step, so that a slow first step does not widen it. Steps much shorter than the
    median are cut by the window and left out.
    """
    lengths = _whole_steps(timeline, owners)
    if len(lengths) < FEWEST:
        return 0.0
    middle = np.median(lengths)
    return float(Z80 * NORMAL * np.median(np.abs(lengths - middle)) / middle)


def _whole_steps(timeline: Timeline, owners: Members) -> NDArray[np.float64]:
    """ns of the steps of the job that the window did not cut."""
    lengths = np.array(list(step_lengths(timeline, owners).values()), float)
    return lengths[lengths >= CUT * np.median(lengths)] if len(lengths) else lengths


def noise_unknown(timeline: Timeline, owners: Members) -> tuple[Diagnostic, ...]:
    """What to say of the interval where the trace has too few steps to tell how far they are apart."""
    count = len(_whole_steps(timeline, owners))
    if count >= FEWEST:
        return ()
    word = f"{count} whole step{'s' if count != 1 else ''}"
    message = f"the trace has {word}: how far steps are apart is unknown and not in the interval; record {FEWEST} or more"
    return (Diagnostic("step-noise-unknown", message),)


class Window(NamedTuple):
    """A step of the job, ns: from its first start to its last end over all ranks; previous: the last end of the step that
    begins before it (its own start without any)."""

    start: int
    end: int
    previous: int

    @property
    def overlap(self) -> int:
        """For how long it runs beside the steps before it."""
        return max(0, self.previous - self.start)

    def begin(self, overlap: int) -> int:
        """Where it begins if it counts no more than `overlap` of that."""
        return min(max(self.start, self.previous - overlap), self.end)

    def length(self, overlap: int) -> int:
        """How long it takes from there."""
        return self.end - self.begin(overlap)


def windows(timeline: Timeline, owners: Members) -> dict[str, Window]:
    """Every step of the job."""
    start, end = spans(timeline, owners)
    every = [(name, int(start[parts].min()), int(end[parts].max())) for name, parts in job_steps(owners).items()]
    before: dict[str, int] = {}
    latest: int | None = None
    for name, first, last in sorted(every, key=lambda step: step[1:]):
        before[name], latest = first if latest is None else latest, last
    return {name: Window(first, last, before[name]) for name, first, last in every}


def since(path: CriticalPath, begin: int) -> CriticalPath:
    """The path from `begin` (ns) on."""
    late = begin - path.start_ns
    if late <= 0:
        return path
    links = tuple(_later(link, begin) for link in path.links if link.end_ns > begin)
    by_class = attribute(links)
    by_group = {group: total for group, names in GROUPS.items() if (total := sum(by_class.get(n, 0) for n in names))}
    return replace(path, start_ns=begin, duration_ns=path.duration_ns - late, by_class=by_class, by_group=by_group, links=links)


def _later(link: Link, begin: int) -> Link:
    """The part of a link after `begin`: first goes the delay before its work, then idle time, then work."""
    start = link.start_ns - link.delay_ns - link.idle_ns
    delay = max(0, link.delay_ns - max(0, begin - start))
    idle = max(0, link.idle_ns - max(0, begin - start - link.delay_ns))
    return link._replace(start_ns=max(link.start_ns, begin), delay_ns=delay, idle_ns=idle)


def step_lengths(timeline: Timeline, owners: Members) -> dict[str, int]:
    """Length of each step of the job, from its first start to its last end over all ranks, ns."""
    return {name: window.end - window.start for name, window in windows(timeline, owners).items()}


def measured_step(graph: Graph, owners: Members, name: str) -> float | None:
    """The step as recorded, seconds; None for a graph that was never measured."""
    if graph.measured_start is None:
        return None
    length = step_lengths(measured(graph), owners).get(name)
    return None if length is None else length * 1e-9


def contracted(found: Answer) -> dict[str, Any]:
    """The object of `lumos whatif --json`: the changed job's keys, the base's under `base`."""
    return {
        **plain(found.outcome),
        "base": plain(found.base),
        "measured_step_s": found.measured_step_s,
        "changes": found.changes,
        "moved": [{**c._asdict(), "delta_s": c.delta_s} for c in found.moved],
        "share": plain(found.share),
        "diagnostics": plain(found.diagnostics),
    }
