"""The named parts of a step: computing, communicating, or waiting, and for what.

Every moment of a step counts on each rank for the first of these parts that claims it, so that the parts sum exactly to the step:

1. compute: a device runs work other than communication, whether or not it communicates too;
2. communication: it only communicates, and all members of a collective or transfer have arrived (or are not in the recording);
3. pipeline bubble: it waits in a send or receive for the other side;
4. imbalance: it waits in a collective for a rank that arrives later;
5. unexplained, kernel gaps, waits: no device works, for a cause other than the CPU (`analyze.waiting.idle`);
6. data loading: the CPU has not launched, and a thread of the loop is inside the data loader;
7. host: it has not launched, and a thread of the loop works in an operator or call;
8. host between operators: it has not launched, and the threads of the loop are between operators (Python);
9. host: whatever else leaves the devices without work, such as a rank that starts later than the others.

On a rank without devices the CPU's operators compute. Time in which such a rank runs nothing at all it waits for the others: a
pipeline bubble where it sends or receives, otherwise an imbalance.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.analyze.collectives import waiting
from lumos.analyze.task_class import working
from lumos.analyze.waiting.idle import IdleCause, IdleIntervals
from lumos.graph.lists import places
from lumos.graph.table import Kind
from lumos.intervals import EMPTY, Union, clipped, either, union
from lumos.trace.table import Category, unique
from lumos.vocabulary import CollectiveKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lumos.analyze.loop.steps import Members
    from lumos.simulation.timeline import Timeline
    from lumos.trace.table import Int64, Job

#: Names of rows in which a thread loads data.
LOADING = re.compile(r"enumerate\(DataLoader\)|dataloader.*__next__|^\W*data_load(ing)?\W*$", re.IGNORECASE)


class NamedParts(NamedTuple):
    """Where the time of a step goes on one rank, ns; the parts sum to the step. What each of them is: see the module."""

    compute_ns: int
    communication_ns: int
    pipeline_bubble_ns: int
    imbalance_ns: int
    data_loading_ns: int
    host_between_operators_ns: int
    host_ns: int
    kernel_gap_ns: int
    wait_ns: int
    unexplained_ns: int


def named_parts(
    timeline: Timeline,
    owners: Members,
    interval: tuple[Int64, Int64],
    idle: Sequence[IdleIntervals | None],
    job: Job | None = None,
) -> tuple[NamedParts, ...]:
    """The parts of every step of `owners` on its rank.

    interval: where each step begins and ends, int64[steps] ns. idle: what `idle_intervals` gives for them. job: the recording, whose
    rows say when threads load data; without it that time is the host's.
    """
    activities = _Activities(timeline, owners, job)
    start, end = interval
    step_rank = owners.step_rank()
    out: list[NamedParts | None] = [None] * len(owners.steps)
    for rank in unique(step_rank).tolist():
        done = activities.of_rank(rank)
        for i in np.flatnonzero(step_rank == rank).tolist():
            out[i] = _parts(done, idle[i], int(start[i]), int(end[i]))
    return tuple(part for part in out if part is not None)


class _Done(NamedTuple):
    """When a rank does what. waits_for_peer: in sends and receives; waits_for_ranks: in collectives. works: a thread of the loop is in
    an operator or call; pauses: it is between them. in_pipeline: whether the rank sends or receives."""

    computes: Union
    transfers: Union
    waits_for_peer: Union
    waits_for_ranks: Union
    loads: Union
    works: Union
    pauses: Union
    in_pipeline: bool


def _parts(done: _Done, idle: IdleIntervals | None, start: int, end: int) -> NamedParts:
    """The parts of the time from start to end. idle: None on a rank without devices."""
    claimed = _Claims(start, end)
    compute, communication, bubble, imbalance = map(claimed.more, done[:4])
    causes = (IdleCause.UNEXPLAINED, IdleCause.KERNEL_GAP, IdleCause.WAIT)
    unexplained, gap, wait = (0, 0, 0) if idle is None else (claimed.more(idle.because(cause)) for cause in causes)
    loading, host, between = map(claimed.more, (done.loads, done.works, done.pauses))
    rest = end - start - claimed.total
    if idle is not None:
        host += rest
    elif done.in_pipeline:
        bubble += rest
    else:
        imbalance += rest
    return NamedParts(compute, communication, bubble, imbalance, loading, between, host, gap, wait, unexplained)


class _Claims:
    """The time of a window that parts have claimed so far."""

    def __init__(self, start: int, end: int) -> None:
        self._start, self._end = start, end
        self._claimed = EMPTY
        self.total = 0

    def more(self, wanted: Union) -> int:
        """How much of the wanted time nothing has claimed yet, ns; it is claimed now."""
        self._claimed = either(self._claimed, clipped(wanted, self._start, self._end))
        before, self.total = self.total, self._claimed.total
        return self.total - before


class _Activities:
    """What the ranks of a timeline do when."""

    def __init__(self, timeline: Timeline, owners: Members, job: Job | None) -> None:
        graph = owners.graph
        self._timeline, self._owners, self._job = timeline, owners, job
        self._computes, self._communicates = working(owners)
        self._began = waiting(timeline).began
        self._between_two = np.zeros(len(graph), bool)
        if (facts := graph.collectives) is not None:
            kinds = [i for i, kind in enumerate(facts.kinds) if kind in (CollectiveKind.SEND, CollectiveKind.RECEIVE)]
            self._between_two[facts.task[np.isin(facts.kind, kinds)]] = True
        loops = np.zeros(len(graph.processors), bool)
        loops[graph.processor[owners.completes & ~owners.on_device]] = True
        self._on_loop = loops[graph.processor]
        self._lane = np.array([p.lane for p in graph.processors], np.int64)

    def of_rank(self, rank: int) -> _Done:
        """What the rank at this position does."""
        graph, tasks = self._owners.graph, self._owners.of_rank(rank)
        start, end, began = self._timeline.start, self._timeline.end, self._began
        communicates = tasks[self._communicates[tasks]]
        between_two = self._between_two[communicates]
        on_loop = tasks[self._on_loop[tasks]]
        pauses = graph.kind[on_loop] == Kind.HOST
        computes, working, paused = tasks[self._computes[tasks]], on_loop[~pauses], on_loop[pauses]
        return _Done(
            computes=union(start[computes], end[computes]),
            transfers=union(began[communicates], end[communicates]),
            waits_for_peer=union(start[communicates[between_two]], began[communicates[between_two]]),
            waits_for_ranks=union(start[communicates[~between_two]], began[communicates[~between_two]]),
            loads=self._loads(rank, on_loop),
            works=union(start[working], end[working]),
            pauses=union(start[paused], end[paused]),
            in_pipeline=bool(between_two.any()),
        )

    def _loads(self, rank: int, tasks: Int64) -> Union:
        """When the tasks of a rank load data. They do so in the part of their time that was measured inside a row of the data loader."""
        graph, timeline = self._owners.graph, self._timeline
        if self._job is None or graph.measured_start is None or graph.measured_end is None:
            return EMPTY
        trace = self._job.traces[rank]
        rows = np.flatnonzero(trace.is_any(Category.OPERATOR, Category.ANNOTATION, Category.PYTHON) & trace.named(LOADING.search))
        lane = self._lane[graph.processor[tasks]]
        unions = [EMPTY]
        for number in unique(trace.lane[rows]).tolist():
            here = rows[trace.lane[rows] == number]
            loading = union(trace.start[here] - graph.origin, trace.start[here] + trace.duration[here] - graph.origin)
            own = tasks[lane == number]
            task, first, last = _overlaps(graph.measured_start[own], graph.measured_end[own], loading)
            begin = timeline.start[own[task]]
            unions.append(union(begin + first, np.minimum(begin + last, timeline.end[own[task]])))
        return union(np.concatenate([u.start for u in unions]), np.concatenate([u.end for u in unions]))


def _overlaps(start: Int64, end: Int64, during: Union) -> tuple[Int64, Int64, Int64]:
    """The tasks of a thread, in order, that overlap the intervals: index, and from when to when after their own start, ns."""
    low = np.searchsorted(end, during.start, side="right")
    high = np.maximum(np.searchsorted(start, during.end, side="left"), low)
    task = places(low, high - low)
    interval = np.repeat(np.arange(len(during.start)), high - low)
    first = np.maximum(start[task], during.start[interval])
    last = np.minimum(end[task], during.end[interval])
    return task, first - start[task], last - start[task]
