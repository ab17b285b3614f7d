"""The job under examination, and the price of a change to it.

A change is a graph with other durations, or with fewer dependencies. It is simulated in the loop of the recorded steps
(`analyze.loop.steady`), as `lumos whatif` does, and its worth is what the loop's step becomes shorter by. Base and change are replayed by
the same rules, so that the error of the replay is in both; what remains is how much the job's steps differ, and what its recording leaves
unknown. Both widen the interval of a worth.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.analyze.breakdown import breakdown
from lumos.analyze.loop.bounds import beyond_bounds, worth_bound
from lumos.analyze.loop.identity import identity
from lumos.analyze.loop.steady import altered, steady
from lumos.analyze.loop.steps import is_operation_level, members, step_times
from lumos.analyze.ranks.straggler_causes import described
from lumos.analyze.trust import trust, with_evidence
from lumos.changes.certainty.noise import spread
from lumos.changes.certainty.probe import probe_of_base
from lumos.findings.finding import Finding, FindingCode, FindingPlace
from lumos.segment.segment import Cut
from lumos.simulation import measured, simulate
from lumos.simulation.durations import with_durations
from lumos.vocabulary import Basis

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from lumos.analyze.breakdown import StepBreakdown
    from lumos.analyze.loop.steady import Steady
    from lumos.analyze.loop.steps import Members, StepTime, StepTimes
    from lumos.analyze.trust import Trust
    from lumos.graph.table import Evidence, Graph
    from lumos.simulation.timeline import Timeline
    from lumos.trace.table import Int64, Job

#: A finding is listed where it is worth this share of the step. Steps of a healthy job differ by about as much
#: (`whatif.certainty.noise.FEW_STEPS`).
LEAST_WORTH = 0.02


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """A measured job. paths: its files as a shell has them. at: the position in `owners.job` of the step of median time. base: the loop of
    the steps. truth: the measured run, and times: of its steps. parts: where the time of every step that counts went, on each rank. noise:
    half-width of the interval of a step, as a share of it. plan: what several prices need of the job's plan and its cut, found once.
    beyond: the prices so far that cannot be. origin: where in the script a task comes from, "" where that is not known."""

    job: Job
    graph: Graph
    paths: str
    owners: Members
    truth: Timeline
    times: StepTimes
    trust: Trust
    at: int
    base: Steady
    parts: tuple[StepBreakdown, ...]
    noise: float
    cut: Cut
    beyond: list[Evidence]
    origin: Callable[[int], str]

    @property
    def step_ns(self) -> float:
        """The time of the job's step, as measured."""
        return self.times.mean_ns

    @property
    def has_device(self) -> bool:
        """Whether the job ran on devices."""
        return bool(self.owners.on_device.any()) and not is_operation_level(self.graph)

    @property
    def counted(self) -> NDArray[np.bool_]:
        """The tasks of the steps that count, bool[n]."""
        return self.times.tasks_counted()

    @property
    def steps(self) -> int:
        """How many steps count."""
        return max(len(self.times.counted), 1)

    def saved_ns(self, changed: Graph) -> float:
        """How much shorter the loop's step is in a changed graph with the same tasks, ns."""
        owners = replace(self.owners, graph=changed)
        if changed.ignored == self.graph.ignored:
            after = altered(self.base, owners)
            self.beyond.extend(beyond_bounds(self.base, after))
        else:
            after = steady(owners, repeat=self.base.basis is Basis.PERIOD)
            self.beyond.extend(worth_bound(self.base.step_time_ns - after.step_time_ns, self.base.step_time_ns))
        return self.base.step_time_ns - after.step_time_ns

    def without(self, tasks: NDArray[np.bool_]) -> Graph:
        """The job where `tasks`, bool[n], take no time."""
        return with_durations(self.graph, np.where(tasks, 0, self.graph.duration))

    def saved_without_ns(self, tasks: NDArray[np.bool_]) -> float:
        """How much shorter the loop's step is where `tasks`, bool[n], take no time, ns."""
        return self.saved_ns(self.without(tasks)) if tasks.any() else 0.0

    def matters(self, worth_ns: float, *, mean: bool = False) -> bool:
        """Whether that much of a step is worth a finding: more than LEAST_WORTH of it, and than steps differ anyhow.

        mean: whether the worth is the mean over the steps that count, which differs less than one step does, by the root of their number.
        """
        return worth_ns >= max(LEAST_WORTH, self._noise(mean)) * self.step_ns

    def _noise(self, mean: bool) -> float:
        return self.noise / self.steps**0.5 if mean else self.noise

    def mean_part_ns(self, *names: str) -> float:
        """The named parts of `analyze.parts` together, the mean over ranks and steps that count, ns."""
        return float(np.mean([sum(getattr(each.parts, f"{name}_ns") for name in names) for each in self.parts])) if self.parts else 0.0

    def at_longest(self, tasks: NDArray[np.bool_] | Int64, time: Int64 | None = None, ranks: Sequence[int] | None = None) -> FindingPlace:
        """Where the longest of `tasks` is, preferably in a step that counts. time: int64[n] ns by which to compare, else the durations.
        ranks: all that the finding concerns, else those of the tasks."""
        chosen = np.flatnonzero(tasks) if tasks.dtype == bool else tasks
        counted = chosen[self.counted[chosen]]
        chosen = counted if len(counted) else chosen
        time = self.graph.duration if time is None else time
        worst = int(chosen[np.argmax(time[chosen])])
        owner = int(self.owners.step[worst])
        step = self.times.of_ranks()[owner][0] if owner >= 0 else self.times.middle
        concerned = np.unique(self.owners.rank[chosen]).tolist() if ranks is None else None
        of = tuple(self.graph.ranks[i] for i in concerned) if concerned is not None else tuple(ranks or ())
        return self.place(worst, step, of)

    def place(self, task: int, step: StepTime, ranks: tuple[int, ...]) -> FindingPlace:
        """Where a task is in a step. ranks: all that the finding concerns."""
        start = int(self.truth.start[task]) - step.begin_ns
        return FindingPlace(ranks, step.name, start, described(self.graph, task), self.origin(task))

    def finding(
        self,
        code: FindingCode,
        title: str,
        where: FindingPlace,
        worth_ns: float,
        *,
        evidence: str,
        fix: str,
        command: str,
        range_ns: tuple[float, float] | None = None,
        mean: bool = False,
        fixed: Graph | None = None,
    ) -> Priced:
        """A finding of that worth. fixed: the job without it, None where its worth follows from no changed job. range_ns: between which
        worths it lies before the noise of the job, where more than one is possible.
        mean: as in `matters`. command: the verb and its options, without `lumos` and the paths."""
        low, high = range_ns or (worth_ns, worth_ns)
        margin = (self._noise(mean) + self.trust.unknown) * self.step_ns
        verb, _, options = command.partition(" ")
        found = Finding(
            code=code,
            title=title,
            where=where,
            worth_s=worth_ns * 1e-9,
            worth_low_s=max(low - margin, 0.0) * 1e-9,
            worth_high_s=min(high + margin, max(self.step_ns, worth_ns)) * 1e-9,
            worth_after_s=worth_ns * 1e-9,
            evidence=evidence,
            fix=fix,
            command=" ".join(filter(None, ("lumos", verb, self.paths, options))),
        )
        return Priced(found, fixed)

    def one_after_another(self, found: Sequence[Priced]) -> tuple[Finding, ...]:
        """The findings with what each is worth once those above it are fixed, the largest such worth first.

        They are fixed in the order of what each is worth alone, and what follows from a changed job is simulated with all before it. What
        only pays once another is fixed is worth no more for that; no more than the step can be saved in all.
        """
        left, saved, so_far, out = self.base.step_time_ns, 0.0, self.graph, []
        for finding, fixed in sorted(found, key=lambda each: -each.finding.worth_s):
            after = 1e9 * finding.worth_s
            if fixed is not None:
                so_far = self._with(so_far, fixed)
                total = self.saved_ns(so_far)
                after, saved = min(total - saved, after), max(total, saved)
            after = min(max(after, 0.0), left)
            left -= after
            out.append(replace(finding, worth_after_s=after * 1e-9))
        return tuple(sorted(out, key=lambda finding: -finding.worth_after_s))


    def _with(self, one: Graph, other: Graph) -> Graph:
        """The job with two changes: of durations, what each adds or takes away; work left out and waits ignored by either."""
        masks = [graph.left_out for graph in (one, other) if graph.left_out is not None]
        both = with_durations(one, np.maximum(one.duration + other.duration - self.graph.duration, 0))
        return replace(both, ignored=one.ignored | other.ignored, left_out=np.logical_or.reduce(masks) if masks else None)


class Priced(NamedTuple):
    """A finding, and the job without what it finds; None where its worth follows from no changed job."""

    finding: Finding
    fixed: Graph | None


def case_of(job: Job, graph: Graph, paths: Sequence[str], origin: Callable[[int], str] = lambda _: "") -> Case:
    """The examination of a measured job. paths: its files, as the user named them. origin: where in the script a task comes from. Raises
    GraphError where no step owns any work, or where the graph was not measured or has no schedule."""
    owners, truth = members(graph), measured(graph)
    times, base = step_times(truth, owners), steady(owners)
    off, grounds = identity(graph, base, times)
    replayed = simulate(graph)
    lengths = sorted((times.job[i].length_ns, i) for i in owners.counted)
    return Case(
        job=job,
        graph=graph,
        paths=" ".join(map(shlex.quote, paths)),
        owners=owners,
        truth=truth,
        times=times,
        trust=with_evidence(trust(graph, replayed, owners), (*grounds, *probe_of_base(job, owners, base))),
        at=lengths[(len(lengths) - 1) // 2][1],
        base=base,
        parts=tuple(each for each in breakdown(truth, owners, job) if each.counts),
        noise=spread(times, off),
        cut=Cut(job, graph),
        beyond=[],
        origin=origin,
    )
