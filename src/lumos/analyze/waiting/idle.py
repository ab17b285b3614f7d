"""Why a rank's devices were idle, and what a replay of a step did not explain: the figures to read before its error.

An idle interval of a step ends when a device task starts. What that task waited for last is the cause of the interval: the
CPU that had not launched it yet (host-bound), other device work or a synchronisation (wait), or only the pause of the device
between two tasks (kernel gap). If the task starts more than 20 µs after its last known cause, that time is unexplained; less
than 20 µs is variation of the constants. Idle time after the step's last device task is host-bound: nothing was queued.

An operation-level job has no devices. An operation is ready when the operations before it have ended and its launch delay has
passed; a transfer is over when the last rank has arrived and the transfer time has passed. Any further time in the recording
has no known cause, and the replay leaves it out. It is unexplained only as far as it delays the step.

kept_wait: waiting that stays in the durations of CPU tasks, because no dependency explains it. prefix: time covered by
device work whose start is taken from the trace: work launched before the window, and the first work of a stream that it held up.
held_up: time in which the devices stood idle because work from before the recording still kept the first work of a stream from
starting. unexplained_idle: time in which a stream with work to do stood idle more than 20 µs after the latest cause that the graph
knows. All are shares of the measured step. A step with too few tasks, or too much unexplained, is not scored, nor is one that does not
count (`analyze.loop.steps`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from lumos.analyze.loop.steps import Members, StepTimes, is_operation_level, step_times
from lumos.analyze.waiting.causes import NEVER, DeviceCauses, device_causes
from lumos.analyze.waiting.slack import slack
from lumos.graph.lists import list_of
from lumos.graph.table import Dependency, Kind
from lumos.intervals import Union, union, within
from lumos.trace.table import unique

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from lumos.simulation.timeline import Timeline
    from lumos.trace.table import Int64

#: A start up to this much after the latest known cause counts as explained by it, ns: launch latency varies by less.
TOLERANCE_NS = 20_000


class Idle(NamedTuple):
    """Time in which a rank's devices did nothing, by cause. ns."""

    host_bound_ns: int
    kernel_gap_ns: int
    wait_ns: int
    unexplained_ns: int


class IdleCause(IntEnum):
    """Why devices were idle; the value is the position of its time in `Idle`."""

    HOST_BOUND = 0
    KERNEL_GAP = 1
    WAIT = 2
    UNEXPLAINED = 3


class IdleIntervals(NamedTuple):
    """When a rank's devices did nothing, and why: disjoint intervals in any order. start, end: int64[k] ns; cause: int64[k] `IdleCause`."""

    start: Int64
    end: Int64
    cause: Int64

    def because(self, cause: IdleCause) -> Union:
        """The intervals of one cause."""
        chosen = self.cause == cause
        return union(self.start[chosen], self.end[chosen])

    def by_cause(self) -> Idle:
        """The idle time of every cause."""
        time = np.zeros(len(IdleCause), np.int64)
        np.add.at(time, self.cause, self.end - self.start)
        return Idle(*time.tolist())


def device_idle(timeline: Timeline, owners: Members, interval: tuple[Int64, Int64]) -> tuple[Idle | None, ...]:
    """The idle time in the interval of every step of `owners`: when no device of its rank worked; None where the rank has no device.

    interval: where each step begins and ends, int64[steps] ns.
    """
    return tuple(None if intervals is None else intervals.by_cause() for intervals in idle_intervals(timeline, owners, interval))


def idle_intervals(timeline: Timeline, owners: Members, interval: tuple[Int64, Int64]) -> tuple[IdleIntervals | None, ...]:
    """When no device of the step's rank worked in the interval of every step of `owners`; None where the rank has no device.

    interval: where each step begins and ends, int64[steps] ns.
    """
    causes = device_causes(timeline, owners)
    start, end = interval
    rank, step_rank = owners.rank[causes.task], owners.step_rank()
    rows = {int(position): np.flatnonzero(rank == position) for position in unique(step_rank)}
    own = [rows[int(position)] for position in step_rank]
    return tuple(split(timeline, causes, here, int(start[i]), int(end[i])) if len(here) else None for i, here in enumerate(own))


