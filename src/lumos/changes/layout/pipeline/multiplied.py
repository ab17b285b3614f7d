"""A layout whose ranks are copies of recorded ones: several of one, and of another none.

The stages of a pipeline are made of such copies: each then leaves out what the other stages do (`recut`). A copy is of one or
more recorded ranks together, which meet each other in it as they did in the recording, and not the ranks of other copies. A new rank has
its position as its number.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from lumos.analyze.loop.steps import members
from lumos.graph.lists import end_to_end, list_of, offsets
from lumos.graph.table import Collectives, Graph, Occupancy, Waits

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from lumos.changes.layout.measured_layout import MeasuredLayout
    from lumos.graph.table import Processor
    from lumos.segment.segment import Segmentation
    from lumos.trace.table import Int8, Int32, Int64


def of_ranks(layout: MeasuredLayout, copies: Sequence[Sequence[int]]) -> MeasuredLayout:
    """The layout of copies of ranks, one copy after the other. copies: for each the positions of its ranks."""
    made = _Copies(layout.segmentation, copies)
    ranks = tuple(
        tuple(
            replace(i, piece=int(piece[i.piece]), thread_of=int(piece[i.thread_of]) if i.thread_of >= 0 else -1) for i in layout.ranks[rank]
        )
        for piece, group in zip(made.piece, copies, strict=True)
        for rank in group
    )
    return replace(
        layout,
        segmentation=made.segmentation(),
        ranks=ranks,
        prices=layout.prices.of(made.taken),
        modelled=made.all_of(layout.modelled),
        once=made.all_of(layout.once),
        last=made.all_of(layout.last),
        dropped=made.all_of(layout.dropped),
        awaited=tuple(
            (int(task[a]), int(task[b])) for task in made.task for a, b in layout.awaited if min(int(task[a]), int(task[b])) >= 0
        ),
        origin=made.taken if layout.origin is None else layout.origin[made.taken],
        recorded=tuple(layout.recorded[rank] if layout.recorded else rank for rank in made.ranks),
    )


class _Copies:
    """Where everything of a segmented graph is in its copies.

    ranks: for each new rank the position of the recorded one. taken: for each new task the recorded one. task, processor, piece: for each
    copy the new number by the recorded one, -1 where the copy has none of it.
    """

    def __init__(self, segmentation: Segmentation, copies: Sequence[Sequence[int]]) -> None:
        self.s, self.graph = segmentation, segmentation.graph
        self.copies = [list(group) for group in copies]
        self.ranks = [rank for group in self.copies for rank in group]
        place = {rank: i for i, rank in enumerate(self.graph.ranks)}
        of_processor = np.array([place[p.rank] for p in self.graph.processors], np.int64)
        self.task = _numbered(of_processor[self.graph.processor], self.copies)
        self.processor = _numbered(of_processor, self.copies)
        self.piece = _numbered(np.array([p.rank for p in segmentation.pieces], np.int64), self.copies)
        self.taken: Int64 = np.concatenate([np.flatnonzero(task >= 0) for task in self.task])

    def all_of(self, tasks: frozenset[int]) -> frozenset[int]:
        """All copies of tasks."""
        return frozenset(int(task[t]) for task in self.task for t in tasks if task[t] >= 0)

    def segmentation(self) -> Segmentation:
        """The copies as a segmented graph."""
        s, first, pieces = self.s, 0, []
        for group in self.copies:
            number = {rank: first + i for i, rank in enumerate(group)}
            pieces += [replace(p, rank=number[p.rank]) for p in s.pieces if p.rank in number]
            first += len(group)
        return replace(
            s,
            owners=members(self._graph()),
            pieces=tuple(pieces),
            piece=self._mapped(s.piece, self.piece),
            units=tuple(s.units[rank] for rank in self.ranks),
            unit_labels=tuple(s.unit_labels[rank] for rank in self.ranks),
            unit=s.unit[self.taken],
        )

    def _graph(self) -> Graph:
        graph, taken = self.graph, self.taken
        old = [graph.ranks[rank] for rank in self.ranks]
        pred_offset, pred, pred_kind = self._predecessors()
        release, of_release = self._tasks(graph.release_task)
        waited, of_waited = self._tasks(graph.unclaimed_wait_task)
        met = end_to_end(list(self._met()))
        ranks = self.ranks
        return replace(
            graph,
            ranks=tuple(range(len(self.ranks))),
            processors=tuple(self._processors()),
            duration=graph.duration[taken],
            processor=self._mapped(graph.processor, self.processor),
            kind=graph.kind[taken],
            name=graph.name[taken],
            event=graph.event[taken],
            pred_offset=pred_offset,
            pred=pred,
            pred_kind=pred_kind,
            lag=graph.lag[ranks],
            gap_range=None if graph.gap_range is None else graph.gap_range[ranks],
            queue_depth=None if graph.queue_depth is None else graph.queue_depth[ranks],
            release_task=release,
            release_time=graph.release_time[of_release],
            rendezvous_offset=met.offset,
            rendezvous_task=met.flat.astype(np.int32),
            waits=self._waits(),
            occupancy=self._occupancy(),
            collectives=self._collectives(),
            measured_start=None if graph.measured_start is None else graph.measured_start[taken],
            measured_end=None if graph.measured_end is None else graph.measured_end[taken],
            unclaimed_wait_task=waited,
            unclaimed_wait_time=graph.unclaimed_wait_time[of_waited],
            one_off=None,
            waiting_unknown=self._tasks(graph.waiting_unknown)[0],
            steps=tuple(replace(step, rank=i) for i, rank in enumerate(old) for step in graph.steps if step.rank == rank),
        )

    def _processors(self) -> Iterator[Processor]:
        first = 0
        for group, processor in zip(self.copies, self.processor, strict=True):
            number = {self.graph.ranks[rank]: first + i for i, rank in enumerate(group)}
            yield from (
                replace(self.graph.processors[p], rank=number[self.graph.processors[p].rank]) for p in np.flatnonzero(processor >= 0)
            )
            first += len(group)

    def _mapped(self, column: Int32, numbers: list[Int64]) -> Int32:
        """A column of each task in numbers that the copies changed."""
        return np.concatenate([number[column[task >= 0]] for number, task in zip(numbers, self.task, strict=True)]).astype(np.int32)

    def _tasks(self, tasks: Int32) -> tuple[Int32, Int64]:
        """All copies of listed tasks, and of which place in the list each is."""
        rows = [np.flatnonzero(task[tasks] >= 0) for task in self.task]
        new = [task[tasks[row]] for task, row in zip(self.task, rows, strict=True)]
        return np.concatenate(new).astype(np.int32), np.concatenate(rows)

    def _predecessors(self) -> tuple[Int64, Int32, Int8]:
        after = list_of(self.graph.pred_offset)
        rows = [np.flatnonzero((task[after] >= 0) & (task[self.graph.pred] >= 0)) for task in self.task]
        waiting, awaited = (
            np.concatenate([task[column[row]] for task, row in zip(self.task, rows, strict=True)]) for column in (after, self.graph.pred)
        )
        kinds = self.graph.pred_kind[np.concatenate(rows)]
        return offsets(np.bincount(waiting, minlength=len(self.taken))), awaited.astype(np.int32), kinds

    def _met(self) -> Iterator[list[int]]:
        """The sets of tasks that transfer together within each copy."""
        edges = self.graph.rendezvous_offset.tolist()
        for task in self.task:
            new = task[self.graph.rendezvous_task]
            for low, high in pairwise(edges):
                members = [t for t in new[low:high].tolist() if t >= 0]
                if len(members) > 1:
                    yield members

    def _waits(self) -> Waits | None:
        waits = self.graph.waits
        if waits is None:
            return None
        target = [
            np.where(waits.target >= 0, number[waits.target], -1)[task[waits.task] >= 0]
            for number, task in zip(self.processor, self.task, strict=True)
        ]
        return Waits(self._tasks(waits.task)[0], np.concatenate(target).astype(waits.target.dtype))

    def _occupancy(self) -> Occupancy | None:
        held = self.graph.occupancy
        if held is None:
            return None
        tasks, row = self._tasks(held.task)
        return Occupancy(tasks, held.share[row], held.hold[row])

    def _collectives(self) -> Collectives | None:
        facts = self.graph.collectives
        if facts is None:
            return None
        tasks, row = self._tasks(facts.task)
        columns = {name: getattr(facts, name)[row] for name in ("kind", "nbytes", "group", "sequence", "peer")}
        return replace(facts, task=tasks, size=None if facts.size is None else facts.size[row], **columns)


def _numbered(rank: Int64, copies: list[list[int]]) -> list[Int64]:
    """For each copy the new numbers of things by their own, -1 for those of ranks that it does not have. rank: of each."""
    out, first = [], 0
    for group in copies:
        inside = np.flatnonzero(np.isin(rank, group))
        number = np.full(len(rank), -1, np.int64)
        number[inside] = first + np.arange(len(inside))
        first += len(inside)
        out.append(number)
    return out
