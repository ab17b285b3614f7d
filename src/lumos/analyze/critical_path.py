"""The chain of tasks that sets a step's time, followed from the task that completes it back to the completion of the step before.

Each task on the path started because of its latest cause: a predecessor ended and the delay of that kind of dependency passed, or a
kernel of another stream released the SMs that it needed. Following the causes covers the step's time without gap or overlap, so the
whole step can be attributed along the path. A step whose time is a latency (`analyze.loop.steps`) is followed back to its first start. Of a
collective, only the transfer is on the path; before that, the path continues on the member that arrived last. Time that no known cause
accounts for is `idle`. Where the recording imposes a start, the time before it is a late start of the rank (for the first task of a
thread) or device work launched before the window.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.analyze.loop.steps import JobStep, Members, StepTime, members, step_times
from lumos.analyze.task_class import CLASSES, CPU_CLASSES, OPERATORS, TRANSFER, WAITING_UNKNOWN, task_classes
from lumos.analyze.waiting.causes import Causes, causes
from lumos.drawings import Bar
from lumos.graph.table import Dependency
from lumos.result import Rows, Shown
from lumos.simulation.freeze import Frozen, freeze
from lumos.stages import stage

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from lumos.analyze.collectives import Waiting
    from lumos.simulation.timeline import Timeline
    from lumos.trace.table import Int32, Int64
    from lumos.vocabulary import Basis

#: The class of the delay that each kind of dependency adds.
_DELAY = {
    Dependency.HAND_OFF: "thread hand-offs",
    Dependency.LAUNCH: "launch latency",
    Dependency.STREAM_ORDER: "kernel gaps",
    Dependency.OCCUPANCY: "kernel gaps",
    Dependency.STREAM_WAIT: "stream waits",
    Dependency.SYNC: "synchronising calls",
    Dependency.COPY: "synchronising calls",
    Dependency.QUEUE_DEPTH: "full launch queue",
}
OTHER_DELAY = "other delays"
_IDLE = "idle"
LATE_START = "late start of the rank"
BEFORE_WINDOW = "launched before the window"

#: What bounds a step, in few words, and the classes that belong to each.
PATH_GROUPS = {
    "CPU work": (*dict.fromkeys(CPU_CLASSES.values()), "thread hand-offs"),
    "operators": (OPERATORS,),
    "kernels": tuple(name for name in CLASSES if name != "collective"),
    "communication": (TRANSFER, WAITING_UNKNOWN),
    "launches and gaps": ("launch latency", "kernel gaps", "stream waits", "full launch queue", OTHER_DELAY),
    "late start": (LATE_START, BEFORE_WINDOW),
    "idle": (_IDLE,),
}


class Link(NamedTuple):
    """One part of the path: the work of `task` from start to end, and the time before it, back to the end of the link before.

    arrival: for a collective, the member that arrived last, on whose rank the path continues; otherwise the task itself. rank:
    that of `arrival`. label: the class of the work. cause: how the task depends on that of the link before. delay_ns: the delay
    that this kind of dependency adds. idle_ns: time that no known cause accounts for or, where `cause` is None, that the
    recording imposes.
    """

    task: int
    arrival: int
    rank: int
    label: str
    start_ns: int
    end_ns: int
    delay_ns: int
    idle_ns: int
    cause: Dependency | None


class RankOnPath(NamedTuple):
    """A rank in a step. path_ns: the part of the path on this rank. waited_ns: how long it waited in collectives for others.
    waited_for_ns: how long others waited in collectives for it."""

    rank: int
    path_ns: int
    waited_ns: int
    waited_for_ns: int


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class CriticalPath(Shown):
    """The path of one step of the job (all ranks).

    basis: whether the time of the step is a period or a latency. start_ns: when the step before was complete or, for a latency, the
    earliest start of the step on any rank. duration_ns: from there to the step's completion. counts: whether the step counts in the
    figures of the job.
    by_class: ns by class of work or delay, the largest first; sums to duration_ns. by_group: the same by PATH_GROUPS. links: in time order.
    """

    name: str
    basis: Basis
    start_ns: int
    duration_ns: int
    counts: bool
    by_group: dict[str, int]
    by_class: dict[str, int]
    by_rank: tuple[RankOnPath, ...]
    links: tuple[Link, ...]

    def bar(self) -> Bar:
        """The path by groups of work and delays, in one order for all steps."""
        return Bar(self.name, {group: float(self.by_group.get(group, 0)) for group in PATH_GROUPS})


@stage("following the critical path")
def critical_paths(
    timeline: Timeline, owners: Members | None = None, *, frozen: Frozen | None = None, names: Collection[str] | None = None
) -> Rows[CriticalPath]:
    """The critical path of every step of the job in a timeline. names: only of the steps of these names.

    Raises GraphError as `freeze` does. owners, frozen: what `members` and `freeze` give for the timeline's graph, where they
    are known already.
    """
    graph = timeline.graph
    owners = owners or members(graph)
    latest = causes(timeline, frozen or freeze(graph))
    labels = task_classes(graph)
    every = zip(owners.job, step_times(timeline, owners).job, strict=True)
    return Rows(_path_of(step, time, timeline, owners, latest, labels) for step, time in every if names is None or step.name in names)


def _path_of(
    step: JobStep, time: StepTime, timeline: Timeline, owners: Members, latest: Causes, labels: tuple[list[str], Int32]
) -> CriticalPath:
    links = _walk(timeline, owners, latest, labels, _last(step, timeline, owners), time.since_ns)
    by_class = attribute(links)
    return CriticalPath(
        name=step.name,
        basis=time.basis,
        start_ns=time.since_ns,
        duration_ns=time.length_ns,
        counts=step.counts,
        by_group={group: total for group, names in PATH_GROUPS.items() if (total := sum(by_class.get(n, 0) for n in names))},
        by_class=by_class,
        by_rank=_by_rank(timeline, owners, latest.waiting, step.parts, links),
        links=links,
    )


def _last(step: JobStep, timeline: Timeline, owners: Members) -> int:
    """The task with whose end the step is complete."""
    tasks = np.concatenate([owners.tasks(part) for part in step.parts])
    tasks = tasks[owners.completes[tasks]]
    return int(tasks[np.argmax(timeline.end[tasks])])


def attribute(links: Sequence[Link]) -> dict[str, int]:
    """The time of links by class of work or delay, ns, the largest first."""
    shares: dict[str, int] = {}
    for link in links:
        for label, time in (*before_work(link), (link.label, link.end_ns - link.start_ns)):
            shares[label] = shares.get(label, 0) + time
    return dict(sorted(((label, time) for label, time in shares.items() if time), key=lambda item: -item[1]))


def before_work(link: Link) -> tuple[tuple[str, int], tuple[str, int]]:
    """The time before a link's work, in order, as (class, ns): the delay of its dependency, then the unexplained or imposed time."""
    if link.cause is None:
        imposed = LATE_START if link.label in CPU_CLASSES.values() or link.label == OPERATORS else BEFORE_WINDOW
        return (OTHER_DELAY, link.delay_ns), (imposed, link.idle_ns)
    return (_DELAY.get(link.cause, OTHER_DELAY), link.delay_ns), (_IDLE, link.idle_ns)


