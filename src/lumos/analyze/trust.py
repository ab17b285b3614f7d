"""How far an answer from a trace can be trusted.

The evidence comes from where it is found: `graph.evidence` and `graph.joined.one_job` read it from the rows, and here it is read from the
replay: its error, and how much of a step it did not explain. An answer is *sound* where nothing was found that could move it beyond its
interval, *limited* where something that it depends on is unknown, and *unsound* where the recording or its replay is wrong. An unknown
share of a step widens the interval of a what-if, which then holds it; the answer is limited where all such shares together are more than
the recording leaves unknown anyway, by how much its steps differ (`analyze.loop.noise.resolution`). Rows that break a rule are wrong where
they are more.

Every figure of a replay is the mean over the steps that count (`analyze.loop.steps`), and a share of their time. What a replay kept as CPU
work although it was waiting, or left idle without a cause, does not follow a change as it would on the real job: that share of an answer is
unknown.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.analyze.loop.noise import resolution
from lumos.analyze.loop.steps import members, step_times
from lumos.analyze.waiting.idle import UnexplainedTime, unexplained_times
from lumos.diagnostics import Diagnostic
from lumos.errors import GraphError, LumosError
from lumos.graph.evidence import NEGLIGIBLE, NEVER_MEASURED
from lumos.graph.joined.one_job import MODELLED, RANKS_ABSENT
from lumos.graph.table import Evidence
from lumos.intervals import union, within
from lumos.simulation import measured, simulate
from lumos.units import count, duration
from lumos.vocabulary import Grade

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from lumos.analyze.loop.steps import Members, StepTimes
    from lumos.graph.table import Graph
    from lumos.simulation.timeline import Timeline

#: Ranks of which a larger share of the collectives meets no peer are not those of one job.
MOST_ALONE = 0.5
#: A replay that keeps a larger share of every step as waiting without a reason says nothing about a change.
MOST_UNEXPLAINED = 0.5
#: A replay whose step is off by more does not behave as the job does.
MOST_ERROR = 0.05


def replay_evidence(times: StepTimes, truth: Timeline, replayed: Timeline) -> tuple[Evidence, ...]:
    """The findings of a replay. truth, replayed: the job as measured and as simulated. times: of its steps as measured."""
    owners = times.owners
    counted = np.flatnonzero(times.rank_steps_counted()).tolist()
    if not counted:
        return (Evidence("no-step", "no step contains any work: the window may have cut every step", Grade.UNSOUND),)
    figures = unexplained_times(truth, owners)
    return (
        *_backwards(times),
        *_off(times, step_times(replayed, owners)),
        *_unscored([figures[i] for i in counted]),
        *_too_few([figures[i] for i in counted]),
        *_unexplained([figures[i] for i in counted]),
        *_waits_for_absent_ranks(truth, owners, times, counted),
        *_unmet(owners, times),
    )


def _backwards(times: StepTimes) -> Iterator[Evidence]:
    """A step that is complete before the one before it, as no run is."""
    for step in [step for step in times.counted if step.length_ns < 0][:1]:
        message = f"{step.name} is complete {duration(-step.length_ns)} before the step before it: the times of the rows are wrong"
        yield Evidence("steps-backwards", message, Grade.UNSOUND)


def _off(times: StepTimes, replayed: StepTimes) -> Iterator[Evidence]:
    """The replayed step takes another time than the measured one."""
    step, again = times.mean_ns, replayed.mean_ns
    error = again / step - 1 if step else 0.0
    if abs(error) > MOST_ERROR:
        why = "dependencies are ignored" if times.owners.graph.ignored else "what sets its time is not in the recording"
        message = f"the replayed step takes {duration(again)} instead of {duration(step)} ({error:+.1%})"
        yield Evidence("replay-off", f"{message}: {why}", Grade.UNSOUND)


def _unscored(figures: Sequence[UnexplainedTime]) -> Iterator[Evidence]:
    """More of every step is waiting that no rule explains than is explained."""
    if all(figure.kept_wait > MOST_UNEXPLAINED for figure in figures):
        message = f"too little of any step is explained; of the first, {figures[0].kept_wait:.1%} is waiting that no rule explains"
        yield Evidence("no-step-scored", message, Grade.UNSOUND)


def _too_few(figures: Sequence[UnexplainedTime]) -> Iterator[Evidence]:
    """The steps of every rank have so few rows that their times agree by chance, or none that say what the CPU did."""
    if all(figure.too_few for figure in figures):
        yield Evidence("too-few-rows", f"the recording holds too little to judge the replay by: {figures[0].too_few}", Grade.LIMITED)


def _unexplained(figures: Sequence[UnexplainedTime]) -> Iterator[Evidence]:
    """The shares of the steps that the replay took from the trace or left unexplained."""
    steps = count(len(figures), "step")
    for code, key, words in (
        ("kept-wait", "kept_wait", "is waiting that no rule explains, kept as CPU work"),
        ("unexplained-idle", "unexplained_idle", "is idle without a known cause"),
        ("prefix", "prefix", "runs work launched before the window, whose start is taken from the recording"),
        ("held-up", "held_up", "passes before work that something from before the recording held up, and is taken from it"),
    ):
        share = float(np.mean([getattr(figure, key) for figure in figures]))
        if share > NEGLIGIBLE:
            yield Evidence(code, f"{share:.1%} of the time {words} (mean over {steps})", Grade.SOUND, share)


def _waits_for_absent_ranks(truth: Timeline, owners: Members, times: StepTimes, counted: Sequence[int]) -> Iterator[Evidence]:
    """Time in which a rank's devices run nothing but communication of which it is not known how much is waiting."""
    lone = np.zeros(len(owners.graph), bool)
    lone[owners.graph.waiting_unknown] = True
    if not lone.any():
        return
    start, end = times.rank_intervals()
    rank = owners.step_rank()
    shares = []
    for i in counted:
        tasks = owners.of_rank(int(rank[i]))
        tasks = tasks[(owners.on_device[tasks] | lone[tasks]) & (truth.end[tasks] > start[i]) & (truth.start[tasks] < end[i])]
        work = tasks[~lone[tasks]]
        all_, others = (union(truth.start[some], truth.end[some]) for some in (tasks, work))
        window = start[i : i + 1], end[i : i + 1]
        shares.append(float((within(all_, *window) - within(others, *window))[0]) / max(times.ranks[i].length_ns, 1))
    share = float(np.mean(shares))
    if share > NEGLIGIBLE:
        message = f"for {share:.1%} of the time nothing runs but communication that may be waiting for ranks that are not given"
        yield Evidence("waiting-unknown", message, Grade.SOUND, share)


