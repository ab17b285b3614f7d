"""The chain of tasks that sets a step's time: who waited for whom, back from the last task to the step's start.

Each task on the path started when its latest cause was done: a predecessor's end plus the delay that its kind of dependency
adds. Walking from cause to cause covers the step's time without gap or overlap, so the step can be attributed along it:
to CPU work, launch delays, kernels by class, transfers, waiting. A task may start later than every known cause: because the SMs
were full, or, in a measured run, for reasons unknown; that share is `idle`. A collective's own share is its transfer; before it the path goes on at the rank that came last.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lumos.analyze.kernel_class import kernel_classes
from lumos.analyze.steps import Members, members, spans
from lumos.graph.table import Dependency, Graph, Kind
from lumos.simulate.freeze import Frozen, freeze
from lumos.simulate.timeline import Timeline
from lumos.trace.table import Int32, Int64

#: What a CPU task on the path counts as.
_CPU = {
    Kind.OPERATOR: "cpu operators",
    Kind.HOST: "cpu between operators",
    Kind.LAUNCH: "launch calls",
    Kind.RUNTIME: "runtime calls",
    Kind.SYNC: "synchronising calls",
    Kind.RETURN: "synchronising calls",
}
#: What the delay that a dependency adds counts as.
_DELAY = {
    Dependency.LAUNCH: "launch latency",
    Dependency.STREAM_ORDER: "kernel gaps",
    Dependency.SYNC: "synchronising calls",
    Dependency.COPY: "synchronising calls",
}
IDLE = "idle"
LATE_START = "late start of the rank"
TRANSFER = "transfer"
WAITING_UNKNOWN = "communication, waiting unknown"


class Link(NamedTuple):
    """One stretch of the path: `task` from start to end (ns), the time before it that `delay` accounts for, and why it waited."""

    task: int
    start: int
    end: int
    delay: int
    idle: int
    cause: Dependency | None


@dataclass(frozen=True, slots=True, eq=False)
class CriticalPath:
    """The path of one step of the job (all ranks).

    name: the step's. start, end: ns. links: in time order. by_class: ns by what the time went to; sums to end - start.
    by_rank: ns of the path spent on each rank. waited_for: per rank, ns that other ranks' collectives waited for it, since
    it came last.
    """

    name: str
    start: int
    end: int
    links: tuple[Link, ...]
    by_class: dict[str, int]
    by_rank: dict[int, int]
    waited_for: dict[int, int]


def critical_paths(timeline: Timeline, owners: Members | None = None) -> tuple[CriticalPath, ...]:
    """The critical path of every step of a timeline; steps of several ranks with one name are one step of the job."""
    graph = timeline.graph
    owners = owners or members(graph)
    frozen = freeze(graph)
    place = np.empty(len(graph), np.int32)  # of each task in the frozen order
    place[frozen.order] = np.arange(len(graph), dtype=np.int32)
    member = _rendezvous(graph)
    classes, class_of = kernel_classes(graph)
    unknown = np.zeros(len(graph), bool)
    unknown[graph.waiting_unknown] = True
    start, end = spans(timeline, owners)
    paths = []
    for name, parts in _job_steps(owners).items():
        first = min(int(start[i]) for i in parts)
        links = _walk(timeline, frozen, place, owners, member, parts, first)
        shares = _attribute(graph, links, classes, class_of, unknown)
        last = max(int(end[i]) for i in parts)
        paths.append(CriticalPath(name, first, last, links, shares, _by_rank(owners, links), _waited_for(timeline, owners, parts)))
    return tuple(paths)


def _job_steps(owners: Members) -> dict[str, list[int]]:
    """Steps of the job: those of all ranks with one name, in order; a name that one rank repeats is told apart by number."""
    found: dict[str, list[int]] = {}
    seen: dict[tuple[int, str], int] = {}
    for i, step in enumerate(owners.steps):
        again = seen[step.rank, step.name] = seen.get((step.rank, step.name), 0) + 1
        found.setdefault(step.name if again == 1 else f"{step.name} ({again})", []).append(i)
    return found


def _rendezvous(graph: Graph) -> Int32:
    """The rendezvous of every task, -1 without one."""
    member = np.full(len(graph), -1, np.int32)
    sizes = np.diff(graph.rendezvous_offset)
    member[graph.rendezvous_task] = np.repeat(np.arange(len(sizes)), sizes)
    return member


def _walk(
    timeline: Timeline, frozen: Frozen, place: Int32, owners: Members, member: Int32, steps: list[int], first: int
) -> tuple[Link, ...]:
    """From the step's last task back to its start, cause by cause."""
    graph = timeline.graph
    tasks = np.concatenate([owners.tasks(i) for i in steps])
    tasks = tasks[graph.kind[tasks] != Kind.HOST]
    task = int(tasks[np.argmax(timeline.end[tasks])])
    until = int(timeline.end[task])
    links: list[Link] = []
    while until > first:
        group, shown = member[task], task
        if group >= 0:  # the transfer began when the last rank arrived: the path goes on there
            others = graph.rendezvous_task[graph.rendezvous_offset[group] : graph.rendezvous_offset[group + 1]]
            task = int(others[np.argmax(timeline.start[others])])
        begin = min(int(timeline.start[task]), until)
        cause, ready, why = _cause(timeline, frozen, place, owners, task)
        begin = max(begin, first)
        done = min(max(int(timeline.end[cause]), first), begin) if cause >= 0 else first
        known = min(max(ready, done), begin) if cause >= 0 else done
        links.append(Link(shown, begin, until, known - done, begin - known, why))
        task, until = cause, done
    links.reverse()
    return tuple(links)


