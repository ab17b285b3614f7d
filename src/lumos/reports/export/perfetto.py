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
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import msgspec
import numpy as np

from lumos.analyze.device_load import busy_curves, queue_steps
from lumos.analyze.loop.spans import launches
from lumos.analyze.loop.steps import Members, members, step_times
from lumos.errors import LumosError
from lumos.graph.table import Kind
from lumos.output_files import new_file
from lumos.reports.export.perfetto_path import path_events

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from lumos.analyze.critical_path import CriticalPath
    from lumos.simulation.timeline import Timeline

#: How many encoded events are written at a time.
_BLOCK = 4096
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
    for place, timeline in enumerate(timelines):
        yield from _names(timeline, place, len(timelines))
        yield from _tasks(timeline, place, len(timelines), origin)
        membership = members(timeline.graph)
        yield from _queues(timeline, membership, place, len(timelines), origin)
        yield from _busy(timeline, membership, place, len(timelines), origin)
        if place < len(paths):
            yield from _paths(timeline, paths[place], place, len(timelines), origin)


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


def _names(timeline: Timeline, place: int, places: int) -> Iterator[dict[str, Any]]:
    graph = timeline.graph
    for position, rank in enumerate(graph.ranks):
        pid = position * places + place
        yield _meta("process_name", pid, 0, name=f"rank {rank} {timeline.source}")
        yield _meta("process_sort_index", pid, 0, sort_index=pid)
    pids = _pids(timeline, place, places)
    for tid, processor in enumerate(graph.processors):
        yield _meta("thread_name", pids[tid], tid, name=processor.name)
        yield _meta("thread_sort_index", pids[tid], tid, sort_index=tid)


def _tasks(timeline: Timeline, place: int, places: int, origin: int) -> Iterator[dict[str, Any]]:
    graph = timeline.graph
    kinds, colours = [kind.name.lower() for kind in Kind], [_COLOURS[kind] for kind in Kind]
    names = {int(i): graph.names[int(i)].encode("utf-8", "replace").decode() for i in np.unique(graph.name)}
    pids = _pids(timeline, place, places)
    start, end = timeline.start - origin, timeline.end - origin
    shown = np.flatnonzero((end > start) | (graph.kind != Kind.RETURN))
    rows = (c[shown].tolist() for c in (graph.name, graph.kind, graph.processor, start, end))
    for task, name, kind, tid, begin, finish in zip(shown.tolist(), *rows, strict=True):
        yield {
            "ph": "X",
            "cat": kinds[kind],
            "cname": colours[kind],
            "name": names[name],
            "pid": pids[tid],
            "tid": tid,
            "ts": begin / 1000,
            "dur": (finish - begin) / 1000,
            "args": {"task": task},
        }
    launch = launches(graph)
    for task in np.flatnonzero(launch >= 0).tolist():
        call = int(launch[task])
        arrow = {"cat": "launch", "name": "launch", "id": task * places + place}
        tid = int(graph.processor[call])
        yield {"ph": "s", **arrow, "pid": pids[tid], "tid": tid, "ts": int(start[call]) / 1000}
        tid = int(graph.processor[task])
        yield {"ph": "f", "bp": "e", **arrow, "pid": pids[tid], "tid": tid, "ts": int(start[task]) / 1000}


def _queues(timeline: Timeline, membership: Members, place: int, places: int, origin: int) -> Iterator[dict[str, Any]]:
    for position in range(len(timeline.graph.ranks)):
        time, length = queue_steps(timeline, membership, position)
        for at, launches_outstanding in zip((time - origin).tolist(), length.tolist(), strict=True):
            yield _counter("launches outstanding", position * places + place, at, launches=launches_outstanding)


def _busy(timeline: Timeline, membership: Members, place: int, places: int, origin: int) -> Iterator[dict[str, Any]]:
    """The busy share of every bin (`busy_curves`) of every step. The last value of a step lasts until its end and is followed by 0."""
    start, end = step_times(timeline, membership).rank_intervals()
    (curves,) = busy_curves((timeline,), membership)
    for i, (curve, position) in enumerate(zip(curves.steps, membership.step_rank().tolist(), strict=True)):
        for k, share in enumerate([*curve.tolist(), 0.0]):
            at = min(int(start[i]) + k * curves.bin_ns, int(end[i])) - origin
            yield _counter("busy share", position * places + place, at, busy=round(share, 4))


def _counter(name: str, pid: int, at: int, **values: float) -> dict[str, Any]:
    return {"ph": "C", "name": name, "pid": pid, "tid": 0, "ts": at / 1000, "args": values}


def _paths(timeline: Timeline, paths: Sequence[CriticalPath], place: int, places: int, origin: int) -> Iterator[dict[str, Any]]:
    """The process with the tracks of the critical path, above those of the ranks."""
    pid = len(timeline.graph.ranks) * places + place
    yield _meta("process_name", pid, 0, name=f"critical path {timeline.source}")
    yield _meta("process_sort_index", pid, 0, sort_index=place - places)
    for tid, name in enumerate(("steps", "links")):
        yield _meta("thread_name", pid, tid, name=name)
        yield _meta("thread_sort_index", pid, tid, sort_index=tid)
    yield from path_events(timeline, paths, pid, _pids(timeline, place, places), origin, (place, places))


def _pids(timeline: Timeline, place: int, places: int) -> list[int]:
    position = {rank: i for i, rank in enumerate(timeline.graph.ranks)}
    return [position[p.rank] * places + place for p in timeline.graph.processors]


def _meta(kind: str, pid: int, tid: int, **args: Any) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": args}
