"""What a what-if answers: the step of the changed job beside that of the base, and what moved.

Both are simulated, so the replay's own error is in both and cancels in their difference. Figures are those of one step
of the job, all ranks together: the step whose length in the base is the median one. `moved` compares the critical paths
of base and change, class by class; the entries sum to the difference of the two steps.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lumos.analyze.breakdown import four_way
from lumos.analyze.critical_path import CriticalPath, critical_paths
from lumos.analyze.steps import Members, members, spans
from lumos.diagnostics import Diagnostic
from lumos.errors import LumosError
from lumos.graph.table import Graph
from lumos.layout.planned import Planned
from lumos.layout.predict import Prediction
from lumos.result import Shown, plain
from lumos.simulate import Timeline, measured, simulate
from lumos.trace.table import Int64

#: Half-width of the 80 % interval of a normal distribution, in standard deviations.
Z80 = 1.2816
#: A step shorter than this share of the median one was cut by the window.
CUT = 0.7
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


@dataclass(frozen=True, slots=True)
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


@dataclass(frozen=True, slots=True)
class Answer(Shown):
    """The changed job beside its base. moved: the largest contributions to the difference, then the rest as one."""

    outcome: Outcome
    base: Outcome
    measured_step_s: float | None
    changes: tuple[str, ...]
    moved: tuple[Contribution, ...]
    share: Share
    diagnostics: tuple[Diagnostic, ...] = field(default_factory=tuple)


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
    error = float(np.hypot(replay_error(base, timeline), step_spread(timeline, owners)))
    path = paths[at]
    changed_path = next((p for p in changed_paths if p.name == path.name), None)
    if changed_path is None:
        raise LumosError(f"the change leaves step {path.name} without work")
    low = _length(simulate(changed.graph, changed.low), changed.owners, path.name)
    high = _length(simulate(changed.graph, changed.high), changed.owners, path.name)
    length = max(changed_path.duration_ns, 1)
    times = {
        kind: sum(link.end_ns - link.start_ns for link in changed_path.links if mask[link.task]) / length
        for kind, mask in (("modelled", changed.modelled), ("scaled", changed.scaled & ~changed.modelled))
    }
    share = Share(1 - times["modelled"] - times["scaled"], times["scaled"], times["modelled"])
    spread = (min(low / length, 1.0) * (1 - error), max(high / length, 1.0) * (1 + error))
    return Answer(
        outcome(replayed, changed.owners, changed_path, spread, after),
        outcome(timeline, owners, path, (1 - error, 1 + error), before),
        measured_step(base, path.name),
        changed.changes,
        contributions(path, changed_path),
        share,
        (*base.diagnostics, *changed.diagnostics),
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
    """The job's step four ways: the mean over the ranks; time before a rank's step begins or after it ends is `other`."""
    start, end = spans(timeline, owners)
    mine = [
        i
        for i, step in enumerate(owners.steps)
        if step.name == path.name and start[i] >= path.start_ns and end[i] <= path.start_ns + path.duration_ns
    ]
    if not mine:
        return Parts(0.0, 0.0, 0.0, path.duration_ns * 1e-9)
    every = np.array(four_way(timeline, owners), float)[mine]
    every[:, 3] += path.duration_ns - (end - start)[mine]
    return Parts(*(every.mean(axis=0) * 1e-9).tolist())


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


def replay_error(graph: Graph, replayed: Timeline) -> float:
    """Half-width of the interval around an unchanged job: the largest error of the replay over the job's steps."""
    if graph.measured_start is None:
        return 0.0
    truth = {p.name: p.end - p.start for p in _job_spans(measured(graph))}
    errors = [abs(p.end - p.start - truth[p.name]) / truth[p.name] for p in _job_spans(replayed) if truth.get(p.name)]
    return max(errors, default=0.0)


def step_spread(timeline: Timeline, owners: Members) -> float:
    """Half-width of the 80 % interval of a step among those of its job, as a fraction; 0 with fewer than three whole steps.

    Steps much shorter than the median are cut by the window and left out.
    """
    lengths = np.array([p.end - p.start for p in _job_spans(timeline, owners)], float)
    lengths = lengths[lengths >= CUT * np.median(lengths)] if len(lengths) else lengths
    return float(Z80 * lengths.std(ddof=1) / lengths.mean()) if len(lengths) >= 3 else 0.0


def _length(timeline: Timeline, owners: Members, name: str) -> int:
    """ns of the job's step of that name."""
    return next((p.end - p.start for p in _job_spans(timeline, owners) if p.name == name), 0)


def measured_step(graph: Graph, name: str) -> float | None:
    if graph.measured_start is None:
        return None
    return next(((p.end - p.start) * 1e-9 for p in _job_spans(measured(graph)) if p.name == name), None)


class _Span(NamedTuple):
    name: str
    start: int
    end: int


def _job_spans(timeline: Timeline, owners: Members | None = None) -> list[_Span]:
    """Steps of the job in a timeline: the steps of all ranks with one name, from the first start to the last end."""
    owners = owners or members(timeline.graph)
    start, end = spans(timeline, owners)
    found: dict[str, _Span] = {}
    for step, first, last in zip(owners.steps, start.tolist(), end.tolist(), strict=True):
        old = found.get(step.name, _Span(step.name, first, last))
        found[step.name] = _Span(step.name, min(first, old.start), max(last, old.end))
    return list(found.values())


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
