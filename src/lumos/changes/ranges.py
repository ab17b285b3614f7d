"""What operators and annotated ranges did, as tasks: all that `operator:GLOB` means.

That is their own time and that of the operators and calls inside them; in a range also the time between these, such as Python or a sleep,
and of the operators around it, where most of it lies inside; the collectives that they issue and that another CPU thread carries out; what
another thread does for a range while the range waits for it, such as the backward pass; and the device work that all of that launches.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from lumos.analyze.loop.spans import launches
from lumos.graph.lists import list_of
from lumos.graph.places import innermost
from lumos.graph.table import Dependency, Graph, Kind
from lumos.intervals import Union, union, within
from lumos.trace.table import ABSENT, Category, Job, unique

if TYPE_CHECKING:
    from collections.abc import Callable

    from lumos.simulation.durations import Mask
    from lumos.trace.table import Int64, Trace


@lru_cache(maxsize=8)
def inside(graph: Graph, job: Job, matches: Callable[[str], object]) -> Mask:
    """The tasks of operators and ranges whose names match, bool[n], kept for the next question. job: from which `graph` was built.

    A graph that was not measured has no times that place what lies between operators, or on other threads, in a range: these are left out.
    """
    mask = np.zeros(len(graph), bool)
    rank, on_cpu = graph.rank_of_task, ~graph.on_device
    lane = np.array([processor.lane for processor in graph.processors], np.int64)[graph.processor]
    for trace in job.traces:
        rows = np.flatnonzero(trace.is_any(Category.OPERATOR, Category.ANNOTATION) & trace.named(matches))
        own = np.flatnonzero((rank == trace.rank) & on_cpu)
        tasks = own[graph.event[own] != ABSENT]
        events = graph.event[tasks].astype(np.int64)
        mask[tasks] = np.isin(events, rows) | (innermost(trace, rows, events) >= 0)
        if graph.measured_start is not None and graph.measured_end is not None:
            ranges = rows[trace.category[rows] == Category.ANNOTATION]
            for thread in unique(trace.lane[ranges]).tolist():
                mask[_during(graph, trace, own, lane, thread, ranges[trace.lane[ranges] == thread])] = True
    mask |= _issued(graph, mask)
    launch = launches(graph)
    launched = launch >= 0
    mask[launched] |= mask[launch[launched]]
    mask.setflags(write=False)
    return mask


def _during(graph: Graph, trace: Trace, own: Int64, lane: Int64, at: int, ranges: Int64) -> Int64:
    """Of a rank's CPU tasks `own`, those that take place in ranges of lane `at`, and the work of other threads, but no collectives, that
    takes place in a range while the range waits for it."""
    assert graph.measured_start is not None and graph.measured_end is not None
    begin = trace.start[ranges] - graph.origin
    spans = union(begin, begin + trace.duration[ranges])
    start, end = graph.measured_start[own], graph.measured_end[own]
    most = 2 * within(spans, start, end) > end - start
    elsewhere = np.isin(lane[own], _awaited_lanes(graph, lane, at, spans)) & (graph.kind[own] != Kind.COLLECTIVE)
    chosen: Int64 = own[most & ((lane[own] == at) | elsewhere)]
    return chosen


def _awaited_lanes(graph: Graph, lane: Int64, at: int, spans: Union) -> Int64:
    """The lanes for whose work lane `at` waits within the spans (ns)."""
    assert graph.measured_start is not None
    after, before = _hand_offs(graph)
    here = (lane[after] == at) & (graph.kind[before] != Kind.COLLECTIVE)
    after, before = after[here], before[here]
    time = graph.measured_start[after]
    lanes: Int64 = unique(lane[before[within(spans, time - 1, time) > 0]])
    return lanes


def _issued(graph: Graph, mask: Mask) -> Mask:
    """The collectives of CPU threads that tasks in the mask issued, and the time that their threads take to begin them, bool[n]."""
    after, before = _hand_offs(graph)
    issuer = np.full(len(graph), -1, np.int64)
    issuer[after] = before
    order = np.argsort(graph.processor, kind="stable")
    begins = (issuer[order] >= 0) | (np.diff(graph.processor[order], prepend=-1) != 0)
    first = np.maximum.accumulate(np.where(begins, np.arange(len(order)), 0))
    source = issuer[order[first]]
    wanted = (source >= 0) & mask[source]
    collective = graph.kind[order] == Kind.COLLECTIVE
    wake_up = (graph.kind[order] == Kind.HOST) & (np.arange(len(order)) == first + 1) & np.append(collective[1:], False)
    out = np.zeros(len(graph), bool)
    out[order] = wanted & (collective | wake_up)
    return out


def _hand_offs(graph: Graph) -> tuple[Int64, Int64]:
    """The dependencies between threads: the tasks that wait, and those that they wait for."""
    edges = np.flatnonzero(graph.pred_kind == Dependency.HAND_OFF)
    return list_of(graph.pred_offset)[edges].astype(np.int64), graph.pred[edges].astype(np.int64)
