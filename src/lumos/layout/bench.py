"""One measured job, many changes of its durations: what each does to a step, quickly enough to be turned by hand.

All that does not depend on the change is worked out once: who owns which task, what works where, the base's own figures.
Both base and change are simulated by the event loop, so the replay's own error is in both and cancels in their difference,
and a change may reorder work. Figures are those of one step of the job, all ranks together.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from lumos.analyze.breakdown import working
from lumos.analyze.critical_path import CriticalPath, critical_paths
from lumos.analyze.intervals import either, union, within
from lumos.analyze.steps import Members, job_steps, members, only, spans
from lumos.errors import GraphError, UsageError
from lumos.graph.table import Graph
from lumos.layout.answer import Contribution, Parts, contributions
from lumos.layout.durations import Durations
from lumos.simulate import Frozen, Timeline, freeze, measured, simulate
from lumos.trace.table import Int64, Job


class Outcome(NamedTuple):
    """One step of the job. low, high: as far off as the replay is on the steps of the base, at the most."""

    step: str
    step_time_s: float
    step_time_low_s: float
    step_time_high_s: float
    breakdown: Parts


@dataclass(frozen=True)
class Bench:
    """A measured job and its replay, ready for changes. GraphError where the job was never measured or owns no step."""

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
    def replay_error(self) -> float:
        """The largest error of the replay over the job's steps, as a fraction."""
        truth, replayed = (step_lengths(run, self.owners) for run in (measured(self.graph), self.base))
        return max((abs(replayed[name] / length - 1) for name, length in truth.items() if length), default=0.0)

    def check_step(self, step: str) -> None:
        """UsageError where the job has no such step."""
        if step not in self.steps:
            raise UsageError(f"the job has no step {step!r}; it has {', '.join(self.steps)}")

    def measured_step_s(self, step: str) -> float:
        """The step as recorded, seconds."""
        return step_lengths(measured(self.graph), self.owners)[step] * 1e-9

    def changed(self, changes: Durations) -> Timeline:
        """The job with its durations changed. LumosError where a pattern matches nothing, or a rank is not there."""
        return simulate(changes.apply(self.graph, self.job))

    def base_outcome(self, step: str) -> Outcome:
        """The figures of one step as replayed. UsageError where the job has no such step."""
        if step not in self._base_outcomes:
            self._base_outcomes[step] = self.outcome(self.base, step)
        return self._base_outcomes[step]

    def outcome(self, timeline: Timeline, step: str) -> Outcome:
        """The figures of one step of a timeline of this job. UsageError where the job has no such step."""
        self.check_step(step)
        start, end = spans(timeline, self._only(step))
        length, error = int(end.max() - start.min()) * 1e-9, self.replay_error
        return Outcome(step, length, length * (1 - error), length * (1 + error), self._parts(timeline, step, start, end))

    def moved(self, timeline: Timeline, step: str) -> tuple[Contribution, ...]:
        """What differs on the critical path of a step, the largest difference first; the differences sum to the step's."""
        if step not in self._base_paths:
            self._base_paths[step] = self.path(self.base, step)
        return contributions(self._base_paths[step], self.path(timeline, step))

    def path(self, timeline: Timeline, step: str) -> CriticalPath:
        """The critical path of a step in a timeline of this job."""
        (path,) = critical_paths(timeline, self._only(step), frozen=self.frozen)
        return path

    @cached_property
    def _working(self) -> tuple[tuple[Int64, Int64], ...]:
        """By rank: its tasks that compute, and that communicate, in ascending id."""
        computes, communicates = working(self.owners)
        ranks = [self.owners.of_rank(position) for position in range(len(self.graph.ranks))]
        return tuple((tasks[computes[tasks]], tasks[communicates[tasks]]) for tasks in ranks)

    @cached_property
    def _base_outcomes(self) -> dict[str, Outcome]:
        return {}

    @cached_property
    def _base_paths(self) -> dict[str, CriticalPath]:
        return {}

    @cached_property
    def _owned(self) -> dict[str, Members]:
        return {}

    def _only(self, step: str) -> Members:
        if step not in self._owned:
            self._owned[step] = only(self.owners, step)
        return self._owned[step]

    def _parts(self, timeline: Timeline, step: str, start: Int64, end: Int64) -> Parts:
        """The mean over the ranks, each in the window of its own step; before and after that it does neither."""
        first, last = int(start.min()), int(end.max())
        found = []
        for owned, begin, finish in zip(self._only(step).steps, start, end, strict=True):
            busy = ((timeline.start[t], timeline.end[t]) for t in self._working[self.graph.ranks.index(owned.rank)])
            compute, communication = (union(s[here], e[here]) for s, e in busy for here in [(e > begin) & (s < finish)])
            window = np.array([begin]), np.array([finish])
            a, b, both = (int(within(u, *window)[0]) for u in (compute, communication, either(compute, communication)))
            found.append((both - b, a + b - both, both - a, last - first - both))
        return Parts(*(np.array(found, float).mean(axis=0) * 1e-9).tolist())


def step_lengths(timeline: Timeline, owners: Members) -> dict[str, int]:
    """Length of each step of the job, from its first start to its last end over all ranks, ns."""
    start, end = spans(timeline, owners)
    return {name: int(end[parts].max() - start[parts].min()) for name, parts in job_steps(owners).items()}
