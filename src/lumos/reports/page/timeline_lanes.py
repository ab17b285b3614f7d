"""The lanes of a timeline: one for each thread and stream or, in a job of many ranks, two for most of its ranks.

A page cannot hold the tasks of a thousand ranks, but most of them do the same. So where there are too many threads and streams, one rank
of each kind is drawn with all of its own, and every other rank has one lane for all CPU and one for all device work.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.trace.table import unique

if TYPE_CHECKING:
    from collections.abc import Container, Mapping, Sequence

    from lumos.graph.table import Graph
    from lumos.trace.table import Int8, Int32

#: The largest share of the cells in which ranks that are alike may differ, and what is a difference in how busy a cell is, of 255.
DIFFERENT_CELLS, DIFFERENT_BUSY = 0.1, 64
#: The class of a cell in which nothing ran.
NO_CLASS = 255
#: Where there are more threads and streams than this, most ranks have two lanes; ranks that are drawn whole have at most so many together.
MOST_LANES = 96


class TimelineLane(NamedTuple):
    """One row of the drawing. kind: "thread" or "stream"; "cpu" or "device" for all threads or all streams of a rank."""

    rank: int
    kind: str
    name: str

    @property
    def is_single(self) -> bool:
        """Whether the lane shows one thread or stream. The tasks of several would cover each other."""
        return self.kind in ("thread", "stream")


def lanes_of(graph: Graph, whole: Container[int] = ()) -> tuple[tuple[TimelineLane, ...], Int32]:
    """The lanes, by rank, CPU before device, and the lane of each processor, int32[processors].

    whole: the ranks whose every thread and stream has a lane of its own, also where there are more than MOST_LANES of them in the job.
    """
    order = sorted(_used(graph), key=lambda i: (graph.processors[i].rank, graph.processors[i].is_stream, i))
    lane_of = np.zeros(len(graph.processors), np.int32)
    number: dict[TimelineLane | int, int] = {}
    lanes: list[TimelineLane] = []
    for i in order:
        p = graph.processors[i]
        if len(order) <= MOST_LANES or p.rank in whole:
            lane, key = TimelineLane(p.rank, "stream" if p.is_stream else "thread", p.name), i
        else:
            lane = key = TimelineLane(p.rank, "device" if p.is_stream else "cpu", "device" if p.is_stream else "CPU")  # type: ignore[assignment]
        if key not in number:
            number[key] = len(lanes)
            lanes.append(lane)
        lane_of[i] = number[key]
    return tuple(lanes), lane_of


def one_of_each_kind(graph: Graph, groups: Sequence[Sequence[int]], tasks: Mapping[int, int], most_tasks: int) -> frozenset[int]:
    """The first rank of each group of ranks that are alike, of the largest groups first, as far as there is room for them.

    tasks: of each rank, how many of its tasks would be drawn. The ranks have at most MOST_LANES threads and streams together, and at most
    `most_tasks` tasks. A rank for which no room is left is passed over.
    """
    lanes: dict[int, int] = {}
    for i in _used(graph):
        rank = graph.processors[i].rank
        lanes[rank] = lanes.get(rank, 0) + 1
    chosen, lanes_left, tasks_left = set(), MOST_LANES, most_tasks
    for rank, *_ in sorted(groups, key=len, reverse=True):
        if lanes[rank] <= lanes_left and tasks.get(rank, 0) <= tasks_left:
            chosen.add(rank)
            lanes_left, tasks_left = lanes_left - lanes[rank], tasks_left - tasks.get(rank, 0)
    return frozenset(chosen)


def _used(graph: Graph) -> list[int]:
    """The processors that have a task."""
    used: list[int] = unique(graph.processor).tolist()
    return used


def ranks_alike(lanes: Sequence[tuple[int, str]], label: Int8, busy: Int8) -> list[list[int]]:
    """The ranks in groups that are alike, by the first rank of each; a rank joins the first group whose first rank it is like.

    lanes: the rank and the kind of each lane, by rank. label, busy: uint8[lanes, bins], the coarsest level of a drawing.
    """
    rows: dict[int, list[int]] = {}
    for number, (rank, _) in enumerate(lanes):
        rows.setdefault(rank, []).append(number)
    groups: dict[tuple[str, ...], list[list[int]]] = {}
    for rank, own in rows.items():
        known = groups.setdefault(tuple(lanes[i][1] for i in own), [])
        for group in known:
            first = rows[group[0]]
            by_much = np.abs(busy[first].astype(np.int16) - busy[own].astype(np.int16)) > DIFFERENT_BUSY
            used = (label[own] != NO_CLASS) | (label[first] != NO_CLASS)
            if ((label[first] != label[own]) | by_much).sum() <= DIFFERENT_CELLS * used.sum():
                group.append(rank)
                break
        else:
            known.append([rank])
    return sorted((group for known in groups.values() for group in known), key=lambda group: group[0])
