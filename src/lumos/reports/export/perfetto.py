"""Write timelines as one Chrome trace that ui.perfetto.dev opens.

The viewer shows each rank of each timeline as a process; those of one rank are neighbours, and threads and streams have the
same names in each. Each process also has two counters: the launches outstanding, and the share of each millisecond of a
step in which the devices work. The critical path of each timeline has tracks of its own above them. Times are µs with three
decimals, from the start of the earliest task of the first timeline.

A task names its colour (`cname`), one for each family of kinds, and chrome://tracing draws it so. ui.perfetto.dev takes no colours
from a file (github.com/google/perfetto/issues/208): it chooses them by the names of tasks, so that a kernel has one colour in all runs.
"""

from __future__ import annotations

import gzip
from itertools import pairwise
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple, TypeAlias

import msgspec
import numpy as np

from lumos.analyze.critical_path import CriticalPath, Link, before_work
from lumos.analyze.device_load import busy_curves, queue_steps
from lumos.analyze.loop.spans import launches
from lumos.analyze.loop.steps import members, step_times
from lumos.errors import LumosError
from lumos.graph.table import Kind
from lumos.output_files import new_file
from lumos.trace.table import unique

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from lumos.simulation.timeline import Timeline

#: How many encoded events are written at a time.
_BLOCK = 4096
#: Category of all events of the critical paths, so that a viewer can search for them.
CATEGORY = "critical path"
#: One end of an arrow: a task and a time, ns.
_End: TypeAlias = tuple[int, int]
#: The colour of each kind of task, by the names that the trace viewer of Catapult reserves (tracing/base/color_scheme.html): compute blue,
#: communication orange, copies olive, operators green, calls of the runtime pale blue, time between operators grey.
_COLOURS = {
    Kind.OPERATOR: "thread_state_running",
    Kind.HOST: "thread_state_sleeping",
    Kind.LAUNCH: "thread_state_runnable",
    Kind.RUNTIME: "thread_state_runnable",
    Kind.SYNC: "thread_state_runnable",
    Kind.RETURN: "thread_state_runnable",
    Kind.KERNEL: "rail_response",
    Kind.MEMCPY: "olive",
    Kind.MEMSET: "olive",
    Kind.COLLECTIVE: "bad",
}


def write_perfetto(path: str, timelines: Sequence[Timeline], paths: Sequence[Sequence[CriticalPath]] = ()) -> None:
    """Write the timelines of one graph to `path` (.json or .json.gz).

    paths: the critical paths of each timeline's steps, where they are to be shown.

    LumosError where the name has another ending or the file cannot be written.
    """
    if not path.endswith((".json", ".json.gz")):
        raise LumosError(f"{path}: a Perfetto trace is written as .json or .json.gz; give the file such a name")
    with new_file(path) as raw:
        if path.endswith(".gz"):
            with gzip.GzipFile(Path(path).name, "wb", compresslevel=5, fileobj=raw, mtime=0) as packed:
                _write(packed, timelines, paths)
        else:
            _write(raw, timelines, paths)


def events(timelines: Sequence[Timeline], paths: Sequence[Sequence[CriticalPath]] = ()) -> Iterator[dict[str, Any]]:
    """The events of the trace: names and order of processes and threads, then tasks, launch arrows, counters and paths."""
    origin = min((int(t.start.min()) for t in timelines[:1] if len(t.start)), default=0)
    for number, timeline in enumerate(timelines):
        run = _Run(timeline, number, len(timelines), origin)
        yield from run.names()
        yield from run.tasks()
        yield from run.counters()
        if number < len(paths):
            yield from run.paths(paths[number])


