"""The timeline of a step in a form that can be drawn at any zoom: levels of aggregation, and the tasks where they are few.

It shows the time that the loop takes for the step, and everything that runs in that time, also work of the steps before and after.

A lane is a thread or a stream, or all threads or all streams of a rank (`reports.page.timeline_lanes`). A level divides the step into
bins of equal width. A cell (lane, bin) has the class of work that took most of it and the share of it that was busy. A bin is as wide as
four of the next finer level, and the browser draws the level whose bins are about a pixel wide. The time in which a collective waits for
its last rank is a class of its own.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from lumos.analyze.collectives import waiting
from lumos.analyze.loop.steps import Members, step_times
from lumos.analyze.ranks.equal_work import equal_work
from lumos.errors import GraphError
from lumos.graph.table import Graph, Kind
from lumos.reports.page.html import column, differences
from lumos.reports.page.task_columns import LINK_WORDS, Enclosing, TaskFacts, link_columns, task_links
from lumos.reports.page.timeline_lanes import NO_CLASS, lanes_of, one_of_each_kind, ranks_alike
from lumos.reports.text.format import kernel_name
from lumos.result import cut
from lumos.trace.table import unique

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from lumos.analyze.critical_path import CriticalPath
    from lumos.analyze.ranks.equal_work import EqualWork
    from lumos.reports.page.timeline_lanes import TimelineLane
    from lumos.simulation.freeze import Frozen
    from lumos.simulation.timeline import Timeline
    from lumos.trace.table import Int8, Int32, Int64, Job

#: How many bins the finest level may have, the most first; and how many the coarsest has.
BINS = (16384, 4096, 1024, 256)
_COARSEST = 256
#: Longer names are cut.
LONGEST_NAME = 160
#: The class of time in which a collective waits for its last rank.
_WAITING = "waiting"


@dataclass(frozen=True, slots=True)
class Limits:
    """The most cells of the finest level, and the most tasks of all its runs, that a drawing may contain (tasks 0: only levels). A task
    takes some 4 bytes of a file."""

    cells: int = 1_500_000
    tasks: int = 1_000_000


class TimelineLevel(NamedTuple):
    """label: uint8[lanes, bins], the class that took most of each cell, or NOTHING. busy: uint8[lanes, bins], the busy share
    of the cell from 0 to 255; 255 also where several processors of a lane are busy for longer than the bin together."""

    bins: int
    bin_ns: int
    label: Int8
    busy: Int8


class Pieces(NamedTuple):
    """What ran in the window, by lane and start; ns from the start of the window. A collective that waits is two pieces:
    waiting, then transfer."""

    lane: Int32
    start: Int64
    end: Int64
    label: Int32
    task: Int64


class TimelineWindow(NamedTuple):
    """The time of a step of the job: its name, where it begins, and its length, ns."""

    name: str
    start: int
    length: int


def window_of(timeline: Timeline, membership: Members, name: str) -> TimelineWindow:
    """The time of the step of that name: from the completion of the step before to its own or, where its time is a latency, from its
    first start. GraphError where there is no such step."""
    known = step_times(timeline, membership).job
    for time in known:
        if time.name == name:
            return TimelineWindow(name, time.since_ns, time.length_ns)
    raise GraphError(f"no step {name!r}; the job has {', '.join(time.name for time in known)}")


def pieces(timeline: Timeline, window: TimelineWindow, lane_of: Int32, label: Int64, waiting_label: int) -> Pieces:
    """All tasks that run in the window; what lies outside it is cut off. label: int[n], the class of each task."""
    graph = timeline.graph
    began = waiting(timeline).began
    first, last = window.start, window.start + window.length
    shown = np.flatnonzero((timeline.end > first) & (timeline.start < last) & (timeline.end > timeline.start))
    shown = shown[graph.kind[shown] != Kind.RETURN]
    waits = shown[began[shown] > timeline.start[shown]]
    task = np.concatenate((shown, waits))
    start = np.concatenate((began[shown], timeline.start[waits]))
    end = np.concatenate((timeline.end[shown], began[waits]))
    labels = np.concatenate((label[shown], np.full(len(waits), waiting_label)))
    start, end = np.maximum(start, first) - first, np.minimum(end, last) - first
    lane = lane_of[graph.processor[task]]
    order = np.lexsort((end, start, lane))
    order = order[end[order] > start[order]]
    return Pieces(lane[order], start[order], end[order], labels[order].astype(np.int32), task[order])


def levels(shown: Pieces, lanes: int, labels: int, length: int, most_cells: int) -> tuple[TimelineLevel, ...]:
    """The levels of a window of `length` ns, the finest first. most_cells: the most lanes × bins of the finest level."""
    bins = next((b for b in BINS if lanes * b <= most_cells), BINS[-1])
    bin_ns = max(-(-length // bins), 1)
    widths = [bins]
    while widths[-1] > _COARSEST:
        widths.append(widths[-1] // 4)
    out = [TimelineLevel(b, bin_ns * (bins // b), *(np.empty((lanes, b), np.uint8) for _ in range(2))) for b in widths]
    offset = np.searchsorted(shown.lane, np.arange(lanes + 1))
    for lane in range(lanes):
        here = slice(offset[lane], offset[lane + 1])
        time = _binned(shown.start[here], shown.end[here], shown.label[here], bins, bin_ns, labels)
        for level in out:
            time = time.reshape(level.bins, -1, labels).sum(axis=1)
            total = time.sum(axis=1)
            level.label[lane] = np.where(total > 0, time.argmax(axis=1), NO_CLASS)
            level.busy[lane] = np.ceil(np.minimum(total / level.bin_ns, 1) * 255)
    return tuple(out)


def _binned(start: Int64, end: Int64, label: Int32, bins: int, bin_ns: int, labels: int) -> NDArray[np.float64]:
    """The time of each class in each bin, float64[bins, labels] ns (exact, because they are whole numbers below 2^53)."""
    first, last = start // bin_ns, (end - 1) // bin_ns
    number = last - first + 1
    piece = np.repeat(np.arange(len(start)), number)
    at = np.arange(len(piece)) - np.repeat(np.cumsum(number) - number, number) + first[piece]
    time = np.minimum(end[piece], (at + 1) * bin_ns) - np.maximum(start[piece], at * bin_ns)
    return np.bincount(at * labels + label[piece], time.astype(np.float64), bins * labels).astype(np.float64).reshape(bins, labels)


def drawing(
    timelines: dict[str, Timeline],
    membership: Members,
    step: str,
    paths: dict[str, CriticalPath],
    job: Job | None = None,
    limits: Limits = Limits(),
    *,
    frozen: Frozen | None = None,
    classes: EqualWork | None = None,
) -> dict[str, Any]:
    """One step of each run, in values that JSON can hold. timelines: by the name of the run ("measured", "replayed", …); a replay is left
    out where it looks like the measurement. paths: the critical path of the step by run. frozen: of the runs' graph, for what each task
    waited for. classes: of `equal_work`, where they are known already."""
    graph = next(iter(timelines.values())).graph
    classes = classes or equal_work(graph, membership, job)
    labels = (*classes.labels, _WAITING)
    windows = {source: window_of(timeline, membership, step) for source, timeline in timelines.items()}
    lanes, lane_of, groups, shown = _layout(timelines, windows, classes.label, len(labels), limits.tasks)
    single = np.array([lane.is_single for lane in lanes], bool)
    both = [(timelines[source], windows[source], shown[source]) for source in ("measured", "replayed") if source in timelines]
    if len(both) > 1 and _look_alike(both):
        del shown["replayed"]
    told = {source: _picked(of_run, np.flatnonzero(single[of_run.lane])) for source, of_run in shown.items()}
    room = np.cumsum([len(of_run.task) for of_run in told.values()]) <= limits.tasks
    whole = {source for source, fits in zip(told, room.tolist(), strict=True) if fits and single.any()}
    runs, names, facts = [], _Names(graph), TaskFacts(graph, job)
    around = Enclosing(graph, job if whole else None, np.concatenate([of_run.task for of_run in told.values()]))
    for source, here in shown.items():
        timeline, drawn, window = timelines[source], told[source], windows[source]
        cells = [_encoded(level) for level in levels(here, len(lanes), len(labels), window.length, limits.cells)]
        tasks = _tasks(drawn, names, len(lanes), around) if source in whole else None
        if tasks is not None and frozen is not None:
            links = task_links(timeline, frozen, drawn.task)
            tasks |= {"facts": column(facts.of(drawn.task)), "links": link_columns(links, len(drawn.task))}
        path = _path(paths[source], window, lane_of[graph.processor]) if source in paths else None
        runs.append({"source": source, "length_ns": window.length, "pieces": len(here.task), "levels": cells, "tasks": tasks, "path": path})
    around_columns = around.columns(names.numbers) if whole else None
    said = {"facts": facts.used, "link_words": LINK_WORDS, "groups": groups, "around": around_columns}
    return {"step": step, "lanes": [lane._asdict() for lane in lanes], "labels": labels, "names": names.used, **said, "runs": runs}


def _look_alike(runs: Sequence[tuple[Timeline, TimelineWindow, Pieces]]) -> bool:
    """Whether runs look the same: no piece begins or ends further from its place in the first than the finest bin is wide."""
    tasks = unique(*(drawn.task for *_, drawn in runs))
    places = [np.stack((run.start[tasks], run.end[tasks])) - window.start for run, window, _ in runs]
    return bool(np.ptp(places, axis=0).max(initial=0) <= runs[0][1].length / BINS[0])


class _Layout(NamedTuple):
    """The lanes of a drawing, the lane of each processor, the ranks that look alike, and the pieces of each run on the lanes."""

    lanes: tuple[TimelineLane, ...]
    lane_of: Int32
    groups: list[list[int]]
    shown: dict[str, Pieces]


def _layout(timelines: dict[str, Timeline], windows: dict[str, TimelineWindow], label: Int64, labels: int, most_tasks: int) -> _Layout:
    """The layout of the runs: every thread and stream, or only those of one rank of each kind. label: int[n], the class of each task, and
    labels: how many there are, the last for waiting."""
    graph = next(iter(timelines.values())).graph
    lanes, lane_of = lanes_of(graph)
    shown = {source: pieces(timeline, windows[source], lane_of, label, labels - 1) for source, timeline in timelines.items()}
    first = next(iter(timelines))
    (coarsest,) = levels(shown[first], len(lanes), labels, windows[first].length, most_cells=0)
    groups = ranks_alike([(lane.rank, lane.kind) for lane in lanes], coarsest.label, coarsest.busy)
    if not all(lane.is_single for lane in lanes):
        lanes, lane_of = lanes_of(graph, one_of_each_kind(graph, groups, _most_pieces(graph, shown.values()), most_tasks))
        shown = {source: drawn._replace(lane=lane_of[graph.processor[drawn.task]]) for source, drawn in shown.items()}
        shown = {source: _picked(drawn, np.lexsort((drawn.end, drawn.start, drawn.lane))) for source, drawn in shown.items()}
    return _Layout(lanes, lane_of, groups, shown)


def _most_pieces(graph: Graph, runs: Iterable[Pieces]) -> Counter[int]:
    """How many pieces each rank has in the run in which it has most."""
    most: Counter[int] = Counter()
    for shown in runs:
        ranks, number = np.unique(graph.rank_of_task[shown.task], return_counts=True)
        most |= Counter(dict(zip(ranks.tolist(), number.tolist(), strict=True)))
    return most


def _picked(shown: Pieces, rows: Int64) -> Pieces:
    return Pieces(shown.lane[rows], shown.start[rows], shown.end[rows], shown.label[rows], shown.task[rows])


def _encoded(level: TimelineLevel) -> dict[str, Any]:
    cells = {"label": column(level.label.reshape(-1)), "busy": column(level.busy.reshape(-1))}
    return {"bins": level.bins, "bin_ns": level.bin_ns, **cells}


class _Names:
    """The names in use, numbered in the order in which they are first used."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._number: dict[str, int] = {}

    @property
    def used(self) -> list[str]:
        return list(self._number)

    def of(self, tasks: Int64) -> Int64:
        """The number of the name of each task, int64[tasks]."""
        names, inverse = np.unique(self._graph.name[tasks], return_inverse=True)
        return self.numbers([self._graph.names[i] for i in names.tolist()])[inverse]

    def numbers(self, names: Sequence[str]) -> Int64:
        """The number of each of some names, int64[names]."""
        return np.array([self._number.setdefault(name, len(self._number)) for name in map(_shown, names)], np.int64)


