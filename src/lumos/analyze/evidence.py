"""What the replay of a job says against trusting an answer about it: its error, and how much of a step it did not explain.

Every figure is the mean over the steps that count (`analyze.loop.steps`), and a share of their time. What a replay kept as CPU work
although it was waiting, or left idle without a cause, does not follow a change as it would on the real job: that share of an answer is
unknown.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from lumos.analyze.loop.steps import step_times
from lumos.analyze.waiting.unexplained import UnexplainedTime, unexplained_times
from lumos.graph.evidence import NEGLIGIBLE
from lumos.graph.joined.one_job import RANKS_ABSENT
from lumos.graph.table import Evidence
from lumos.intervals import union, within
from lumos.units import count, duration
from lumos.vocabulary import Grade

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from lumos.analyze.loop.steps import Members, StepTimes
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
