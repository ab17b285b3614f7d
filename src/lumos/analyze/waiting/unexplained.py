"""What a replay of a step did not explain: the figures to read before its error.

kept_wait: waiting that stays in the durations of CPU tasks, because no dependency explains it. prefix: time covered by
device work whose start is taken from the trace: work launched before the window, and the first work of a stream that it held up.
held_up: time in which the devices stood idle because work from before the recording still kept the first work of a stream from
starting. unexplained_idle: time in which a stream with work to do stood idle more than 20 µs after the latest cause that the graph
knows. All are shares of the measured step. A step with too few tasks, or too much unexplained, is not scored, nor is one that does not
count (`analyze.loop.steps`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from lumos.analyze.loop.steps import Members, StepTimes, is_operation_level, step_times
from lumos.analyze.waiting.causes import device_causes
from lumos.analyze.waiting.idle import TOLERANCE_NS, Unexplained, unexplained_operations
from lumos.analyze.waiting.occupancy import NEVER
from lumos.graph.table import Kind
from lumos.intervals import union, within
from lumos.trace.table import unique

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from lumos.simulation.timeline import Timeline
    from lumos.trace.table import Int64

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
