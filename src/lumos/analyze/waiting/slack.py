"""How much longer each task could take before a step ends later.

A backward pass over the frozen graph gives the latest time by which every task must end: its step's end or, if that is earlier,
the latest start of a successor less the delay of the dependency between them. The members of a rendezvous begin together, so the
earliest of their latest starts binds the predecessors of all of them. Slack is the latest end minus the task's end in the
replayed run. It holds if one task alone takes longer, while the order on every processor, and which kernel waits for the
SMs of which other, stay as they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.analyze.loop.steps import Members, members, step_times
from lumos.analyze.task_class import task_classes
from lumos.analyze.waiting.causes import Causes, causes
from lumos.graph.lists import equal_rows
from lumos.graph.table import Dependency, Kind
from lumos.simulation.freeze import Frozen, freeze

if TYPE_CHECKING:
    from lumos.simulation.timeline import Timeline
    from lumos.trace.table import Int32, Int64

#: Slack of a task that no step's end depends on.
UNBOUNDED = int(np.iinfo(np.int64).max)


@dataclass(frozen=True, slots=True, eq=False)
class Slack:
    """slack: int64[n] ns, how much longer each task may take; UNBOUNDED where no step ends later however long it takes.
    work: int64[n] ns, each task's duration without waiting in a rendezvous. timeline: the replayed run."""

    slack: Int64
    work: Int64
    timeline: Timeline


class ClassSlack(NamedTuple):
    """The tasks of a class in the steps that count. critical_tasks, critical_ns: those without slack. median_ns: the median slack, None
    where it is unbounded."""

    tasks: int
    time_ns: int
    critical_tasks: int
    critical_ns: int
    median_ns: int | None


def slack(timeline: Timeline, owners: Members | None = None, *, frozen: Frozen | None = None) -> Slack:
    """How much longer each task of a replayed run could take before a step ends later. Raises GraphError where the graph is malformed or
    has no schedule."""
    graph = timeline.graph
    owners, frozen = owners or members(graph), frozen or freeze(graph)
    latest_causes = causes(timeline, frozen)
    holder, early = _holders(timeline, latest_causes)
    set_of = np.full(len(graph), -1, np.int32)
    if Dependency.RENDEZVOUS not in graph.ignored:
        sizes = np.diff(graph.rendezvous_offset)
        set_of[graph.rendezvous_task] = np.repeat(np.arange(len(sizes)), sizes)
    began = latest_causes.waiting.began
    sequence = np.arange(len(graph), dtype=np.int32)
    if (holder >= 0).any():  # the frozen graph's order ignores waits for SMs; the order in time respects them
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
    """The end of its step for every task that counts for the step's time, int64[n] ns; UNBOUNDED for all others."""
    late = np.full(len(timeline.graph), UNBOUNDED, np.int64)
    for step, time in zip(owners.job, step_times(timeline, owners).job, strict=True):
        tasks = np.concatenate([owners.tasks(part) for part in step.parts])
        late[tasks[owners.completes[tasks]]] = time.completion_ns
    return late


def _holders(timeline: Timeline, latest: Causes) -> tuple[Int32, Int64]:
    """By task, the kernel whose release of SMs let it start, int32[n], -1 for none; and by such a kernel, how long before its
    own end it released them, int64[n] ns."""
    holder, early = np.full(len(latest.task), -1, np.int32), np.zeros(len(latest.task), np.int64)
    waited = np.flatnonzero((latest.kind == Dependency.OCCUPANCY) & (latest.task >= 0))
    holder[waited] = latest.task[waited]
    early[holder[waited]] = timeline.end[holder[waited]] - latest.done[waited]
    return holder, early


def slack_by_class(result: Slack, owners: Members) -> dict[str, ClassSlack]:
    """Slack by class of task over the steps that count, the classes with most time first."""
    graph = result.timeline.graph
    labels, label = task_classes(graph)
    tasks = np.flatnonzero(step_times(result.timeline, owners).tasks_counted() & (graph.kind != Kind.RETURN))
    groups = (tasks[alike] for alike in equal_rows(label[tasks]))
    rows = {labels[int(label[group[0]])]: _summary(result, group) for group in groups}
    return dict(sorted(rows.items(), key=lambda item: -item[1].time_ns))


def _summary(result: Slack, tasks: Int64) -> ClassSlack:
    time, slack_ns = result.work[tasks], result.slack[tasks]
    # The lower of the two middle values, not their mean, because one of them may be unbounded.
    median = int(np.sort(slack_ns)[(len(slack_ns) - 1) // 2])
    none = slack_ns == 0
    return ClassSlack(len(tasks), int(time.sum()), int(none.sum()), int(time[none].sum()), None if median == UNBOUNDED else median)
