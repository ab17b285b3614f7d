"""How much time each slow rank, pipeline stage and class of operations costs a job.

The job is compared with an ideal one, in which equal work takes equal time (`analyze.ranks.equal_work`), simulated on the same
graph in the loop that what-ifs simulate: a rank costs here what `lumos whatif --scale 'rankN:*=peers'` answers. Each rank, stage
and class gets two figures. `slowdown`: how long the ideal job's step would be if only this rank (stage, class) kept its own
times, relative to the ideal step. `worth_ns`: how much shorter the job's step would be if only this one took ideal times, which
is what fixing it is worth. Two ranks that are both slow hide each other's cost, so the worth of several fixes does not add up. It
is negative where the ideal times are slower than the measured: for a rank that is faster than its peers.

`findings` says why, one cause each, with the rank, the step and the time where it is worst (`analyze.ranks.straggler_causes`). Where ranks
do unequal work, where two ranks leave open which one is off, and where the ideal step is longer than the measured, a diagnostic says so.

Figures are means over the steps of the job that count (`analyze.loop.window`): their periods where the recording shows any. A single step
that is asked for is simulated where it stands in the recording.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from lumos.analyze.loop.bounds import worth_bound
from lumos.analyze.loop.steady import SweptLoop, steady
from lumos.analyze.loop.steps import StepTimes, members, step_times
from lumos.analyze.ranks.equal_work import IDEAL_RULES, equal_work, ideal_job
from lumos.analyze.ranks.straggler_causes import Candidate, StragglerFinding, candidates, unequal_work, where
from lumos.analyze.trust import Trust, check_sound, trust, with_evidence
from lumos.diagnostics import Diagnostic
from lumos.errors import GraphError, UsageError
from lumos.graph.table import Graph, Kind
from lumos.result import Shown
from lumos.simulation import measured
from lumos.simulation.durations import with_durations
from lumos.stages import stage
from lumos.trace.table import unique
from lumos.units import duration

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from lumos.analyze.loop.steady import Steady
    from lumos.analyze.loop.steps import Members
    from lumos.analyze.ranks.equal_work import EqualWork, Ideal
    from lumos.trace.table import Int64, Job
    from lumos.vocabulary import Basis

#: A cause is listed where it is worth this share of a step, or slows the ideal step by it.
LEAST = 0.002

#: How many causes are tried, the largest first: each takes two simulations.
MOST_CAUSES = 16


@dataclass(frozen=True, slots=True)
class StragglerShare:
    """One rank, stage or class.

    work_ns, ideal_work_ns: the time of its own tasks in a step, as measured and in the ideal job; for a rank or stage without
    communication, for a class without waiting. slowdown: of the ideal step, if only this one kept its times. worth_ns: how
    much time its ideal times would save in a step.
    """

    work_ns: int
    ideal_work_ns: int
    slowdown: float
    worth_ns: int


@dataclass(frozen=True, slots=True)
class RankShare(StragglerShare):
    """A rank. stage: its pipeline stage, None where the job does not say."""

    rank: int
    stage: int | None


@dataclass(frozen=True, slots=True)
class StageShare(StragglerShare):
    """All ranks of a pipeline stage."""

    stage: int


@dataclass(frozen=True, slots=True)
class ClassShare(StragglerShare):
    """All tasks of a class: an operation kind, or a class of kernels or of CPU work."""

    name: str


@dataclass(frozen=True, slots=True, repr=False)
class Stragglers(Shown):
    """A job compared with its ideal; field names are those of `lumos stragglers --json`. Times are of the mean step.

    step_time_ns, latency_ns, basis: of the job's step as measured.
    slowdown: measured / ideal step. slowdown_without_launch_delay: the step replayed without launch delays / ideal step;
    None where the job does not record launch delays. by_rank: by rank; by_stage (empty where unknown), by_class: by worth.
    findings: the causes, the one that costs most first. trust: how far answers about the job can be trusted.
    """

    step_time_ns: int
    latency_ns: int
    basis: Basis
    ranks: int
    steps: int
    ideal: str
    measured_step_ns: int
    replayed_step_ns: int
    ideal_step_ns: int
    slowdown: float
    slowdown_without_launch_delay: float | None
    by_rank: tuple[RankShare, ...]
    by_stage: tuple[StageShare, ...]
    by_class: tuple[ClassShare, ...]
    findings: tuple[StragglerFinding, ...]
    trust: Trust
    diagnostics: tuple[Diagnostic, ...]


@stage("aligning the ranks")
def stragglers(
    graph: Graph, job: Job | None = None, ideal: str = "peer-median", *, step: str | None = None, force: bool = False
) -> Stragglers:
    """Compare a measured job of several ranks with its ideal, in which equal work takes equal time.

    job: what the graph was built from, which gives the stages. ideal: "peer-median" (equal work is one operation on the ranks of a stage)
    or "pooled-mean" (one operation on all ranks). step: only this step, by its name or the number after its #.
    force: also where the recording cannot give a sound answer (`analyze.trust`).

    Raises UsageError for another `ideal` or an unknown step; GraphError where the job has one rank only, was not measured, or has no
    step that owns a task; LumosError where the evidence is unsound.
    """
    if ideal not in IDEAL_RULES:
        raise UsageError(f"{ideal!r} is no ideal; valid are {', '.join(IDEAL_RULES)}")
    if len(graph.ranks) < 2:
        raise GraphError(f"rank {graph.ranks[0]} alone has no peers to compare with; give the traces of several ranks")
    truth, owners = measured(graph), members(graph)
    if not owners.steps:
        raise GraphError("no step contains any task, so there is nothing to compare: the profiler window may have cut every step")
    grounds = trust(graph, owners=owners)
    check_sound(grounds, "stragglers", force=force)
    owners = owners if step is None else owners.only(step)
    times = step_times(truth, owners)
    classes = equal_work(graph, owners, job)
    counted = times.tasks_counted()
    aim = ideal_job(graph, owners, classes, counted, ideal)
    loop = steady(owners, repeat=None if step is None else False)
    trial, measured_ns = _Trial(loop, owners, aim.duration), times.mean_ns
    no_delay = trial.step(np.where(classes.delay, 0, graph.duration)) if graph.duration[classes.delay].any() else None
    own = counted & ~classes.delay
    by_rank, by_stage, by_class = _shares(graph, owners, classes, counted, trial)
    worths = (share.worth_ns for share in (*by_rank, *by_stage, *by_class))
    grounds = with_evidence(grounds, tuple(evidence for worth in worths for evidence in worth_bound(worth, trial.base)))
    check_sound(grounds, "stragglers", force=force)
    headline = times.headline
    return Stragglers(
        step_time_ns=headline.step_time_ns,
        latency_ns=headline.latency_ns,
        basis=headline.basis,
        ranks=len(graph.ranks),
        steps=len(owners.counted),
        ideal=ideal,
        measured_step_ns=round(measured_ns),
        replayed_step_ns=round(trial.base),
        ideal_step_ns=round(trial.ideal),
        slowdown=measured_ns / trial.ideal,
        slowdown_without_launch_delay=None if no_delay is None else no_delay / trial.ideal,
        by_rank=tuple(by_rank),
        by_stage=tuple(sorted(by_stage, key=lambda s: -s.worth_ns)),
        by_class=tuple(sorted(by_class, key=lambda c: -c.worth_ns)),
        findings=_findings(graph, times, trial, aim, candidates(graph, owners, classes, own, aim)[:MOST_CAUSES]),
        trust=grounds,
        diagnostics=(
            *graph.diagnostics,
            *times.findings(),
            *unequal_work(graph, owners, classes, counted, aim),
            *_above_measured(trial),
        ),
    )


def _shares(
    graph: Graph, owners: Members, classes: EqualWork, counted: NDArray[np.bool_], trial: _Trial
) -> tuple[list[RankShare], list[StageShare], list[ClassShare]]:
    """What each rank, stage and class costs. counted: bool[tasks], those of the steps that count."""
    own, computes = counted & ~classes.delay, graph.kind != Kind.COLLECTIVE
    best, steps = trial.best, len(owners.counted)
    differs = graph.duration != best

    def share(tasks: NDArray[np.bool_], works: NDArray[np.bool_] | None = None) -> tuple[int, int, float, int]:
        works = tasks if works is None else tasks & works
        taken, least = int(graph.duration[works].sum() / steps), int(best[works].sum() / steps)
        if not (tasks & differs).any():
            return taken, least, 1.0, 0
        alone, without = trial.step(np.where(tasks, graph.duration, best)), trial.step(np.where(tasks, best, graph.duration))
        return taken, least, alone / trial.ideal, round(trial.base - without)

    stage, label = classes.stage, classes.label
    stage_of = [None] * len(graph.ranks) if stage is None else stage.tolist()
    by_rank = [RankShare(*share(own & (owners.rank == i), computes), rank, stage_of[i]) for i, rank in enumerate(graph.ranks)]
    by_stage = [] if stage is None else [StageShare(*share(own & (stage[owners.rank] == s), computes), s) for s in unique(stage).tolist()]
    takes_time = counted & (graph.duration > 0) & (graph.kind != Kind.RETURN)
    by_class = [ClassShare(*share(counted & (label == i)), classes.labels[i]) for i in unique(label[takes_time])]
    return by_rank, by_stage, by_class


def _findings(graph: Graph, times: StepTimes, trial: _Trial, aim: Ideal, causes: list[Candidate]) -> tuple[StragglerFinding, ...]:
    """The causes that cost anything, by what they are worth or, where others hide that, by how much they slow the ideal step."""
    out = []
    for cause, name, tasks, excess in causes:
        alone, without = aim.duration.copy(), graph.duration.copy()
        alone[tasks], without[tasks] = graph.duration[tasks], aim.duration[tasks]
        slowdown, worth = trial.step(alone) / trial.ideal, round(trial.base - trial.step(without))
        if max(slowdown - 1, worth / trial.base) >= LEAST:
            worst = where(graph, times, aim, tasks)
            out.append(StragglerFinding(cause, name, worst, excess // len(times.counted), slowdown, worth))
    return tuple(sorted(out, key=lambda f: -max(f.worth_ns, (f.slowdown - 1) * trial.ideal)))


def _above_measured(trial: _Trial) -> tuple[Diagnostic, ...]:
    """The diagnostic where the ideal step is longer than the measured one, as simulated."""
    if trial.ideal <= trial.base * (1 + LEAST):
        return ()
    message = (
        f"the ideal step takes {duration(round(trial.ideal))} and the measured one, replayed, {duration(round(trial.base))}: what sets the "
        "pace is faster than its peers, so that equal times would cost a step more; read slowdown and worth as differences between ranks"
    )
    return (Diagnostic("ideal-above-measured", message),)


class _Trial:
    """The job's mean step with other durations, by the engine of what-ifs: in the long run of its loop, else over the steps that count.

    best: the ideal durations. base, ideal: the mean step with the measured and with the ideal durations, ns.
    """

    def __init__(self, loop: Steady, owners: Members, best: Int64) -> None:
        self._swept, self._owners, self.best = SweptLoop(loop), owners, best
        self.base, self.ideal = loop.step_time_ns, self.step(best)

    def step(self, durations: Int64) -> float:
        """The mean step, ns."""
        return self._swept.step_time_ns(replace(self._owners, graph=with_durations(self._owners.graph, durations.astype(np.int64))))