def split(timeline: Timeline, causes: DeviceCauses, rows: Int64, start: int, end: int) -> IdleIntervals:
    """The idle time in the window [start, end) between the tasks causes.task[rows], by the cause of the task that ends it."""
    begin, finish = timeline.start[causes.task[rows]], timeline.end[causes.task[rows]]
    inside = (finish > start) & (begin < end)
    rows, begin, finish = rows[inside], begin[inside], finish[inside]
    if len(rows) == 0:
        return IdleIntervals(*(np.array([value], np.int64) for value in (start, end, IdleCause.HOST_BOUND)))
    order = np.argsort(begin, kind="stable")
    rows, begin = rows[order], begin[order]
    reached = np.maximum.accumulate(finish[order])
    idle_from = np.concatenate((np.array([start]), np.maximum(reached[:-1], start)))
    launch, wait = causes.launch[rows], causes.wait[rows]
    latest = np.maximum(launch, wait)
    late = begin - np.maximum(np.maximum(latest, causes.previous[rows]), idle_from)
    explained = np.where(late > TOLERANCE_NS, begin - late, begin)
    cause = np.where(latest <= idle_from, IdleCause.KERNEL_GAP, np.where(launch >= wait, IdleCause.HOST_BOUND, IdleCause.WAIT))
    # Every gap is explained up to some moment and unexplained from there; after the last task, nothing was queued.
    found_start = np.concatenate((idle_from, explained, reached[-1:]))
    found_end = np.concatenate((explained, begin, np.array([end])))
    why = np.concatenate((cause, np.full(len(rows), IdleCause.UNEXPLAINED), np.array([IdleCause.HOST_BOUND]))).astype(np.int64)
    some = found_end > found_start
    return IdleIntervals(found_start[some], found_end[some], why[some])


class Unexplained(NamedTuple):
    """Time that no known cause explains: before a task's start, or in a transfer before its end. task: int64[k]; start, end:
    int64[k] ns."""

    task: Int64
    start: Int64
    end: Int64


def unexplained_operations(timeline: Timeline, owners: Members) -> Unexplained:
    """The unexplained time before the start of operations of an operation-level job, and before the end of its transfers, as far as it
    delays the step: less the time by which the operation could have been later still."""
    graph = timeline.graph
    ready, member = _ready(timeline), graph.rendezvous_task
    arrival, done = timeline.start.copy(), timeline.end.copy()
    if len(member):
        last = np.maximum.reduceat(timeline.start[member], graph.rendezvous_offset[:-1])
        arrival[member] = np.repeat(last, np.diff(graph.rendezvous_offset))
        done[member] = arrival[member] + graph.duration[member]
    spare = _spare(timeline, owners, ready)
    startable = ready + spare + arrival - timeline.start
    late = np.flatnonzero((owners.step >= 0) & (graph.kind != Kind.HOST) & (ready >= 0) & (timeline.start > startable))
    slow = member[timeline.end[member] > done[member] + spare[member]].astype(np.int64)
    return Unexplained(
        np.concatenate((late, slow)),
        np.concatenate((startable[late], (done + spare)[slow])),
        np.concatenate((timeline.start[late], timeline.end[slow])),
    )


def _spare(timeline: Timeline, owners: Members, ready: Int64) -> Int64:
    """How much later each operation could have ended before its step ended later, int64[n] ns; of operations that meet, the least of
    them. Unexplained time before an operation counts as part of it, and so moves with it."""
    graph = timeline.graph
    waited = (ready >= 0) & (graph.kind != Kind.HOST)
    start = np.where(waited, np.minimum(ready, timeline.start), timeline.start)
    end = np.where(graph.kind == Kind.HOST, timeline.start + graph.duration, timeline.end)
    spare: Int64 = np.minimum(
        slack(replace(timeline, start=start, end=end), owners).slack, timeline.end.max()
    )  # unbounded, if part of no step
    if len(graph.rendezvous_task):
        least = np.minimum.reduceat(spare[graph.rendezvous_task], graph.rendezvous_offset[:-1])
        spare[graph.rendezvous_task] = np.repeat(least, np.diff(graph.rendezvous_offset))
    return spare