def _unmet(owners: Members, times: StepTimes) -> Iterator[Evidence]:
    """Collectives of the steps that count which lack a peer although all ranks were given: rows are missing, or the ranks are of several
    jobs. Those that the window cut from their peers are in none of these steps."""
    graph, facts = owners.graph, owners.graph.collectives
    if len(graph.ranks) < 2 or facts is None or any(known.code == RANKS_ABSENT for known in graph.evidence):
        return
    task = facts.task[times.tasks_counted()[facts.task]]
    lone = int(np.isin(task, graph.waiting_unknown).sum())
    if not lone:
        return
    number = np.bincount(owners.rank[task], minlength=len(graph.ranks))
    (fewest, few), (most, many) = ((graph.ranks[i], number[i]) for i in (number.argmin(), number.argmax()))
    uneven = f"; rank {fewest} recorded {few:,}, rank {most} {many:,}" if few < many else ""
    of_all = f"{lone:,} of {len(task):,} collectives and messages in the steps that count ({lone / len(task):.1%})"
    message = f"{of_all} meet no peer although all ranks are given{uneven}"
    yield Evidence("ranks-do-not-meet", message, Grade.UNSOUND if lone > MOST_ALONE * len(task) else Grade.LIMITED)


_WORST_FIRST = (Grade.UNSOUND, Grade.LIMITED, Grade.SOUND)


