"""One measured job, many changes of its durations: what each does to a step, quickly enough for a slider in the explorer.

Everything that does not depend on the change is computed once: the steps that own the tasks, the tasks that compute or
communicate, the figures of the base. Base and change are simulated by the event loop, so the replay's own error is in both and
cancels in their difference, and a change may reorder work. Figures are those of one step of the job over all ranks.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from lumos.analyze.critical_path import CriticalPath, critical_paths
from lumos.analyze.steps import Members, job_steps, members, only_steps
from lumos.errors import GraphError, UsageError
from lumos.simulate import Frozen, Timeline, freeze, measured, simulate
from lumos.whatif.answer import (
    Contribution,
    Parts,
    StepWindow,
    contributions,
    parts_within,
    since,
    spread,
    step_lengths,
    windows,
    working_tasks,
)

if TYPE_CHECKING:
    from lumos.graph.table import Graph
    from lumos.trace.table import Int64, Job
    from lumos.whatif.durations import Durations


class StepOutcome(NamedTuple):
    """One step of the job. low, high: the 80 % interval of `answer.spread`."""

    step: str
    step_time_s: float
    step_time_low_s: float
    step_time_high_s: float
    breakdown: Parts


@dataclass(frozen=True)
class Bench:
    """A measured job and its replay, ready for changes. Raises GraphError where the job was never measured or has no step with work."""

    job: Job
    graph: Graph
    base: Timeline

    @cached_property
    def owners(self) -> Members:
        return members(self.graph)

    @cached_property
    def steps(self) -> tuple[str, ...]:
        return tuple(job_steps(self.owners))

    @cached_property
    def frozen(self) -> Frozen:
        return freeze(self.graph)

    @cached_property
    def typical(self) -> str:
        """The step of median length as replayed (the lower of two)."""
        lengths = step_lengths(self.base, self.owners)
        if not lengths:
            raise GraphError("the job has no step that owns any work; record whole steps (ProfilerStep#… marks)")
        return sorted(lengths, key=lambda name: lengths[name])[(len(lengths) - 1) // 2]

    @cached_property
    def spread(self) -> float:
        """Half-width of every answer's interval, as in `lumos whatif`, as a fraction of the step."""
        return spread(self.graph, self.base, self.owners)

    def check_step(self, step: str) -> None:
        """Raise UsageError where the job has no such step."""
        if step not in self.steps:
            raise UsageError(f"the job has no step {step!r}; it has {', '.join(self.steps)}")

    def measured_step_s(self, step: str) -> float:
        """The step as recorded, seconds."""
        return step_lengths(measured(self.graph), self.owners)[step] * 1e-9

    def changed(self, changes: Durations) -> Timeline:
        """The simulated job with its durations changed. Raises LumosError where a pattern matches nothing or the job lacks a rank."""
        return simulate(changes.apply(self.graph, self.job))

    def base_outcome(self, step: str) -> StepOutcome:
        """The figures of one step as replayed. UsageError where the job has no such step."""
        if step not in self._base_outcomes:
            self._base_outcomes[step] = self.outcome(self.base, step)
        return self._base_outcomes[step]

    def outcome(self, timeline: Timeline, step: str) -> StepOutcome:
        """The figures of one step of a timeline of this job. UsageError where the job has no such step."""
        self.check_step(step)
        window = self._window(timeline, step)
        begin, error = window.begin(self._ahead[step]), self.spread
        length = (window.end - begin) * 1e-9
        parts = parts_within(timeline, self._only(step), self._working, (begin, window.end))
        return StepOutcome(step, length, length * (1 - error), length * (1 + error), parts)

    def moved(self, timeline: Timeline, step: str) -> tuple[Contribution, ...]:
        """What differs on the critical path of a step, the largest difference first; the differences sum to the step's."""
        if step not in self._base_paths:
            self._base_paths[step] = self.path(self.base, step)
        return contributions(self._base_paths[step], self.path(timeline, step))

    def path(self, timeline: Timeline, step: str) -> CriticalPath:
        """The critical path of a step in a timeline of this job."""
        (path,) = critical_paths(timeline, self._only(step), frozen=self.frozen)
        return since(path, self._window(timeline, step).begin(self._ahead[step]))

    def _window(self, timeline: Timeline, step: str) -> StepWindow:
        """The window of a step in a timeline of this job."""
        order = sorted(self._windows, key=lambda name: self._windows[name])
        return windows(timeline, self._only(*order[max(0, order.index(step) - 1) : order.index(step) + 1]))[step]

    @cached_property
    def _windows(self) -> dict[str, StepWindow]:
        """The windows of all steps in the base."""
        return windows(self.base, self.owners)

    @cached_property
    def _ahead(self) -> dict[str, int]:
        """By step, how long it runs at the same time as the step before it in the base, ns."""
        return {name: window.overlap for name, window in self._windows.items()}

    @cached_property
    def _working(self) -> tuple[tuple[Int64, Int64], ...]:
        return working_tasks(self.owners)

    @cached_property
    def _base_outcomes(self) -> dict[str, StepOutcome]:
        return {}

    @cached_property
    def _base_paths(self) -> dict[str, CriticalPath]:
        return {}

    @cached_property
    def _owned(self) -> dict[tuple[str, ...], Members]:
        return {}

    def _only(self, *steps: str) -> Members:
        if steps not in self._owned:
            self._owned[steps] = only_steps(self.owners, *steps)
        return self._owned[steps]
