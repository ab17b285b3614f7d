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
from lumos.analyze.loop.identity import identity
from lumos.analyze.loop.steady import altered, steady
from lumos.analyze.loop.steps import Members, StepTimes, members
from lumos.analyze.trust import Trust, trust, with_evidence
from lumos.changes.answer import Answer, Contribution, LoopFigures, Parts, contributions, held, other_durations
from lumos.changes.certainty.left_out import sides_left_out
from lumos.changes.certainty.noise import measured_step, noise_unknown, spread, step_spread, step_times_of
from lumos.changes.certainty.peak import LeastTimes, above_peak_rate, least_times
from lumos.changes.certainty.probe import probe_of_base
from lumos.changes.certainty.unmeasured import unmeasured
from lumos.changes.machine import Machine
from lumos.errors import UsageError
from lumos.simulation import Frozen, Timeline, freeze

if TYPE_CHECKING:
    from lumos.changes.durations import Durations
    from lumos.cost.cluster import Accelerator
    from lumos.graph.table import Evidence, Graph
    from lumos.trace.table import Job
    from lumos.vocabulary import Basis


class StepOutcome(NamedTuple):
    """The job's step. basis: whether its time is a period or a latency. low, high: the 80 % interval of `noise.spread`,
    for a changed job wider by what is unknown (`changes.certainty.trusted`)."""

    basis: Basis
    step_time_s: float
    step_time_low_s: float
    step_time_high_s: float
    breakdown: Parts


class IntervalCauses(NamedTuple):
    """Why an interval is as wide as it is. base_error, step_spread: how far the simulated base is off, and how much steps differ, as
    fractions of the step; together they make its half-width.
    few_steps: whether there are too few steps to see their spread, so that a fixed one stands for it. unknown_s: how much it is wider at
    each end by what the recording does not show. gaps_s: how much by pauses of a device that were not measured. prices_s: how much by
    what work costs that was scaled or modelled instead of measured."""

    base_error: float
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
    def trust(self) -> Trust:
        """How far answers about the job can be trusted."""
        probed = probe_of_base(self.job, self.owners, self._base_figures.loop)
        return with_evidence(trust(self.graph, self.base, self.owners), (*self._identity[1], *probed))

    @cached_property
    def spread(self) -> float:
        """Half-width of every answer's interval, as in `lumos whatif`, as a fraction of the step."""
        return spread(self._measured, self._identity[0])

    def trust_of(self, job: Graph) -> Trust:
        """How far the answer for the job with changed durations can be trusted."""
        return with_evidence(self.trust, self.impossible(job)) if other_durations(self.graph, job) else self.trust

    def check_step(self, step: str) -> None:
        """Raise UsageError where the job has no such step."""
        if step not in self.steps:
            raise UsageError(f"the job has no step {step!r}; it has {', '.join(self.steps)}")

    @property
    def measured_step_s(self) -> float:
        """The job's step as recorded, seconds."""
        return measured_step(self.graph, self._measured) or 0.0

    def changed(self, changes: Durations) -> Graph:
        """The job with its durations changed. Raises LumosError where a pattern matches nothing or the job lacks a rank."""
        return changes.apply(self.graph, self.job)

    def outcome(self, job: Graph) -> StepOutcome:
        """The figures of this job's step, or of the step of the job with changed durations."""
        figures, error = self._figures(job), self.spread
        length = figures.loop.step_time_ns * 1e-9
        by = self._unknown_s(job)
        least, most = (1e-9 * bound for bound in unmeasured(figures.loop)[:2])
        low, high = max(least * (1 - error) - by, 0.0), most * (1 + error) + by
        return StepOutcome(figures.loop.basis, length, low, high, figures.parts)

    def interval_causes(self, job: Graph) -> IntervalCauses:
        """What the interval of `outcome` consists of."""
        changed = self._figures(job).loop
        by = self._unknown_s(job)
        least, most = (1e-9 * bound for bound in unmeasured(changed)[:2])
        error = abs(self._identity[0])
        return IntervalCauses(error, step_spread(self._measured), bool(noise_unknown(self._measured)), by, most - least)

    def causes_of(self, found: Answer) -> IntervalCauses:
        """What the interval of an answer of `lumos whatif` about this job consists of."""
        base, changed = found.base, found.outcome
        by = found.trust.unknown * base.step_time_s if found.altered else 0.0
        half = base.step_time_high_s / base.step_time_s - 1 if base.step_time_s else 0.0
        most = (changed.step_time_high_s - by) / (1 + half)
        least = (changed.step_time_low_s + by) / (1 - half) if half < 1 else 0.0
        error = abs(self._identity[0])
        few = bool(noise_unknown(self._measured))
        return IntervalCauses(error, step_spread(self._measured), few, by, 0.0, max(most - least, 0.0))

    def impossible(self, job: Graph) -> tuple[Evidence, ...]:
        """What speaks against the answer for the job with changed durations: bounds that it is beyond, work above the device's peak rate, a
        side without work; () for nothing."""
        if self._spoken and self._spoken[0][0] is job:
            return self._spoken[0][1]
        base_s = self._base_figures.loop.step_time_ns * 1e-9
        too_fast = above_peak_rate(self.graph, job, self.job, self._accelerator, base_s, self._least) if self._accelerator else ()
        found = (*held(self._base_figures.loop, self._figures(job).loop), *too_fast, *sides_left_out(self.graph, job))
        self._spoken[:] = [(job, found)]
        return found

    def _unknown_s(self, job: Graph) -> float:
        """How much further each end of a step's interval lies by what is unknown, seconds."""
        if not other_durations(self.graph, job):
            return 0.0
        return self.trust_of(job).unknown * self._base_figures.loop.step_time_ns * 1e-9

    def moved(self, job: Graph) -> tuple[Contribution, ...]:
        """What differs on the critical path of the step, the largest difference first; the differences sum to the step's."""
        return contributions(self._figures(self.graph).by_class, self._figures(job).by_class)

    def path(self, timeline: Timeline, step: str) -> CriticalPath:
        """The critical path of a recorded step in a timeline of this job, to draw."""
        self.check_step(step)
        (path,) = critical_paths(timeline, self.owners, frozen=self.frozen, names=(step,))
        return path

    def _figures(self, job: Graph) -> LoopFigures:
        """The figures of the loop of a job. Those of the base are kept, and those of the change that was asked for last."""
        if job is self.graph:
            return self._base_figures
        if not self._changed or self._changed[0][0] is not job:
            self._changed[:] = [(job, LoopFigures(altered(self._base_figures.loop, replace(self.owners, graph=job))))]
        return self._changed[0][1]

    @cached_property
    def _base_figures(self) -> LoopFigures:
        return LoopFigures(steady(self.owners))

    @cached_property
    def _changed(self) -> list[tuple[Graph, LoopFigures]]:
        """The changed job that was asked for last, and its figures."""
        return []

    @cached_property
    def _spoken(self) -> list[tuple[Graph, tuple[Evidence, ...]]]:
        """The changed job that was asked for last, and what speaks against its answer."""
        return []

    @cached_property
    def _identity(self) -> tuple[float, tuple[Evidence, ...]]:
        """How far the base is from the measured step, and what follows."""
        return identity(self.graph, self._base_figures.loop, self._measured)

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
