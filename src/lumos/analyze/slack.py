"""How much longer each task could take before a step ends later.

A backward pass over the frozen graph gives every task the latest time by which it must end: no later than its step's end, nor
than the latest start of each successor less the delay of that dependency. The members of a rendezvous begin together, so what
any of them waits for is bound by the tightest of them. Slack is that time minus the task's end in the replayed run. It holds for
one task at a time, with the order on every processor, and who waits for whose SMs, as they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from lumos.analyze.causes import Causes, causes
from lumos.analyze.steps import Members, job_steps, members
from lumos.analyze.task_class import task_classes
from lumos.graph.table import Dependency, Kind
from lumos.simulate.freeze import Frozen, freeze
from lumos.simulate.timeline import Timeline
from lumos.trace.table import Int32, Int64

#: Slack of a task that no step's end depends on.
UNBOUNDED = int(np.iinfo(np.int64).max)


@dataclass(frozen=True, slots=True, eq=False)
class Slack:
    """slack: int64[n] ns, how much longer each task may take; UNBOUNDED where no step ends later however long it takes.
    work: int64[n] ns, how long each task works, without its waiting in a rendezvous. timeline: the run that it holds for."""

    slack: Int64
    work: Int64
    timeline: Timeline


class ClassSlack(NamedTuple):
    """The tasks of a class in all steps: number, time, the number and time of those without slack, ns; the median slack
    (None where it is unbounded)."""

    tasks: int
    time_ns: int
    critical_tasks: int
    critical_ns: int
    median_ns: int | None


def slack(timeline: Timeline, owners: Members | None = None, *, frozen: Frozen | None = None) -> Slack:
    """The slack of every task of a replayed run. GraphError as for `freeze`.

    owners, frozen: what `members` and `freeze` give for the timeline's graph, where they are known already.
    """
    graph = timeline.graph
    owners, frozen = owners or members(graph), frozen or freeze(graph)
    found = causes(timeline, frozen)
    holder, early = _holders(timeline, found)
    set_of = np.full(len(graph), -1, np.int32)
    if Dependency.RENDEZVOUS not in graph.ignored:
        sizes = np.diff(graph.rendezvous_offset)
        set_of[graph.rendezvous_task] = np.repeat(np.arange(len(sizes)), sizes)
    began = found.waiting.began
    sequence = np.arange(len(graph), dtype=np.int32)
    if (holder >= 0).any():  # the frozen order knows nothing of SMs; the order of time does
        sequence = np.argsort(began[frozen.edges.order], kind="stable").astype(np.int32)
    late = _deadlines(timeline, owners)
    frozen.edges.latest_ends(
        sequence,
        set_of,
        holder,
        early,
        start=np.ascontiguousarray(timeline.start),
        began=began,
        end=np.ascontiguousarray(timeline.end),
        late=late,
    )
    return Slack(np.where(late == UNBOUNDED, UNBOUNDED, late - timeline.end), timeline.end - began, timeline)


def _deadlines(timeline: Timeline, owners: Members) -> Int64:
    """The end of its step for what makes up the step, int64[n]; UNBOUNDED for the rest."""
    late = np.full(len(timeline.graph), UNBOUNDED, np.int64)
    for parts in job_steps(owners).values():
        tasks = np.concatenate([owners.tasks(i) for i in parts])
        tasks = tasks[timeline.graph.kind[tasks] != Kind.HOST]
        late[tasks] = timeline.end[tasks].max()
    return late


def _holders(timeline: Timeline, found: Causes) -> tuple[Int32, Int64]:
    """By task, the kernel that made room for it on the device (-1 none); by such a kernel, how long before its end it did."""
    holder, early = np.full(len(found.task), -1, np.int32), np.zeros(len(found.task), np.int64)
    waited = np.flatnonzero((found.kind == Dependency.OCCUPANCY) & (found.task >= 0))
    holder[waited] = found.task[waited]
    early[holder[waited]] = timeline.end[holder[waited]] - found.done[waited]
    return holder, early


def slack_by_class(found: Slack, owners: Members) -> dict[str, ClassSlack]:
    """Slack by class of task over the steps, those with most time first."""
    graph = found.timeline.graph
    labels, label = task_classes(graph)
    tasks = np.flatnonzero((owners.step >= 0) & (graph.kind != Kind.RETURN))
    tasks = tasks[np.argsort(label[tasks], kind="stable")]
    rows = {}
    for group in np.split(tasks, np.flatnonzero(np.diff(label[tasks])) + 1):
        if len(group):
            rows[labels[int(label[group[0]])]] = _summary(found, group)
    return dict(sorted(rows.items(), key=lambda item: -item[1].time_ns))


def _summary(found: Slack, tasks: Int64) -> ClassSlack:
    time, left = found.work[tasks], found.slack[tasks]
    # The lower middle value: no mean with an unbounded one.
    median = int(np.sort(left)[(len(left) - 1) // 2])
    none = left == 0
    return ClassSlack(len(tasks), int(time.sum()), int(none.sum()), int(time[none].sum()), None if median == UNBOUNDED else median)