def _cause(timeline: Timeline, frozen: Frozen, place: Int32, owners: Members, task: int) -> tuple[int, int, Dependency | None]:
    """The predecessor that let the task start last: (task, when it let it start, kind); (-1, …) without one."""
    low, high = int(frozen.pred_offset[place[task]]), int(frozen.pred_offset[place[task] + 1])
    if low == high:
        return -1, 0, None
    kinds = frozen.pred_kind[low:high]
    ready = timeline.end[frozen.pred[low:high]] + timeline.graph.lag[owners.rank[task], kinds]
    at = int(np.argmax(ready))
    return int(frozen.pred[low + at]), int(ready[at]), Dependency(int(kinds[at]))


def _attribute(graph: Graph, links: tuple[Link, ...], classes: list[str], class_of: Int32, unknown: NDArray[np.bool_]) -> dict[str, int]:
    """ns of the path by what they went to, largest first."""
    shares: dict[str, int] = {}
    for link in links:
        kind = Kind(int(graph.kind[link.task]))
        if kind == Kind.COLLECTIVE:
            name = WAITING_UNKNOWN if unknown[link.task] else TRANSFER
        elif kind in _CPU:
            name = _CPU[kind]
        else:
            name = classes[class_of[link.task]]
        shares[name] = shares.get(name, 0) + link.end - link.start
        if link.delay > 0 and link.cause is not None:
            delay = _DELAY.get(link.cause, IDLE)
            shares[delay] = shares.get(delay, 0) + link.delay
        if link.idle > 0:
            idle = LATE_START if link.cause is None else IDLE
            shares[idle] = shares.get(idle, 0) + link.idle
    return dict(sorted(((k, v) for k, v in shares.items() if v), key=lambda item: -item[1]))


def _by_rank(owners: Members, links: tuple[Link, ...]) -> dict[int, int]:
    """ns of the path on each rank, delays and idle before a task counted with it."""
    shares = dict.fromkeys(owners.graph.ranks, 0)
    for link in links:
        shares[owners.graph.ranks[owners.rank[link.task]]] += link.end - link.start + link.delay + link.idle
    return shares


def _waited_for(timeline: Timeline, owners: Members, steps: list[int]) -> dict[int, int]:
    """Per rank: the time that peers spent in collectives waiting for it, where it came last."""
    graph = timeline.graph
    inside = np.isin(owners.step, steps)
    waited = dict.fromkeys(graph.ranks, 0)
    for low, high in pairwise(graph.rendezvous_offset):
        tasks = graph.rendezvous_task[low:high]
        if len(tasks) and inside[tasks].any():
            start: Int64 = timeline.start[tasks]
            waited[graph.ranks[owners.rank[tasks[np.argmax(start)]]]] += int((start.max() - start).sum())
    return waited