def _shown(name: str) -> str:
    return cut(kernel_name(name).encode("utf-8", "replace").decode(), LONGEST_NAME)


def _tasks(shown: Pieces, names: _Names, lanes: int, around: Enclosing) -> dict[str, Any]:
    """Pieces as columns. A start is the pause since the end of the piece before it on the lane, because pauses are mostly none."""
    offset = np.searchsorted(shown.lane, np.arange(lanes + 1))
    before = np.concatenate(([0], shown.end[:-1])) if len(shown.end) else shown.end
    before[offset[:-1][offset[:-1] < len(before)]] = 0
    return {
        "offset": differences(offset),
        "pause": column(shown.start - before),
        "duration": column(shown.end - shown.start),
        "label": column(shown.label),
        "name": column(names.of(shown.task)),
        "task": differences(shown.task),
        "around": differences(around.of(shown.task)),
    }


def _path(path: CriticalPath, window: TimelineWindow, lane_of: Int32) -> dict[str, Any]:
    """The work of the critical path by start; links that follow each other on one lane are joined."""
    lane = np.array([lane_of[link.task] for link in path.links], np.int32)
    start = np.array([link.start_ns for link in path.links], np.int64) - window.start
    end = np.array([link.end_ns for link in path.links], np.int64) - window.start
    if not len(lane):
        return {"lane": column(lane), "start": differences(start), "duration": column(end)}
    new = np.ones(len(lane), bool)
    new[1:] = (lane[1:] != lane[:-1]) | (start[1:] > end[:-1])
    first = np.flatnonzero(new)
    last = np.append(first[1:], len(lane)) - 1
    start, end = np.maximum(start[first], 0), np.minimum(end[last], window.length)
    keep = end > start
    return {"lane": column(lane[first][keep]), "start": differences(start[keep]), "duration": column((end - start)[keep])}