def _ready(timeline: Timeline) -> Int64:
    """When the last predecessor of each task, and the task before it on its stream, had ended, int64[n] ns, -1 without any. A launch delay
    counts with its duration, not with its recorded end."""
    graph = timeline.graph
    successor = list_of(graph.pred_offset)
    ended = np.where(graph.kind == Kind.HOST, timeline.start + graph.duration, timeline.end)
    out = np.full(len(graph), -1, np.int64)
    used = ~np.isin(graph.pred_kind, list(graph.ignored))
    np.maximum.at(out, successor[used], ended[graph.pred[used]])
    if Dependency.STREAM_ORDER not in graph.ignored:
        order = np.lexsort((timeline.start, graph.processor))
        follows = np.flatnonzero(graph.processor[order[1:]] == graph.processor[order[:-1]]) + 1
        task, before = order[follows], order[follows - 1]
        out[task] = np.maximum(out[task], ended[before])
    return out


#: To be scored, the steps of a rank must contain at least so many operators (and device tasks, where the rank has any), and at most
#: such shares of a step may be waiting that is kept as CPU work, or covered by device work launched before the window. Idle time without a
#: known cause is no part of a replay, so that it shows in its error.
LEAST_ROWS = 50
MOST_KEPT_WAIT = 0.05
MOST_PREFIX = 0.10

#: Why the first step of a recording that shows the periods of others is not scored, and why another that does not count is not.
NO_PERIOD = "no period: the step before it was not recorded"
NOT_COUNTED = "it does not count: it is the first, something in it happens once, or it is outside the longest run or whole cycles of steps"


@dataclass(frozen=True, slots=True)
class UnexplainedTime:
    """Shares of the measured step. too_few: what there is too little of in the steps of its rank to judge their replay by; empty where
    there is enough. reason: why the step is not scored; empty where it is."""

    kept_wait: float
    unexplained_idle: float
    prefix: float
    held_up: float
    too_few: str
    reason: str

    @property
    def scored(self) -> bool:
        """Whether the step counts in the errors of the replay."""
        return not self.reason


def unexplained_times(timeline: Timeline, owners: Members) -> tuple[UnexplainedTime, ...]:
    """The figures of every step of `owners`, from the measured timeline."""
    graph = timeline.graph
    times = step_times(timeline, owners)
    start, end = times.rank_intervals()
    length = np.maximum(end - start, 1)
    kept_wait = _kept_wait(timeline, owners) / length
    idle = _within_ranks(owners, *_unexplained(timeline, owners), start, end) / length
    if is_operation_level(graph):
        idle = _mean_over_ranks(owners, idle)
    tasks = unique(np.flatnonzero(owners.prefix), graph.release_task[owners.on_device[graph.release_task]].astype(np.int64))
    prefix = _within_ranks(owners, tasks, timeline.start[tasks], timeline.end[tasks], start, end) / length
    too_few = _too_few_operations(owners) if is_operation_level(graph) else _too_few_tasks(owners)
    held_up = _held_up(timeline, owners, start, end) / length
    figures = zip(kept_wait.tolist(), idle.tolist(), prefix.tolist(), held_up.tolist(), strict=True)
    return tuple(
        UnexplainedTime(k, u, p, h, few, uncounted or few or _too_unknown(k, p))
        for (k, u, p, h), few, uncounted in zip(figures, too_few, _not_counted(times), strict=True)
    )


def _kept_wait(timeline: Timeline, owners: Members) -> Int64:
    """The time of every step in which any of its threads waits without a known reason, counted once, int64[steps] ns."""
    graph = timeline.graph
    task, out = graph.unclaimed_wait_task, np.zeros(len(owners.steps), np.int64)
    begin = timeline.start[task]
    for step in unique(owners.step[task]):
        own = owners.step[task] == step
        if step >= 0:
            out[step] = union(begin[own], (begin + graph.unclaimed_wait_time)[own]).total
    return out


def _held_up(timeline: Timeline, owners: Members, opens: Int64, closes: Int64) -> Int64:
    """For every step [opens, closes): the time from the launches of held-up work to its start in which its rank's devices ran nothing,
    int64[steps] ns."""
    graph = timeline.graph
    task = graph.release_task[owners.on_device[graph.release_task] & (owners.launch[graph.release_task] >= 0)].astype(np.int64)
    if not len(task):
        return np.zeros(len(owners.steps), np.int64)
    device = np.flatnonzero(owners.on_device)
    both = np.concatenate((device, task))
    begin = np.concatenate((timeline.start[device], timeline.end[owners.launch[task]]))
    end = np.concatenate((timeline.end[device], timeline.start[task]))
    busy = _within_ranks(owners, device, timeline.start[device], timeline.end[device], opens, closes)
    return _within_ranks(owners, both, begin, end, opens, closes) - busy