def _walk(timeline: Timeline, owners: Members, latest: Causes, labels: tuple[list[str], Int32], final: int, first: int) -> tuple[Link, ...]:
    """The path from the step's last task `final` back to its start `first` (ns), cause by cause; in time order."""
    names, label = labels
    ranks = timeline.graph.ranks
    shown, until = final, int(timeline.end[final])
    links: list[Link] = []
    while shown >= 0 and until > first:
        task = int(latest.waiting.last[shown])
        begin = max(min(int(timeline.start[task]), until), first)
        cause = latest.of(task)
        done = max(min(cause.done, begin), first)
        known = max(min(cause.ready, begin), done)
        links.append(
            Link(shown, task, ranks[owners.rank[task]], names[label[shown]], begin, until, known - done, begin - known, cause.kind)
        )
        shown, until = cause.task, done
    links.reverse()
    return tuple(links)


def _by_rank(
    timeline: Timeline, owners: Members, waits: Waiting, parts: tuple[int, ...], links: tuple[Link, ...]
) -> tuple[RankOnPath, ...]:
    """The path, and the waiting in collectives, by rank; delays and idle time before a task count for the task's rank."""
    graph = timeline.graph
    path = dict.fromkeys(graph.ranks, 0)
    for link in links:
        path[link.rank] += link.end_ns - link.start_ns + link.delay_ns + link.idle_ns
    tasks = np.concatenate([owners.tasks(i) for i in parts])
    tasks = tasks[waits.last[tasks] != tasks]
    time: Int64 = waits.began[tasks] - timeline.start[tasks]
    waited, waited_for = np.zeros(len(graph.ranks), np.int64), np.zeros(len(graph.ranks), np.int64)
    np.add.at(waited, owners.rank[tasks], time)
    np.add.at(waited_for, owners.rank[waits.last[tasks]], time)
    return tuple(RankOnPath(rank, path[rank], int(waited[i]), int(waited_for[i])) for i, rank in enumerate(graph.ranks))
