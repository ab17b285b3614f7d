"""One step of a job, repeated: the loop that a recording of a few steps is a part of.

Each copy of the step has the step's tasks of all ranks, with their durations and dependencies. A dependency on a task of another step
becomes one on the corresponding task of the copy that is as many steps away: the task on the same processor with the same name that is
as far from the end of its step. Threads, streams, launch queues, waits of calls and collectives go on from copy to copy as they do from
step to step. The first copies start with idle devices and an empty queue, so they are not yet what the loop takes in the long run.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from lumos.analyze.loop.steps import Members, assigned
from lumos.graph.arrivals import without_waits
from lumos.graph.lists import Lists, list_of, offsets, ordinals, places
from lumos.graph.table import Collectives, Graph, Occupancy, Waits
from lumos.simulate.durations import with_durations

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from lumos.trace.table import Int8, Int32, Int64

#: What the copies of a step are called; their numbers follow one another, so that each has a period.
COPY = "copy#"


@dataclass(frozen=True, slots=True, eq=False)
class Loop:
    """A step of a job, repeated; n tasks. graph: the copies, one after the other. owners: its steps, one for each copy and rank.

    source: int64[n], the task of the job's graph that each is a copy of. whole: how many copies, from the first and at least two, meet
    no later one that is not there.
    """

    graph: Graph
    owners: Members
    source: Int64
    whole: int

    def altered(self, job: Graph) -> Loop:
        """The loop of the same job with other durations and delays. job: its graph, with the same tasks and dependencies."""
        durations = without_waits(job.duration, job.arrivals)[self.source]
        release_time = _held_back(job, self.source[self.graph.release_task])
        graph = replace(with_durations(self.graph, durations), lag=job.lag, release_time=release_time)
        return replace(self, graph=graph, owners=replace(self.owners, graph=graph))


def repeated(owners: Members, step: int, copies: int) -> Loop:
    """A step of a job, that many times. owners: of the job. step: position in `owners.job`."""
    return _Repeated(owners, step).loop(copies)


def _held_back(job: Graph, tasks: Int64) -> Int64:
    """When the processes that load batches have made those which the tasks of a loop wait for, int64[k] ns from the loop's begin.

    tasks: of every copy in turn, the tasks of the job that wait for a batch, in ascending id. The first batch of a rank is there at once.
    """
    if job.arrivals is None:
        return np.zeros(len(tasks), np.int64)
    order = np.argsort(job.arrivals.task)
    pace = job.arrivals.pace[order][np.searchsorted(job.arrivals.task[order], tasks)]
    return ordinals(job.position_of_task[tasks]) * pace


class _Before(NamedTuple):
    """The predecessors of the tasks of a copy. offset: int64[m + 1]. task: int64, position in its copy. back: int64, how many copies
    before that is. kind: uint8."""

    offset: Int64
    task: Int64
    back: Int64
    kind: Int8


class _Repeated:
    """The tasks of one step of a job, m over all ranks, and what they depend on.

    task: int64[m], their ids in the job's graph, ascending. place: int64[n], the position of each of the job's tasks among them, -1 for
    tasks of other steps.
    """

    def __init__(self, owners: Members, step: int) -> None:
        self.owners, self.graph = owners, owners.graph
        self.step = owners.job[step]
        self.task = np.sort(np.concatenate([owners.tasks(part) for part in self.step.parts]))
        self.place = np.full(len(self.graph), -1, np.int64)
        self.place[self.task] = np.arange(len(self.task))
        #: For each step of a rank, how many steps of the job it comes before this one.
        self.distance = np.zeros(len(owners.steps), np.int64)
        for position, each in enumerate(owners.job):
            self.distance[list(each.parts)] = step - position
        #: Whether each step of a rank is part of a step of the job; only those have tasks that correspond.
        self.known = np.zeros(len(owners.steps) + 1, bool)
        self.known[[part for each in owners.job for part in each.parts]] = True

    def loop(self, copies: int) -> Loop:
        """The loop of that many copies."""
        graph, m = self.graph, len(self.task)
        source = np.tile(self.task, copies)
        shift = np.repeat(np.arange(copies) * m, m)
        predecessors = self._edges(copies)
        rendezvous, apart = self._rendezvous(copies)
        held = np.empty(0, np.int32) if graph.arrivals is None else self._rows(graph.arrivals.task, copies)[0]
        out = replace(
            graph,
            duration=without_waits(graph.duration, graph.arrivals)[source],
            processor=graph.processor[source],
            kind=graph.kind[source],
            name=graph.name[source],
            event=graph.event[source],
            pred_offset=predecessors[0],
            pred=predecessors[1].astype(np.int32),
            pred_kind=predecessors[2],
            release_task=held,
            release_time=_held_back(graph, source[held]),
            rendezvous_offset=rendezvous.offset,
            rendezvous_task=rendezvous.flat.astype(np.int32),
            waits=None if graph.waits is None else Waits(*self._rows(graph.waits.task, copies, graph.waits.target)),
            occupancy=None
            if graph.occupancy is None
            else Occupancy(*self._rows(graph.occupancy.task, copies, graph.occupancy.share, graph.occupancy.hold)),
            collectives=self._collectives(copies),
            measured_start=None,
            measured_end=None,
            unclaimed_wait_task=np.empty(0, np.int32),
            unclaimed_wait_time=np.empty(0, np.int64),
            arrivals=None,
            one_off=None,
            waiting_unknown=self._rows(graph.waiting_unknown, copies)[0],
            steps=(),
        )
        steps = tuple(replace(self.owners.steps[part], name=f"{COPY}{copy}") for part in self.step.parts for copy in range(copies))
        first = np.full(len(self.owners.steps), -1, np.int64)
        first[list(self.step.parts)] = np.arange(len(self.step.parts)) * copies
        step = (first[self.owners.step[source]] + shift // max(m, 1)).astype(np.int32)
        return Loop(out, assigned(out, steps, step), source, max(copies - apart, 2))

    def _edges(self, copies: int) -> tuple[Int64, Int64, Int8]:
        """The predecessors of all copies, as `Graph` has them. What would lie before the first copy is left out."""
        offset, task, back, kind = self._before()
        m, edges = len(self.task), len(task)
        copy = np.repeat(np.arange(copies), edges)
        of = copy - np.tile(back, copies)
        before = np.tile(task, copies) + of * m
        exists = (of >= 0) & (of < copies)
        kinds = np.tile(kind, copies)
        if exists.all():
            whole = (offset[:-1] + np.arange(copies)[:, None] * edges).reshape(-1)
            return np.append(whole, edges * copies).astype(np.int64), before, kinds
        after = np.repeat(np.arange(copies) * m, edges) + np.tile(list_of(offset), copies)
        return offsets(np.bincount(after[exists], minlength=m * copies)), before[exists], kinds[exists]

    def _before(self) -> _Before:
        """The predecessors of the step's tasks, each as a task of the step and a number of steps before."""
        graph = self.graph
        low = graph.pred_offset[self.task]
        size = graph.pred_offset[self.task + 1] - low
        edge = places(low, size)
        task, back = self._of_step(graph.pred[edge].astype(np.int64))
        after = np.repeat(np.arange(len(self.task)), size)
        # A task cannot wait for one of a later step, nor for one of its own step that comes after it on its thread.
        kept = (task >= 0) & (back >= 0)
        return _Before(offsets(np.bincount(after[kept], minlength=len(self.task))), task[kept], back[kept], graph.pred_kind[edge[kept]])

    def _of_step(self, tasks: Int64) -> tuple[Int64, Int64]:
        """For any tasks of the job: the corresponding task of the step, -1 where there is none, and how many steps it is before."""
        place = self.place[tasks]
        back = np.zeros(len(tasks), np.int64)
        owner = self.owners.step[tasks]
        elsewhere = np.flatnonzero((place < 0) & self.known[owner])
        for other in np.unique(owner[elsewhere]).tolist():
            mine = next((p for p in self.step.parts if self.owners.steps[p].rank == self.owners.steps[other].rank), -1)
            if mine < 0:
                continue
            here = elsewhere[owner[elsewhere] == other]
            place[here] = self._counterpart(other, mine, tasks[here])
            back[here] = self.distance[other]
        return place, back

    def _counterpart(self, other: int, mine: int, tasks: Int64) -> Int64:
        """Positions in the copy of the tasks of step `mine` that correspond to tasks of step `other` of the same rank; -1 without."""
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
        """The rendezvous of all copies, and how many steps apart ranks meet at most: their copies are as far apart."""
        graph, m = self.graph, len(self.task)
        sizes = np.diff(graph.rendezvous_offset)
        sets = list_of(graph.rendezvous_offset)
        chosen = np.zeros(len(sizes), bool)
        chosen[sets[self.place[graph.rendezvous_task] >= 0]] = True
        member = np.flatnonzero(chosen[sets])
        place, back = self._of_step(graph.rendezvous_task[member].astype(np.int64))
        of = sets[member]
        order = np.lexsort((place, of))
        order = order[place[order] >= 0]
        place, back, of = place[order], back[order], of[order]
        if not len(place):
            return Lists(np.zeros(1, np.int64), place), 0
        first = np.flatnonzero(np.concatenate(([True], of[1:] != of[:-1])))
        size = np.diff(np.append(first, len(of)))
        # Counted from the first member, so that the same meeting is the same wherever it was seen.
        back = back - np.repeat(back[first], size)
        apart = int((np.maximum.reduceat(back, first) - np.minimum.reduceat(back, first)).max())
        key = np.stack((place, back), axis=1)
        distinct: dict[bytes, int] = {}
        for row, (low, count) in enumerate(zip(first.tolist(), size.tolist(), strict=True)):
            distinct.setdefault(key[low : low + count].tobytes(), row)
        rows = np.array(sorted(distinct.values()), np.int64)
        entries = places(first[rows], size[rows])
        place, back, number = place[entries], back[entries], np.repeat(np.arange(len(rows)), size[rows])
        copy = np.repeat(np.arange(copies), len(place))
        at = copy - np.tile(back, copies)
        inside = (at >= 0) & (at < copies)
        meeting = copy * len(rows) + np.tile(number, copies)
        every = Lists(offsets(np.bincount(meeting[inside], minlength=copies * len(rows))), (np.tile(place, copies) + at * m)[inside])
        return every, apart

    def _rows(self, task: Int32, copies: int, *columns: NDArray[Any]) -> tuple[Any, ...]:
        """The rows of a table by task that describe the step's tasks, for every copy: the column of tasks and the others."""
        rows = np.flatnonzero(self.place[task] >= 0)
        shift = np.repeat(np.arange(copies) * len(self.task), len(rows))
        return ((np.tile(self.place[task[rows]], copies) + shift).astype(np.int32), *(np.tile(column[rows], copies) for column in columns))

    def _collectives(self, copies: int) -> Collectives | None:
        facts = self.graph.collectives
        if facts is None:
            return None
        columns = (facts.kind, facts.nbytes, facts.group, facts.sequence, facts.peer)
        task, kind, nbytes, group, sequence, peer = self._rows(facts.task, copies, *columns)
        size = None if facts.size is None else self._rows(facts.task, copies, facts.size)[1]
        return Collectives(task, kind, nbytes, group, sequence, peer, facts.kinds, facts.groups, size)