def _not_counted(times: StepTimes) -> list[str]:
    """For each step, why its time does not count; empty where it does."""
    counts = times.rank_steps_counted().tolist()
    return ["" if counts[i] else NO_PERIOD if time.basis is not times.basis else NOT_COUNTED for i, time in enumerate(times.ranks)]


def _unexplained(timeline: Timeline, owners: Members) -> Unexplained:
    """Unexplained time that is longer than the tolerance; for device tasks, from their latest known cause to their start."""
    if is_operation_level(timeline.graph):
        task, since, until = unexplained_operations(timeline, owners)
        long = until - since > TOLERANCE_NS
        return Unexplained(task[long], since[long], until[long])
    causes = device_causes(timeline, owners)
    since, start = causes.latest, timeline.start[causes.task]
    late = (since != NEVER) & (start - np.where(since == NEVER, start, since) > TOLERANCE_NS)
    return Unexplained(causes.task[late], since[late], start[late])


def _within_ranks(owners: Members, task: Int64, start: Int64, end: Int64, opens: Int64, closes: Int64) -> Int64:
    """For every step [opens, closes): the time in it that intervals [start, end) of tasks of its rank cover, int64[steps] ns."""
    out = np.zeros(len(owners.steps), np.int64)
    step_rank = owners.step_rank()
    for rank in unique(owners.rank[task]):
        steps, here = np.flatnonzero(step_rank == rank), owners.rank[task] == rank
        out[steps] = within(union(start[here], end[here]), opens[steps], closes[steps])
    return out


def _mean_over_ranks(owners: Members, figure: NDArray[Any]) -> NDArray[np.float64]:
    """For each step of each rank, the mean of a figure over all ranks' steps of that name. In an operation-level job a step is
    one of the whole job, and while one rank is idle without a known cause the others wait for it."""
    _, at, count = np.unique([s.name for s in owners.steps], return_inverse=True, return_counts=True)
    out: NDArray[np.float64] = (np.bincount(at, weights=figure) / count)[at]
    return out


def _too_few_tasks(owners: Members) -> list[str]:
    """For each step, why the steps of its rank have too few tasks together to be scored; empty where they have enough."""
    graph, step_rank = owners.graph, owners.step_rank()
    reasons: dict[int, str] = {}
    for rank in unique(step_rank).tolist():
        tasks = np.concatenate([owners.tasks(i) for i in np.flatnonzero(step_rank == rank).tolist()])
        operators = _rows(owners, tasks[graph.kind[tasks] == Kind.OPERATOR])
        if owners.on_device[owners.of_rank(rank)].any():
            device = int(owners.on_device[tasks].sum())
            short, words = min(device, operators) < LEAST_ROWS, f"{device} GPU rows and {operators} operators"
        else:
            operators += int((graph.kind[tasks] == Kind.COLLECTIVE).sum())
            short, words = operators < LEAST_ROWS, f"{operators} operators"
        reasons[rank] = f"{words} in all steps, fewer than {LEAST_ROWS}" if short else ""
    return [reasons[rank] for rank in step_rank.tolist()]


def _too_few_operations(owners: Members) -> list[str]:
    """The same for each step of an operation-level job, by its operations over all ranks."""
    worked = owners.graph.event[owners.order] >= 0
    own = np.add.reduceat(worked.astype(np.int64), owners.offset[:-1])
    names, at = np.unique([s.name for s in owners.steps], return_inverse=True)
    total = np.bincount(at, weights=own, minlength=len(names))[at]
    return [f"{int(n)} operations over all ranks, fewer than {LEAST_ROWS}" if n < LEAST_ROWS else "" for n in total]


def _too_unknown(kept_wait: float, prefix: float) -> str:
    """Why too much of a step is unexplained for it to be scored; empty where it is not."""
    if kept_wait > MOST_KEPT_WAIT:
        return f"{kept_wait:.0%} of the step is waiting that no rule explains, kept as CPU work"
    if prefix > MOST_PREFIX:
        return f"{prefix:.0%} of the step runs work launched before the window"
    return ""


def _rows(owners: Members, tasks: Int64) -> int:
    """Operators among tasks: an operator cut into several slices counts once."""
    event = owners.graph.event[tasks]
    return len(unique(event[event >= 0])) + int((event < 0).sum())
