"""Calls that wait for device work although their names do not say so: those that allocate, register or free memory, and polls of events.

A thread that asks again and again, at even times and doing nothing else in between, whether an event has come to pass waits for that event.
Its queries become one call, and so do those of every repetition of that place in the code, also where one query was enough. A thread that
asks of many events in a row, as an allocator does, asks for a moment only.

Whether a call that allocates waits depends on the driver, the size and what else is allocated, so that only its times can tell
(`graph.waits.solve`). It may wait for the last work of all streams that was issued before it, where that explains a call: it took longer
than on an idle device, and returned just after that work had ended. A place in the code where it returned before that end is refuted. Where
every call of a name that found the device at work waited for it, those that found it idle would have waited too.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.graph.launches import Call, classify, device_work
from lumos.graph.waits.issued import Issued
from lumos.graph.waits.solve import WAKE_UP, Awaitable, OpenWaits, repetitions, solve
from lumos.trace.table import ABSENT, Category, Int64, Trace, excluding, unique

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from lumos.graph.launches import DeviceWork
    from lumos.trace.table import Int8

#: So many calls of one name must wait, or one of them for so long (ns): a single short one may end with the device by chance.
FEWEST_WAITS, LONG_WAIT = 2, 1_000_000


#: So many queries in a row, for so long (ns), at times of which the longest is at most so many times the shortest, are a poll.
FEWEST_QUERIES, LONG_POLL, EVEN = 3, 50_000, 2.0


class Polls(NamedTuple):
    """A recording with one call in place of the queries of each poll, from the begin of the first to the return of the last; the other
    queries are no work. call: int64[k], the rows of these calls. late: ns by which all of them together may return after their events."""

    trace: Trace
    call: Int64
    late: int = 0


def polls(trace: Trace) -> Polls:
    """The loops that ask for an event until it has come to pass."""
    none = Polls(trace, np.empty(0, np.int64))
    calls = classify(trace)
    operates = np.zeros(len(trace.lanes), bool)
    operates[trace.lane[trace.category == Category.OPERATOR]] = True
    queries = np.flatnonzero((calls == Call.QUERY) & operates[trace.lane])
    if len(queries) < FEWEST_QUERIES:
        return none
    queries = queries[np.lexsort((trace.start[queries], trace.lane[queries]))]
    end = trace.start + trace.duration
    bounds = np.append(0, np.flatnonzero(~_follows(trace, queries, end)) + 1)
    size = np.diff(np.append(bounds, len(queries)))
    first, last = queries[bounds], queries[bounds + size - 1]
    even, late = np.zeros(len(first), bool), list[int]()
    for run in np.flatnonzero((size >= FEWEST_QUERIES) & (end[last] - trace.start[first] >= LONG_POLL)).tolist():
        apart = np.diff(trace.start[queries[bounds[run] : bounds[run] + size[run]]])
        even[run] = apart.max() <= EVEN * apart.min()
        late.append(int(apart.mean()))
    if not even.any():
        return none
    category, duration = trace.category.copy(), trace.duration.copy()
    order = np.argsort(trace.start[first], kind="stable")
    poll_place = repetitions(trace, device_work(trace), first[order]).place
    runs = order[np.isin(poll_place, poll_place[even[order]])]
    for run in runs.tolist():
        category[queries[bounds[run] + 1 : bounds[run] + size[run]]] = Category.ANNOTATION
    duration[first[runs]] = end[last[runs]] - trace.start[first[runs]]
    return Polls(replace(trace, category=category, duration=duration), first[runs], len(runs) * round(np.mean(late)))


def _follows(trace: Trace, queries: Int64, end: Int64) -> NDArray[np.bool_]:
    """Whether each query but the first follows the one before on its thread, and no operator or other call begins or ends in between."""
    rows = excluding(np.flatnonzero(trace.is_any(Category.OPERATOR, Category.RUNTIME)), queries)
    out: NDArray[np.bool_] = trace.lane[queries[1:]] == trace.lane[queries[:-1]]
    for lane in unique(trace.lane[queries]).tolist():
        own = rows[trace.lane[rows] == lane]
        bounds, here = np.sort(np.concatenate((trace.start[own], end[own]))), trace.lane[queries] == lane
        out &= ~here[1:] | (np.diff(np.searchsorted(bounds, trace.start[queries], "right")) == 0)
    return out


def with_unsaid_waits(trace: Trace, calls: Int8, work: DeviceWork) -> Int8:
    """The `Call` of every row, where the calls that wait for all device work without saying so are among those that say so."""
    may = np.flatnonzero(calls == Call.MAY_WAIT)
    may = may[np.argsort(trace.start[may], kind="stable")]
    out, issued = calls.copy(), Issued.of(work, together=True)
    for name in trace.names_of(may):
        rows = may[trace.name[may] == name]
        begin, took = trace.start[rows], trace.duration[rows]
        idle = issued.ended_before(0, begin) <= begin
        usual = int(np.median(took[idle])) if idle.any() else 0
        call_place = repetitions(trace, work, rows).place
        waits = OpenWaits(call_place, call_place, call_place, rows, np.full(len(rows), ABSENT), begin, begin + took, begin + usual)
        row, _ = solve(issued, waits, [Awaitable(issued.issued, furthest=0, fewest=1)], usual + WAKE_UP)
        if len(row) >= FEWEST_WAITS or took[row].max(initial=0) >= LONG_WAIT:
            waited = np.isin(np.arange(len(rows)), row)
            out[rows[waited | (idle & (waited | idle).all())]] = Call.DEVICE_SYNC
    return out
