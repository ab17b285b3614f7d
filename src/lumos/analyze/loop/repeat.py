"""The steps of a job that count, repeated: the loop that a recording of a few steps is a part of.

A *pass* has these steps in their order, each with the pause that leads to it: the tasks of all ranks with their durations and dependencies.
A dependency on the step before the first becomes one on the corresponding task of the last step of the pass before, if both steps are of
one kind, else of the latest step before that which is; the corresponding task is the one on the same processor with the same name that is
as far from the end of its step. Without any, the dependency is left out and counted. Threads, streams, launch queues, waits of calls and
collectives go on from pass to pass as they do from step to step. The first pass starts with idle devices and an empty queue, so it is not
yet what the loop takes in the long run.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.analyze.loop.steps import Members, assigned, still_working
from lumos.graph.concatenate import task_copies
from lumos.graph.lists import Lists, Predecessors, list_of, offsets, ordinals, places
from lumos.simulation.durations import with_durations
from lumos.trace.table import unique

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lumos.graph.table import Graph, Step
    from lumos.trace.table import Int8, Int32, Int64

#: What the copies of steps are called; their numbers follow one another, so that each has a period.
COPY = "copy#"


@dataclass(frozen=True, slots=True, eq=False)
class Loop:
    """Steps of a job, repeated; n tasks. graph: the passes, one after the other. owners: its steps, one for each copy of a step and rank.

    source: int64[n], the task of the job's graph that each is a copy of. steps: how many steps a pass has. whole: how many passes, from the
    first and at least two, meet no later one that is not there. crossing: how many dependencies lead from the steps before a pass into it,
    and dropped: how many of those have no task that corresponds.
    """

    graph: Graph
    owners: Members
    source: Int64
    steps: int
    whole: int
    crossing: int = 0
    dropped: int = 0

    @property
    def passes(self) -> int:
        """How many passes there are, whole or not."""
        return len(self.owners.job) // self.steps

    def altered(self, job: Graph) -> Loop:
        """The loop of the same job with other durations and delays, and without what it leaves out. job: its graph, with the same tasks
        and dependencies. GraphError where a step then has no work."""
        graph = replace(with_durations(self.graph, job.duration[self.source]), lag=job.lag)
        if job.left_out is None:
            return replace(self, graph=graph, owners=replace(self.owners, graph=graph))
        left = replace(graph, left_out=job.left_out[self.source])
        return replace(self, graph=left, owners=still_working(self.owners, left))


def repeated(owners: Members, steps: Sequence[int], passes: int) -> Loop:
    """Steps of a job that follow one another, that many times. owners: of the job. steps: positions in `owners.job`, ascending."""
    return _Repeated(owners, steps).loop(passes)


class _Before(NamedTuple):
    """The predecessors of the tasks of a pass. offset: int64[m + 1]. task: int64, position in its pass. back: int64, how many passes
    before that is. kind: uint8. crossing, dropped: as in `Loop`."""

    offset: Int64
    task: Int64
    back: Int64
    kind: Int8
    crossing: int
    dropped: int


class _Repeated:
    """The tasks of some steps of a job, m over all ranks, and what they depend on.

    task: int64[m], their ids in the job's graph, ascending. place: int64[n], the position of each of the job's tasks among them, -1 for
    tasks of other steps.
    """

    def __init__(self, owners: Members, steps: Sequence[int]) -> None:
        self.owners, self.graph = owners, owners.graph
        self.steps = list(steps)
        self.task = np.sort(np.concatenate([owners.of_job(step) for step in self.steps]))
        self.place = np.full(len(self.graph), -1, np.int64)
        self.place[self.task] = np.arange(len(self.task))

    def loop(self, copies: int) -> Loop:
        """The loop of that many passes."""
        source = np.tile(self.task, copies)
        before, (rendezvous, apart) = self._before(), self._rendezvous(copies)
        out = task_copies(self.graph, source, self._edges(before, copies), rendezvous)
        owners = assigned(out, *self._owners(copies), self.owners)
        return Loop(out, owners, source, len(self.steps), max(copies - apart, 2), before.crossing, before.dropped)

    def _owners(self, copies: int) -> tuple[tuple[Step, ...], Int32]:
        """The steps of the loop, rank by rank, and for each of its tasks which of them owns it. Not every step has a part on every rank."""
        owners, number = self.owners, len(self.steps)
        pairs = [(i, part) for i, step in enumerate(self.steps) for part in owners.job[step].parts]
        steps: list[Step] = []
        first, of_rank = np.zeros((2, len(owners.steps)), np.int64)
        for rank in dict.fromkeys(owners.steps[part].rank for _, part in pairs):
            parts = [(i, part) for i, part in pairs if owners.steps[part].rank == rank]
            own = [part for _, part in parts]
            first[own], of_rank[own] = len(steps) + np.arange(len(own)), len(own)
            steps += [replace(owners.steps[p], name=f"{COPY}{k * number + i}") for k in range(copies) for i, p in parts]
        part = owners.step[self.task]
        return tuple(steps), (first[part] + np.arange(copies)[:, None] * of_rank[part]).reshape(-1).astype(np.int32)

    def _edges(self, one: _Before, copies: int) -> Predecessors:
        """The predecessors of all passes, of which each has those of `one`. What would lie before the first pass is left out."""
        m, edges = len(self.task), len(one.task)
        copy = np.repeat(np.arange(copies), edges)
        of = copy - np.tile(one.back, copies)
        before = (np.tile(one.task, copies) + of * m).astype(np.int32)
        exists = (of >= 0) & (of < copies)
        kinds = np.tile(one.kind, copies)
        if exists.all():
            whole = (one.offset[:-1] + np.arange(copies)[:, None] * edges).reshape(-1)
            return Predecessors(np.append(whole, edges * copies).astype(np.int64), before, kinds)
        after = np.repeat(np.arange(copies) * m, edges) + np.tile(list_of(one.offset), copies)
        return Predecessors(offsets(np.bincount(after[exists], minlength=m * copies)), before[exists], kinds[exists])

    def _before(self) -> _Before:
        """The predecessors of a pass, each as a task of a pass and a number of passes before."""
        graph = self.graph
        low = graph.pred_offset[self.task]
        size = graph.pred_offset[self.task + 1] - low
        edge = places(low, size)
        before = graph.pred[edge].astype(np.int64)
        task, back = self._of_pass(before)
        after = np.repeat(np.arange(len(self.task)), size)
        # A task cannot wait for one of a later step, nor for one of its own step that comes after it on its thread.
        kept = (task >= 0) & (back >= 0)
        position = self.owners.position[self.owners.step[before]]
        crosses = (position >= 0) & (position < self.steps[0])
        of_task = offsets(np.bincount(after[kept], minlength=len(self.task)))
        dropped = int((crosses & ~kept).sum())
        return _Before(of_task, task[kept], back[kept], graph.pred_kind[edge[kept]], int(crosses.sum()), dropped)

    def _of_pass(self, tasks: Int64) -> tuple[Int64, Int64]:
        """For any tasks of the job: the corresponding task of a pass, -1 where there is none, and how many passes it is before."""
        counterpart = self.place[tasks]
        back = np.zeros(len(tasks), np.int64)
        owner = self.owners.step[tasks]
        elsewhere = np.flatnonzero((counterpart < 0) & (self.owners.position[owner] >= 0))
        for other in unique(owner[elsewhere]).tolist():
            passes, mine = self._corresponding(other)
            if mine < 0:
                continue
            here = elsewhere[owner[elsewhere] == other]
            counterpart[here] = self._counterpart(other, mine, tasks[here])
            back[here] = passes
        return counterpart, back

    def _corresponding(self, other: int) -> tuple[int, int]:
        """How many passes before a pass the step of a rank is that corresponds to a step outside of it, and which; -1 for none."""
        owners, number = self.owners, len(self.steps)
        position = int(self.owners.position[other])
        passes, at = -((position - self.steps[0]) // number), (position - self.steps[0]) % number
        kinds = owners.kinds
        at = next((i for i in range(at, -1, -1) if kinds[self.steps[i]] == kinds[position]), -1)
        parts = owners.job[self.steps[at]].parts if at >= 0 else ()
        return passes, next((part for part in parts if owners.steps[part].rank == owners.steps[other].rank), -1)

    def _counterpart(self, other: int, mine: int, tasks: Int64) -> Int64:
        """Positions in a pass of the tasks of step `mine` that correspond to tasks of step `other` of the same rank; -1 without."""
        theirs, own = self.owners.tasks(other), self.owners.tasks(mine)
        key = self._from_end(own)
        order = np.argsort(key)
        wanted = self._from_end(theirs)[np.searchsorted(theirs, tasks)]
        at = order[np.minimum(np.searchsorted(key[order], wanted), len(own) - 1)]
        return np.where(key[at] == wanted, self.place[own[at]], -1)

    def _from_end(self, tasks: Int64) -> Int64:
        """What identifies tasks, in ascending id, within their step, as one number: processor, name, and how many of that name follow on
        the processor."""
        graph = self.graph
        processor, name = graph.processor[tasks].astype(np.int64), graph.name[tasks].astype(np.int64)
        follow = ordinals(name[::-1], processor[::-1])[::-1]
        return (processor * len(graph.names) + name) * len(graph) + follow

    def _rendezvous(self, copies: int) -> tuple[Lists, int]:
        """The rendezvous of all passes, and how many passes apart ranks meet at most."""
        graph, m = self.graph, len(self.task)
        sizes = np.diff(graph.rendezvous_offset)
        sets = list_of(graph.rendezvous_offset)
        chosen = np.zeros(len(sizes), bool)
        chosen[sets[self.place[graph.rendezvous_task] >= 0]] = True
        member = np.flatnonzero(chosen[sets])
        counterpart, back = self._of_pass(graph.rendezvous_task[member].astype(np.int64))
        of = sets[member]
        order = np.lexsort((counterpart, of))
        order = order[counterpart[order] >= 0]
        counterpart, back, of = counterpart[order], back[order], of[order]
        if not len(counterpart):
            return Lists(np.zeros(1, np.int64), counterpart), 0
        first = np.flatnonzero(np.concatenate(([True], of[1:] != of[:-1])))
        size = np.diff(np.append(first, len(of)))
        # Counted from the first member, so that the same meeting is the same wherever it was seen.
        back = back - np.repeat(back[first], size)
        apart = int((np.maximum.reduceat(back, first) - np.minimum.reduceat(back, first)).max())
        key = np.stack((counterpart, back), axis=1)
        distinct: dict[bytes, int] = {}
        for row, (low, count) in enumerate(zip(first.tolist(), size.tolist(), strict=True)):
            distinct.setdefault(key[low : low + count].tobytes(), row)
        rows = np.array(sorted(distinct.values()), np.int64)
        entries = places(first[rows], size[rows])
        counterpart, back, number = counterpart[entries], back[entries], np.repeat(np.arange(len(rows)), size[rows])
        copy = np.repeat(np.arange(copies), len(counterpart))
        at = copy - np.tile(back, copies)
        inside = (at >= 0) & (at < copies)
        meeting = copy * len(rows) + np.tile(number, copies)
        every = Lists(offsets(np.bincount(meeting[inside], minlength=copies * len(rows))), (np.tile(counterpart, copies) + at * m)[inside])
        return every, apart
