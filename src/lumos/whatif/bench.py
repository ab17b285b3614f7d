"""One measured job, many changes of its durations: what each does to a step, quickly enough for a slider in the explorer.

Everything that does not depend on the change is computed once: the steps that own the tasks, the loop that repeats a step, the
figures of the base. Base and change are simulated by the event loop, so the replay's own error is in both and cancels in their
difference, and a change may reorder work. Figures are those of one step of the job over all ranks, as its loop takes it in the long
run (`analyze.loop.steady`); pictures are of the recorded steps.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from lumos.analyze.critical_path import CriticalPath, critical_paths
from lumos.analyze.loop.steady import altered, steady, typical_position
from lumos.analyze.loop.steps import Members, StepTimes, members, step_times
from lumos.analyze.trust import Trust, trust
from lumos.errors import UsageError
from lumos.simulate import Frozen, Timeline, freeze
from lumos.whatif.answer import Answer, Contribution, LoopFigures, Parts, contributions
from lumos.whatif.certainty.left_out import sides_left_out
from lumos.whatif.certainty.noise import measured_step, noise_unknown, replay_error, spread, step_spread, step_times_of
from lumos.whatif.certainty.peak import LeastTimes, above_peak_rate, least_times
from lumos.whatif.certainty.trusted import widening, with_evidence
from lumos.whatif.certainty.unmeasured import gap_bounds
from lumos.whatif.machine import Machine

if TYPE_CHECKING:
    from lumos.cost.cluster import Accelerator
    from lumos.graph.table import Evidence, Graph
    from lumos.trace.table import Job
    from lumos.vocabulary import Basis
    from lumos.whatif.durations import Durations


class StepOutcome(NamedTuple):
    """One step of the job. basis: whether its time is a period or a latency. low, high: the 80 % interval of `noise.spread`,
    for a changed job wider by what is unknown (`whatif.certainty.trusted`)."""

    step: str
    basis: Basis
    step_time_s: float
    step_time_low_s: float
    step_time_high_s: float
    breakdown: Parts


class IntervalCauses(NamedTuple):
    """Why an interval is as wide as it is. replay_error, step_spread: as fractions of the step; together they make its half-width.
    few_steps: whether there are too few steps to see their spread, so that a fixed one stands for it. unknown_s: how much it is wider at
    each end by what the recording does not show. gaps_s: how much by pauses of a device that were not measured. prices_s: how much by
    what work costs that was scaled or modelled instead of measured."""

    replay_error: float
    step_spread: float
    few_steps: bool
    unknown_s: float
    gaps_s: float
    prices_s: float = 0.0


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
        return tuple(step.name for step in self.owners.job)

    @cached_property
    def frozen(self) -> Frozen:
        return freeze(self.graph)

    @cached_property
    def typical(self) -> str:
        """The typical step, that of every verb (`analyze.loop.steps`). GraphError where no step owns any work."""
        return self.owners.job[typical_position(self.owners, self.base)].name

    @cached_property
    def trust(self) -> Trust:
        """How far answers about the job can be trusted."""
        return trust(self.graph, self.base, self.owners)

    @cached_property
    def spread(self) -> float:
        """Half-width of every answer's interval, as in `lumos whatif`, as a fraction of the step."""
        return spread(self._measured, step_times(self.base, self.owners))

    def check_step(self, step: str) -> None:
        """Raise UsageError where the job has no such step."""
        if step not in self.steps:
            raise UsageError(f"the job has no step {step!r}; it has {', '.join(self.steps)}")

    def measured_step_s(self, step: str) -> float:
        """The step as recorded, seconds."""
        return measured_step(self.graph, self._measured, step) or 0.0

    def changed(self, changes: Durations) -> Graph:
        """The job with its durations changed. Raises LumosError where a pattern matches nothing or the job lacks a rank."""
        return changes.apply(self.graph, self.job)

    def outcome(self, job: Graph, step: str) -> StepOutcome:
        """The figures of one step of this job, or of it with changed durations. UsageError where it has no such step."""
        figures, error = self._figures(job, step), self.spread
        length = figures.loop.step_time_ns * 1e-9
        by = self._unknown_s(job, step, length)
        least, most = (1e-9 * bound for bound in gap_bounds(figures.loop))
        low, high = max(least * (1 - error) - by, 0.0), most * (1 + error) + by
        return StepOutcome(step, figures.loop.basis, length, low, high, figures.parts)

    def interval_causes(self, job: Graph, step: str) -> IntervalCauses:
        """What the interval of `outcome` consists of. UsageError where the job has no such step."""
        changed = self._figures(job, step).loop
        length = changed.step_time_ns * 1e-9
        by = self._unknown_s(job, step, length)
        least, most = (1e-9 * bound for bound in gap_bounds(changed))
        error = replay_error(self._measured, step_times(self.base, self.owners))
        return IntervalCauses(error, step_spread(self._measured), bool(noise_unknown(self._measured)), by, most - least)

    def causes_of(self, found: Answer) -> IntervalCauses:
        """What the interval of an answer of `lumos whatif` about this job consists of."""
        base, changed = found.base, found.outcome
        by = widening(found.trust, base.step_time_s, changed.step_time_s)
        half = base.step_time_high_s / base.step_time_s - 1 if base.step_time_s else 0.0
        most = (changed.step_time_high_s - by) / (1 + half)
        least = (changed.step_time_low_s + by) / (1 - half) if half < 1 else 0.0
        error = replay_error(self._measured, step_times(self.base, self.owners))
        few = bool(noise_unknown(self._measured))
        return IntervalCauses(error, step_spread(self._measured), few, by, 0.0, max(most - least, 0.0))

    def impossible(self, job: Graph, step: str) -> tuple[Evidence, ...]:
        """The findings that the job, with changed durations, has work above the device's peak rate, or a side without work; () for none."""
        base_s = self._figures(self.graph, step).loop.step_time_ns * 1e-9
        too_fast = above_peak_rate(self.graph, job, self.job, self._accelerator, base_s, self._least) if self._accelerator else ()
        return (*too_fast, *sides_left_out(self.graph, job))

    def _unknown_s(self, job: Graph, step: str, length_s: float) -> float:
        """How much further each end of a step's interval lies by what is unknown, seconds."""
        base_s = self._figures(self.graph, step).loop.step_time_ns * 1e-9
        return widening(with_evidence(self.trust, () if job is self.graph else self.impossible(job, step)), base_s, length_s)

    def moved(self, job: Graph, step: str) -> tuple[Contribution, ...]:
        """What differs on the critical path of a step, the largest difference first; the differences sum to the step's."""
        return contributions(self._figures(self.graph, step).by_class, self._figures(job, step).by_class)

    def path(self, timeline: Timeline, step: str) -> CriticalPath:
        """The critical path of a recorded step in a timeline of this job, to draw."""
        self.check_step(step)
        (path,) = critical_paths(timeline, self.owners, frozen=self.frozen, names=(step,))
        return path

    def _figures(self, job: Graph, step: str) -> LoopFigures:
        """The figures of a step in the loop of a job. Those of the base are kept, and those of the change that was asked for last."""
        self.check_step(step)
        at = self.steps.index(step)
        if at not in self._base_figures:
            self._base_figures[at] = LoopFigures(steady(self.owners, at))
        base = self._base_figures[at]
        if job is self.graph:
            return base
        if at not in self._changed or self._changed[at][0] is not job:
            self._changed[at] = job, LoopFigures(altered(base.loop, replace(self.owners, graph=job), at))
        return self._changed[at][1]

    @cached_property
    def _base_figures(self) -> dict[int, LoopFigures]:
        return {}

    @cached_property
    def _changed(self) -> dict[int, tuple[Graph, LoopFigures]]:
        """By position of the step, the changed job that was asked for last, and its figures."""
        return {}

    @cached_property
    def _accelerator(self) -> Accelerator | None:
        known = Machine(self.job, self.graph).known
        return known.accelerator if known is not None else None

    @cached_property
    def _least(self) -> tuple[LeastTimes, ...]:
        return least_times(self.graph, self.job, self._accelerator) if self._accelerator else ()

    @cached_property
    def _measured(self) -> StepTimes:
        return step_times_of(self.graph, self.owners)
