"""Which span of the training loop each task belongs to.

The span of a step lasts from the begin of its mark (ProfilerStep#k) to the begin of the mark of step k + 1, with all Python and
data loading in between; where step k + 1 was not recorded, it ends with its mark. A recording without marks is one span.

A CPU task of the marked thread belongs to the span in which it was measured to start. A task of another thread belongs to the
span of the task that handed that thread its run of work; without a known hand-off, to the span in which it was measured to start. A
pause between operators belongs to the span of the work that follows it on its thread. A device task belongs to the span of its launch,
whenever it runs; without a known launch, to the span in which it was measured to start.

A last span that the end of the recording cut is no step: it lacks work that the other spans have, such as what they do after their marks,
and it ends with other operators than they do. A last mark may also hold the profiler's stop, which waits for the devices:
the calls with which it ends, and no other mark does, are no work of the step.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from lumos.graph.hand_offs.threads import SHORTEST_HAND_OFF
from lumos.graph.lists import Lists, grouped, list_of
from lumos.graph.places import number_of
from lumos.graph.table import Dependency, Graph, Kind, Step

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from lumos.trace.table import Int32, Int64

#: A last span with less than this share of the device work of every other span, or of the time of its operators, lacks work.
_WHOLE = 0.95

#: How many of the last operators of two spans are compared.
LAST_OPERATORS = 3

#: What the names of threads contain that load data or write checkpoints beside the loop.
SERVICE_THREADS = ("pt_data_pin", "pt_data_worker", "dataloader", "checkpoint")


def hands_on(graph: Graph, to: NDArray[np.bool_] | None = None) -> NDArray[np.bool_]:
    """The threads and streams that hand work on to others, bool[processors]. to: which others count; None for all."""
    others = True if to is None else to[graph.processor[list_of(graph.pred_offset)]]
    awaited = (graph.pred_kind == Dependency.HAND_OFF) & others
    return np.bincount(graph.processor[graph.pred[awaited]], minlength=len(graph.processors)) > 0


def task_spans(graph: Graph, measured_start: Int64, by_rank: Lists, on_device: NDArray[np.bool_], launch: Int32) -> Int32:
    """Index into `graph.places` of every task, int32[n]; -1 outside all spans and in those that the recording cut.

    by_rank: the tasks of each rank. launch: int32[n], the task that launched each device task, -1 where none is known.
    """
    span = np.full(len(graph), -1, np.int32)
    for position, rank in enumerate(graph.ranks):
        marks = [i for i, step in enumerate(graph.steps) if step.rank == rank]
        if not marks:
            continue
        tasks = by_rank.flat[by_rank.offset[position] : by_rank.offset[position + 1]]
        steps = [graph.steps[i] for i in marks]
        start, end = np.array([s.start for s in steps], np.int64), span_ends(steps)
        time = measured_start[tasks]
        last = np.searchsorted(start, time, side="right") - 1
        inside = (last >= 0) & (time < end[last])
        span[tasks[inside]] = np.array(marks, np.int32)[last[inside]]
    _by_hand_off(graph, span)
    _pauses_lead_to_work(graph, span)
    launched = on_device & (launch >= 0)
    span[launched] = span[launch[launched]]
    _without_the_stop(graph, measured_start, span)
    for fragment in _fragments(graph, span, on_device):
        span[span == fragment] = -1
    return span


def beside_the_loop(graph: Graph, steps: Sequence[Step], step: Int32, launch: Int32) -> NDArray[np.bool_]:
    """Tasks of threads beside the loop (data loading, checkpoints, timers), and the device work that they launch, bool[n].

    Of a rank with a marked thread, a thread that is not marked is beside the loop where its name says so, or where it launches nothing,
    communicates with nobody, and nothing else waits for it in the step that it works for. Timers are decided before hand-offs are looked
    for, because no thread waits for one (`graph.hand_offs.threads`); other steps may wait for a thread that is beside the loop. steps: the
    marked steps. step: int32[n], index into them of every task.
    """
    linked = np.zeros(len(graph.processors), bool)
    handed = np.flatnonzero(graph.pred_kind == Dependency.HAND_OFF)
    before, after = graph.pred[handed], list_of(graph.pred_offset)[handed]
    linked[graph.processor[before[step[before] == step[after]]]] = True
    linked[graph.processor[launch[launch >= 0]]] = True
    linked[graph.processor[graph.kind == Kind.COLLECTIVE]] = True
    service = np.array([any(word in p.name.lower() for word in SERVICE_THREADS) for p in graph.processors], bool)
    beside = np.array([not p.is_stream and p.timer for p in graph.processors], bool) | (without_mark(graph, steps) & (service | ~linked))
    out: NDArray[np.bool_] = beside[graph.processor]
    out |= (launch >= 0) & out[launch]
    return out


def without_mark(graph: Graph, steps: Sequence[Step]) -> NDArray[np.bool_]:
    """The threads that bear none of the marks of `steps`, of ranks on which one does, bool[processors]."""
    marked = {(step.rank, step.lane) for step in steps if step.lane >= 0}
    ranks = {rank for rank, _ in marked}
    return np.array([not p.is_stream and p.rank in ranks and (p.rank, p.lane) not in marked for p in graph.processors], bool)


def launches(graph: Graph) -> Int32:
    """The task that launched each device task, int32[n]; -1 where none is known."""
    edge = np.flatnonzero(graph.pred_kind == Dependency.LAUNCH)
    launch = np.full(len(graph), -1, np.int32)
    launch[np.searchsorted(graph.pred_offset, edge, side="right") - 1] = graph.pred[edge]
    return launch


def prefix(graph: Graph, rank: Int32, on_device: NDArray[np.bool_], launch: Int32) -> NDArray[np.bool_]:
    """Device tasks whose start is taken from the trace because their launch is missing.

    A rank without any launches has no prefix: the launches of all of its device work are missing.
    """
    released = np.zeros(len(graph), bool)
    released[graph.release_task] = True
    shows_launches = np.zeros(len(graph.ranks), bool)
    shows_launches[rank[launch >= 0]] = True
    return released & on_device & (launch < 0) & shows_launches[rank]


def span_ends(steps: Sequence[Step]) -> Int64:
    """Where the spans of one rank's steps end, int64[steps] ns: at the next mark, where that is of the next number, else with the mark."""
    ends = [step.end for step in steps]
    for i, (step, after) in enumerate(pairwise(steps)):
        number, following = number_of(step.name), number_of(after.name)
        if number is not None and following == number + 1:
            ends[i] = after.start
    return np.array(ends, np.int64)


