"""What a what-if answers: the step of the changed job beside that of the base, and what moved.

Both are simulated, so the replay's own error is in both and cancels in their difference. Figures are those of one step
of the job, all ranks together: the step whose length in the base is the median one. `moved` compares the critical paths
of base and change, class by class; the entries sum to the difference of the two steps.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from lumos.analyze.breakdown import four_way
from lumos.analyze.critical_path import CriticalPath, critical_paths
from lumos.analyze.steps import Members, members, spans
from lumos.diagnostics import Diagnostic
from lumos.errors import LumosError
from lumos.graph.table import Graph
from lumos.simulate import Timeline, measured, simulate

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
class Outcome:
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
class Answer:
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


def answer(base: Graph, changed: Graph, changes: tuple[str, ...]) -> Answer:
    """Simulate both graphs, which have the same tasks, and compare."""
    before, after = simulate(base), simulate(changed)
    owners = members(base)
    paths, changed_paths = critical_paths(before), critical_paths(after)
    at = typical_step(paths)
    error = _replay_error(base, before)
    scaled = changed.duration != base.duration
    path, changed_path = paths[at], changed_paths[at]
    on_path = sum(link.end_ns - link.start_ns for link in changed_path.links if scaled[link.task])
    length = max(changed_path.duration_ns, 1)
    return Answer(
        outcome(after, owners, changed_path, error),
        outcome(before, owners, path, error),
        _measured(base, path.name),
        changes,
        contributions(path, changed_path),
        Share(1 - on_path / length, on_path / length, 0.0),
        base.diagnostics,
    )


def outcome(timeline: Timeline, owners: Members, path: CriticalPath, error: float) -> Outcome:
    """The figures of one step. error: half-width of the interval as a fraction of the step."""
    length = path.duration_ns
    shares = {name: ns / length for name, ns in path.by_class.items()} if length else {}
    low, high = (length * (1 - error), length * (1 + error))
    return Outcome(
        path.name, length * 1e-9, low * 1e-9, high * 1e-9, parts(timeline, owners, path), None, None, Memory(), shares
    )  # fmt: skip


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
    every = sorted((c for c in every if c.delta_s), key=lambda c: -abs(c.delta_s))
    rest = every[LARGEST:]
    if rest:
        every = [*every[:LARGEST], Contribution("everything else", sum(c.base_s for c in rest), sum(c.changed_s for c in rest))]
    return tuple(every)


def _replay_error(graph: Graph, replayed: Timeline) -> float:
    """Half-width of the interval around an unchanged job: the largest error of the replay over the job's steps."""
    if graph.measured_start is None:
        return 0.0
    truth = {p.name: (p.end - p.start) for p in _job_spans(measured(graph))}
    errors = [abs((p.end - p.start) - truth[p.name]) / truth[p.name] for p in _job_spans(replayed) if truth.get(p.name)]
    return max(errors, default=0.0)


def _measured(graph: Graph, name: str) -> float | None:
    if graph.measured_start is None:
        return None
    return next(((p.end - p.start) * 1e-9 for p in _job_spans(measured(graph)) if p.name == name), None)


class _Span(NamedTuple):
    name: str
    start: int
    end: int


def _job_spans(timeline: Timeline) -> list[_Span]:
    """Steps of the job in a timeline: the steps of all ranks with one name, from the first start to the last end."""
    owners = members(timeline.graph)
    start, end = spans(timeline, owners)
    found: dict[str, _Span] = {}
    for step, first, last in zip(owners.steps, start.tolist(), end.tolist(), strict=True):
        old = found.get(step.name, _Span(step.name, first, last))
        found[step.name] = _Span(step.name, min(first, old.start), max(last, old.end))
    return list(found.values())
