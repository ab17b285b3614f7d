"""Steps that take much longer than the others: a compilation, a checkpoint, a stall.

They are part of the job's step in every verb, so their worth is what they add to the mean of the recorded steps; it is not simulated. In a
longer run they may come more or less often.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from lumos.findings.finding import FindingCode, FindingPlace, where_words
from lumos.units import duration

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lumos.analyze.loop.steps import StepTime
    from lumos.findings.case import Case, Priced

#: A step is much longer than the others where it takes so many times the median step.
MUCH_LONGER = 1.5

#: Parts of the names of ranges and operators in which a compiler works.
_COMPILES = ("dynamo", "inductor", "torch.compile", "compile_fx", "aot_")


def slow_step_findings(case: Case) -> Iterator[Priced]:
    """The finding that some steps are longer than the others."""
    times, counted = case.times.job, case.owners.counted
    usual = times[case.at]
    slow = [i for i in counted if times[i].length_ns > MUCH_LONGER * usual.length_ns]
    if not slow:
        return
    more = {i: times[i].length_ns - usual.length_ns for i in slow}
    worth = sum(more.values()) / len(counted)
    if not case.matters(worth, mean=True):
        return
    worst = max(slow, key=lambda i: more[i])
    time, (task, extra) = times[worst], _grown(case, worst)
    place = _place(case, time, task)
    others = f" and {len(slow) - 1} more" if len(slow) > 1 else ""
    grew = f", {duration(extra)} of it {where_words(place.task)} on rank {place.ranks[0]}" if extra > 0 else ""
    compiled = any(any(part in name.lower() for part in _COMPILES) for name in _names(case, worst))
    yield case.finding(
        FindingCode.SLOW_STEPS,
        f"{time.name}{others} took {duration(time.length_ns)} instead of {duration(usual.length_ns)}",
        place,
        worth,
        evidence=f"{time.name} takes {duration(more[worst])} longer than the median step{grew}",
        fix=(
            "it compiles: keep shapes constant (mark them dynamic, pad to a few sizes), and look at TORCH_LOGS=recompiles"
            if compiled
            else "if it recurs, find what this step does besides: compilation of a new shape, a checkpoint, logging, garbage collection"
        ),
        command=f"compare --step {usual.name} --step {time.name}",
        mean=True,
    )


def _names(case: Case, step: int) -> set[str]:
    """The names of a step's tasks."""
    tasks = np.concatenate([case.owners.tasks(part) for part in case.owners.job[step].parts])
    return {str(case.graph.names[i]) for i in np.unique(case.graph.name[tasks]).tolist()}


def _grown(case: Case, step: int) -> tuple[int, int]:
    """Of a step's tasks that compute or pause, the longest among those of the rank and name that take most more time than in the median
    step, and how much more, ns."""
    graph, owners = case.graph, case.owners
    lone = ~np.isin(np.arange(len(graph)), graph.rendezvous_task)
    tasks, usual = (np.concatenate([owners.tasks(part) for part in owners.job[i].parts]) for i in (step, case.at))
    tasks, usual = tasks[lone[tasks]], usual[lone[usual]]
    width = len(graph.names)
    total: dict[int, int] = {}
    for sign, of in ((1, tasks), (-1, usual)):
        for key, time in zip(
            (owners.rank[of].astype(np.int64) * width + graph.name[of]).tolist(), graph.duration[of].tolist(), strict=True
        ):
            total[key] = total.get(key, 0) + sign * time
    grown = max((key for key in total), key=lambda key: total[key])
    own = tasks[owners.rank[tasks].astype(np.int64) * width + graph.name[tasks] == grown]
    return int(own[np.argmax(graph.duration[own])]) if len(own) else int(tasks[0]), total[grown]


def _place(case: Case, time: StepTime, task: int) -> FindingPlace:
    return case.place(task, time, (case.graph.ranks[int(case.owners.rank[task])],))