def _by_hand_off(graph: Graph, span: Int32) -> None:
    """Give the runs of work of threads that are not marked the span of the task that handed them over; in place."""
    edges = np.flatnonzero(graph.pred_kind == Dependency.HAND_OFF)
    source = np.full(len(graph), -1, np.int32)
    source[list_of(graph.pred_offset)[edges]] = graph.pred[edges]
    tasks = np.flatnonzero(without_mark(graph, graph.steps)[graph.processor])
    if not len(tasks):
        return
    tasks = tasks[np.argsort(graph.processor[tasks], kind="stable")]
    starts_run = source[tasks] >= 0
    starts_run[0] = True
    starts_run[1:] |= graph.processor[tasks[1:]] != graph.processor[tasks[:-1]]
    starts_run[1:] |= (graph.kind[tasks[:-1]] == Kind.HOST) & (graph.duration[tasks[:-1]] >= SHORTEST_HAND_OFF)
    first = np.maximum.accumulate(np.where(starts_run, np.arange(len(tasks)), 0))
    giver = source[tasks[first]]
    given = giver >= 0
    for _ in range(len(graph.processors)):  # a chain of hand-offs is no longer than this without returning to a thread
        before = span[tasks[given]]
        span[tasks[given]] = span[giver[given]]
        if np.array_equal(before, span[tasks[given]]):
            break


