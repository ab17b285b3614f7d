"""The critical path in a Perfetto trace: tracks of its own, and arrows from link to link across the tracks of the ranks."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

from lumos.analyze.critical_path import CriticalPath, Link, before_work

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from lumos.simulation.timeline import Timeline

#: Category of all events of the path, so that a viewer can search for them.
CATEGORY = "critical path"


def path_events(
    timeline: Timeline, paths: Sequence[CriticalPath], pid: int, pids: Sequence[int], origin: int, ids: tuple[int, int]
) -> Iterator[dict[str, Any]]:
    """The tracks of the paths, in process `pid`, and their arrows. A step is shown for the time of its path: its period or its latency.

    pids: the process of each processor's tasks. ids: the id of an arrow is its number times ids[1] plus ids[0], so that the
    arrows of several timelines have different ids.
    """
    arrows: list[tuple[int, int, int, int]] = []
    for path in paths:
        yield _slice(path.name, pid, 0, path.start_ns - origin, path.duration_ns, {"basis": path.basis, "counts": path.counts})
        for link in path.links:
            yield from _link(timeline, link, pid, origin)
        arrows += _arrows(path)
    for number, arrow in enumerate(arrows):
        yield from _arrow(timeline, *arrow, pids, origin, number * ids[1] + ids[0])


def _arrows(path: CriticalPath) -> Iterator[tuple[int, int, int, int]]:
    """(task, time, next task, time) of each arrow: from link to link, and within a rendezvous from the last to arrive."""
    shown = [link for link in path.links if link.end_ns > link.start_ns]
    for before, after in pairwise(shown):
        yield before.task, before.end_ns - 1, after.arrival, after.start_ns
    for link in shown:
        if link.task != link.arrival:
            yield link.arrival, link.start_ns, link.task, link.start_ns


def _link(timeline: Timeline, link: Link, pid: int, origin: int) -> Iterator[dict[str, Any]]:
    graph = timeline.graph
    at = link.start_ns - link.delay_ns - link.idle_ns
    for label, time in before_work(link):
        if time:
            yield _slice(label, pid, 1, at - origin, time, {})
        at += time
    if link.end_ns > link.start_ns:
        processor = graph.processors[graph.processor[link.task]]
        about = {"class": link.label, "rank": processor.rank, "on": processor.name, "task": link.task}
        if link.cause is not None:
            about["behind"] = link.cause.word
        name = graph.names[graph.name[link.task]].encode("utf-8", "replace").decode()
        yield _slice(name, pid, 1, link.start_ns - origin, link.end_ns - link.start_ns, about)


def _slice(name: str, pid: int, tid: int, start: int, length: int, args: dict[str, Any]) -> dict[str, Any]:
    return {"ph": "X", "cat": CATEGORY, "name": name, "pid": pid, "tid": tid, "ts": start / 1000, "dur": length / 1000, "args": args}


def _arrow(
    timeline: Timeline, source: int, leaves: int, target: int, arrives: int, pids: Sequence[int], origin: int, number: int
) -> Iterator[dict[str, Any]]:
    """An arrow between two tasks. A viewer attaches each end to the task that runs at its time."""
    for phase, task, time in (({"ph": "s"}, source, leaves), ({"ph": "f", "bp": "e"}, target, arrives)):
        processor = int(timeline.graph.processor[task])
        inside = min(max(time, int(timeline.start[task])), int(timeline.end[task]))
        where = {"pid": pids[processor], "tid": processor, "ts": (inside - origin) / 1000}
        yield {**phase, "cat": CATEGORY, "name": CATEGORY, "id": number, **where}