def _write(out: IO[bytes] | gzip.GzipFile, timelines: Sequence[Timeline], paths: Sequence[Sequence[CriticalPath]]) -> None:
    encoder = msgspec.json.Encoder()
    out.write(b'{"displayTimeUnit":"ns","traceEvents":[')
    block: list[bytes] = []
    first = True
    for event in events(timelines, paths):
        block.append(encoder.encode(event))
        if len(block) == _BLOCK:
            out.write((b"" if first else b",\n") + b",\n".join(block))
            first, block = False, []
    out.write((b"" if first or not block else b",\n") + b",\n".join(block) + b"]}\n")


class _Run(NamedTuple):
    """One of several timelines: the viewer shows those of a rank beside each other. place: of the timeline among `places`. origin: ns."""

    timeline: Timeline
    place: int
    places: int
    origin: int

    def process(self, position: int) -> int:
        """The number of the process of a rank, by the rank's position in the job; that behind all of them has the paths."""
        return position * self.places + self.place

    @property
    def pids(self) -> list[int]:
        """The process of each processor's tasks."""
        position = {rank: i for i, rank in enumerate(self.timeline.graph.ranks)}
        return [self.process(position[p.rank]) for p in self.timeline.graph.processors]

    def names(self) -> Iterator[dict[str, Any]]:
        """The names and the order of processes and threads."""
        graph = self.timeline.graph
        for position, rank in enumerate(graph.ranks):
            pid = self.process(position)
            yield from _named("process", pid, 0, f"rank {rank} {self.timeline.source}", pid)
        for (tid, processor), pid in zip(enumerate(graph.processors), self.pids, strict=True):
            yield from _named("thread", pid, tid, processor.name, tid)

    def tasks(self) -> Iterator[dict[str, Any]]:
        """The tasks, and the arrows from calls to what they launch."""
        graph, pids = self.timeline.graph, self.pids
        kinds, colours = [kind.name.lower() for kind in Kind], [_COLOURS[kind] for kind in Kind]
        names = {int(i): _plain(graph.names[int(i)]) for i in unique(graph.name)}
        start, end = self.timeline.start - self.origin, self.timeline.end - self.origin
        shown = np.flatnonzero((end > start) | (graph.kind != Kind.RETURN))
        rows = (c[shown].tolist() for c in (graph.name, graph.kind, graph.processor, start, end))
        for task, name, kind, tid, begin, finish in zip(shown.tolist(), *rows, strict=True):
            looks = {"cat": kinds[kind], "cname": colours[kind], "name": names[name]}
            times = {"ts": begin / 1000, "dur": (finish - begin) / 1000}
            yield {"ph": "X", **looks, "pid": pids[tid], "tid": tid, **times, "args": {"task": task}}
        launch = launches(graph)
        for task in np.flatnonzero(launch >= 0).tolist():
            call = int(launch[task])
            about = {"cat": "launch", "name": "launch", "id": self.process(task)}
            yield from self._arrow(about, (call, int(start[call])), (task, int(start[task])), pids)

    def _arrow(self, about: dict[str, Any], leaves: _End, arrives: _End, pids: Sequence[int]) -> Iterator[dict[str, Any]]:
        """An arrow between two tasks, each end with its time from the origin, ns."""
        for phase, (task, at) in (({"ph": "s"}, leaves), ({"ph": "f", "bp": "e"}, arrives)):
            tid = int(self.timeline.graph.processor[task])
            yield {**phase, **about, "pid": pids[tid], "tid": tid, "ts": at / 1000}

    def counters(self) -> Iterator[dict[str, Any]]:
        """The launches outstanding, and the busy share of every bin (`busy_curves`) of every step. The last value of a step lasts until its
        end and is followed by 0."""
        membership = members(self.timeline.graph)
        for position in range(len(self.timeline.graph.ranks)):
            time, length = queue_steps(self.timeline, membership, position)
            for at, outstanding in zip(time.tolist(), length.tolist(), strict=True):
                yield self._counter("launches outstanding", position, at, launches=outstanding)
        start, end = step_times(self.timeline, membership).rank_intervals()
        (curves,) = busy_curves((self.timeline,), membership)
        for i, (curve, position) in enumerate(zip(curves.steps, membership.step_rank().tolist(), strict=True)):
            for k, share in enumerate([*curve.tolist(), 0.0]):
                at = min(int(start[i]) + k * curves.bin_ns, int(end[i]))
                yield self._counter("busy share", position, at, busy=round(share, 4))

    def _counter(self, name: str, position: int, at: int, **values: float) -> dict[str, Any]:
        return {"ph": "C", "name": name, "pid": self.process(position), "tid": 0, "ts": (at - self.origin) / 1000, "args": values}

    def paths(self, paths: Sequence[CriticalPath]) -> Iterator[dict[str, Any]]:
        """The tracks of the critical paths above those of the ranks, and arrows from link to link across the tracks of the ranks. A step is
        shown for the time of its path: its period or its latency."""
        pid, pids = self.process(len(self.timeline.graph.ranks)), self.pids
        yield from _named("process", pid, 0, f"critical path {self.timeline.source}", self.place - self.places)
        for tid, name in enumerate(("steps", "links")):
            yield from _named("thread", pid, tid, name, tid)
        for path in paths:
            yield self._slice(path.name, pid, 0, path.start_ns, path.duration_ns, {"basis": path.basis, "counts": path.counts})
            for link in path.links:
                yield from self._link(link, pid)
        for number, (leaves, arrives) in enumerate(arrow for path in paths for arrow in _arrows(path)):
            about = {"cat": CATEGORY, "name": CATEGORY, "id": self.process(number)}
            yield from self._arrow(about, self._inside(*leaves), self._inside(*arrives), pids)

    def _inside(self, task: int, at: int) -> _End:
        """The end of an arrow, at the time nearest to `at` at which the task runs: a viewer attaches it to what runs then."""
        return task, min(max(at, int(self.timeline.start[task])), int(self.timeline.end[task])) - self.origin

    def _link(self, link: Link, pid: int) -> Iterator[dict[str, Any]]:
        graph = self.timeline.graph
        at = link.start_ns - link.delay_ns - link.idle_ns
        for label, time in before_work(link):
            if time:
                yield self._slice(label, pid, 1, at, time, {})
            at += time
        if link.end_ns > link.start_ns:
            processor = graph.processors[graph.processor[link.task]]
            about = {"class": link.label, "rank": processor.rank, "on": processor.name, "task": link.task}
            if link.cause is not None:
                about["behind"] = link.cause.word
            name = _plain(graph.names[graph.name[link.task]])
            yield self._slice(name, pid, 1, link.start_ns, link.end_ns - link.start_ns, about)

    def _slice(self, name: str, pid: int, tid: int, start: int, length: int, args: dict[str, Any]) -> dict[str, Any]:
        times = {"ts": (start - self.origin) / 1000, "dur": length / 1000}
        return {"ph": "X", "cat": CATEGORY, "name": name, "pid": pid, "tid": tid, **times, "args": args}


def _arrows(path: CriticalPath) -> Iterator[tuple[_End, _End]]:
    """The ends of each arrow: from link to link, and within a rendezvous from the last to arrive."""
    shown = [link for link in path.links if link.end_ns > link.start_ns]
    for before, after in pairwise(shown):
        yield (before.task, before.end_ns - 1), (after.arrival, after.start_ns)
    for link in shown:
        if link.task != link.arrival:
            yield (link.arrival, link.start_ns), (link.task, link.start_ns)


def _named(what: str, pid: int, tid: int, name: str, order: int) -> Iterator[dict[str, Any]]:
    """The name of a process or a thread, and its place among the others."""
    for kind, args in (("name", {"name": name}), ("sort_index", {"sort_index": order})):
        yield {"ph": "M", "name": f"{what}_{kind}", "pid": pid, "tid": tid, "args": args}


def _plain(name: str) -> str:
    return name.encode("utf-8", "replace").decode()