class Trust(NamedTuple):
    """A grade, why it is no better, the gravest reason first, and the share of a step's time that the reasons leave unknown."""

    grade: Grade
    reasons: tuple[Diagnostic, ...] = ()
    unknown: float = 0.0

    @property
    def why(self) -> str:
        """The gravest reason in words; empty where the grade is sound."""
        return self.reasons[0].message if self.reasons and self.grade is not Grade.SOUND else ""

    def timed(self, run: str = "measured") -> str:
        """What a run of the job is called: one that is given as measured was "modelled" where no device ran it."""
        return "modelled" if run == "measured" and any(reason.code == MODELLED for reason in self.reasons) else run


#: The trust in a job of which nothing speaks against it.
SOUND = Trust(Grade.SOUND)


def trust(graph: Graph, timeline: Timeline | None = None, owners: Members | None = None) -> Trust:
    """How far answers about the job of `graph` can be trusted.

    timeline: the replay, and owners: what `lumos.analyze.loop.steps.members` gives for the graph; worked out here where they are not given.
    A graph that has no schedule is graded `unsound`.
    """
    if graph.measured_start is None or any(finding.code == NEVER_MEASURED for finding in graph.evidence):
        return grade(graph.evidence)
    try:
        replayed = simulate(graph) if timeline is None else timeline
    except GraphError as error:
        summary = str(error).splitlines()[0]
        return grade((*graph.evidence, Evidence("no-schedule", f"the dependencies contradict each other: {summary}", Grade.UNSOUND)))
    truth = measured(graph)
    times = step_times(truth, members(graph) if owners is None else owners)
    known, evidence = resolution(times), (*graph.evidence, *replay_evidence(times, truth, replayed))
    few = [e._replace(grade=Grade.SOUND) if e.grade is Grade.UNSOUND and 0 < e.share <= known else e for e in evidence]
    return with_unknown(grade(few), known)


def without_graph(error: LumosError) -> Trust:
    """The trust in a job of which no graph can be made, for the reason that `error` says."""
    return grade([Evidence("no-graph", str(error), Grade.UNSOUND)])


def grade(evidence: Iterable[Evidence]) -> Trust:
    """The grade that the evidence allows: that of its gravest finding. Findings of one code become one reason."""
    by_code: dict[str, list[Evidence]] = {}
    for finding in sorted(evidence, key=lambda finding: (_WORST_FIRST.index(finding.grade), -finding.share)):
        by_code.setdefault(finding.code, []).append(finding)
    more = {code: f" (and {len(findings) - 1} more like it)" for code, findings in by_code.items() if len(findings) > 1}
    reasons = tuple(Diagnostic(code, findings[0].message + more.get(code, "")) for code, findings in by_code.items())
    gravest = next((findings[0].grade for findings in by_code.values()), Grade.SOUND)
    unknown = sum(max(finding.share for finding in findings) for findings in by_code.values())
    return Trust(gravest, reasons, min(unknown, 1.0))


def with_evidence(trust: Trust, evidence: tuple[Evidence, ...]) -> Trust:
    """The trust with further findings."""
    return together(trust, grade(evidence))


def together(trust: Trust, more: Trust) -> Trust:
    """The trust for the reasons of both, those of the graver first."""
    graver, other = sorted((trust, more), key=lambda either: _WORST_FIRST.index(either.grade))
    return Trust(graver.grade, (*graver.reasons, *other.reasons), min(trust.unknown + more.unknown, 1.0))


def with_unknown(trust: Trust, known: float) -> Trust:
    """The trust, limited where more of a step is unknown than `known`, the share up to which it is never known better."""
    return trust._replace(grade=Grade.LIMITED) if trust.grade is Grade.SOUND and trust.unknown > known else trust


def check_sound(trust: Trust, what: str, *, force: bool = False) -> None:
    """Raise LumosError where the evidence is unsound, unless `force`. what: the question, such as "whatif"."""
    if trust.grade is Grade.UNSOUND and not force:
        raise LumosError(f"{what}: the recording cannot give a sound answer: {trust.why}; pass --force to get the answer all the same")