def _pauses_lead_to_work(graph: Graph, span: Int32) -> None:
    """Give the pauses between operators the span of the work that follows them on their thread; in place."""
    order = np.argsort(graph.processor, kind="stable")
    works = np.flatnonzero(graph.kind[order] != Kind.HOST)
    pauses = np.flatnonzero(graph.kind[order] == Kind.HOST)
    if not len(works) or not len(pauses):
        return
    after = works[np.minimum(np.searchsorted(works, pauses), len(works) - 1)]
    leads = (after > pauses) & (graph.processor[order[after]] == graph.processor[order[pauses]]) & (span[order[after]] >= 0)
    span[order[pauses[leads]]] = span[order[after[leads]]]


def _without_the_stop(graph: Graph, measured_start: Int64, span: Int32) -> None:
    """Take the profiler's stop out of the last span of each rank; in place."""
    for rank in graph.ranks:
        marks = [i for i, step in enumerate(graph.steps) if step.rank == rank]
        if not marks or graph.steps[marks[-1]].lane < 0:
            continue
        trailing = _trailing_calls(graph, measured_start, span, marks[-1])
        others = [_trailing_calls(graph, measured_start, span, mark) for mark in marks[:-1] if len(trailing)]
        unusual = np.isin(graph.name[trailing], graph.name[np.concatenate([trailing[:0], *others])], invert=True)
        if unusual.any():
            span[trailing[unusual.argmax() :]] = -1


def _trailing_calls(graph: Graph, measured_start: Int64, span: Int32, mark: int) -> Int64:
    """The calls that wait for devices, and the pauses, of a marked thread after all else that it does or waits for within its mark."""
    step = graph.steps[mark]
    lane = np.array([p.lane if p.rank == step.rank and not p.is_stream else -1 for p in graph.processors])
    own = np.flatnonzero((span == mark) & (lane[graph.processor] == step.lane) & (measured_start < step.end))
    calls = np.isin(graph.kind[own], (Kind.RUNTIME, Kind.SYNC, Kind.RETURN, Kind.HOST))
    calls &= ~np.isin(own, list_of(graph.pred_offset)[graph.pred_kind == Dependency.HAND_OFF])
    last = measured_start[own[~calls]].max(initial=np.iinfo(np.int64).min)
    trailing: Int64 = own[calls & (measured_start[own] > last)]
    return trailing if np.isin(graph.kind[trailing], (Kind.SYNC, Kind.RETURN)).any() else trailing[:0]


def _fragments(graph: Graph, span: Int32, on_device: NDArray[np.bool_]) -> list[int]:
    """The last steps of ranks that the end of the recording cut, as indices into `graph.places`."""
    worked = grouped(span, len(graph.steps))
    tasks = [worked.flat[low:high] for low, high in pairwise(worked.offset.tolist())]
    out = []
    for rank in graph.ranks:
        own = [i for i, step in enumerate(graph.steps) if step.rank == rank and len(tasks[i]) and number_of(step.name) is not None]
        if len(own) < 2 or any(graph.steps[i].lane < 0 for i in own):
            continue
        operators = [_operators(graph, tasks[i], graph.steps[i]) for i in own]
        endings = [tuple(graph.name[of_step[-LAST_OPERATORS:]].tolist()) for of_step in operators]
        works = [int(on_device[tasks[i]].sum()) for i in own], [int(graph.duration[of_step].sum()) for of_step in operators]
        if any(work[-1] < _WHOLE * min(work[:-1]) for work in works) and endings[-1] not in endings[:-1]:
            out.append(own[-1])
    return out


def _operators(graph: Graph, tasks: Int64, step: Step) -> Int64:
    """The operators among tasks on the marked thread of a step."""
    lane = np.array([p.lane if p.rank == step.rank and not p.is_stream else -1 for p in graph.processors])
    chosen: Int64 = tasks[(graph.kind[tasks] == Kind.OPERATOR) & (lane[graph.processor[tasks]] == step.lane)]
    return chosen
