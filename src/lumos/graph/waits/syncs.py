"""Calls that wait for the device: synchronisations and blocking copies.

Each becomes two tasks: the call's own cost, and its return, which depends on the work that the call waits for. Which work
that is comes from the profiler's `cuda_sync` rows where the trace has them, else from the order of calls (`graph.waits.solve`): a stream is
awaited up to the last work issued to it before the call, an event up to the work at a record call before it. Where a stream has as many
events in a step as there are calls, these may wait for the events in turn. The own cost is measured on calls that had nothing to wait for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from lumos.graph.launches import Call
from lumos.graph.waits.issued import NO_TIME, Issued, noted
from lumos.graph.waits.solve import LONG_CALL, WAKE_UP, Awaitable, OpenWaits, repetitions, solve
from lumos.trace.table import ABSENT, Category, Int8, Int32, Int64, Trace

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from lumos.graph.launches import DeviceWork
    from lumos.graph.waits.streams import StreamWaits

#: Largest pageable copy to the device that the CUDA runtime stages without waiting (bytes): CUDA C Programming Guide,
#: "API synchronization behavior".
STAGED_COPY = 64 * 1024


@dataclass(frozen=True, slots=True, eq=False)
class Synchronisations:
    """Synchronising calls of one rank, by start.

    row: row of the Trace. target: the stream (index into DeviceWork.streams) whose issued work the call waits for; ALL for all
    streams, NONE where it waits for `event`. event: the work before the recorded event (index into DeviceWork), ABSENT if none
    was issued. own: ns that the call itself costs. unclaimed: the part of `own` that is a wait which no rule explains, ns.
    waited: whether the measured call waited. awaited_end: measured end of the work it waited for, ABSENT if there was none.
    """

    row: Int32
    target: Int32
    event: Int32
    own: Int64
    unclaimed: Int64
    waited: NDArray[np.bool_]
    awaited_end: Int64


_ALL = -1
NONE = -2


@dataclass(frozen=True, slots=True, eq=False)
class BlockingCopies:
    """Copies whose call returns only when they have ended: work[i] indexes DeviceWork, own[i] is the ns of the call before the
    copy may start."""

    work: Int64
    own: Int64


def synchronisations(trace: Trace, calls: Int8, work: DeviceWork) -> Synchronisations:
    """The synchronising calls of a trace, each with the work it waits for."""
    rows = np.flatnonzero((calls >= Call.DEVICE_SYNC) & (calls <= Call.EVENT_SYNC)).astype(np.int32)
    rows = rows[np.argsort(trace.start[rows], kind="stable")]
    issued, notes = Issued.of(work), noted(trace, work, rows)
    kind, begin, finish = calls[rows], trace.start[rows], trace.start[rows] + trace.duration[rows]
    stream = np.where(kind == Call.STREAM_SYNC, notes.stream, notes.source)
    awaited = issued.marked(stream, notes.recorded, finish)
    for call_kind in (Call.STREAM_SYNC, Call.EVENT_SYNC):
        here = np.flatnonzero((kind == call_kind) & (stream < 0))
        awaited[here] = _inferred(trace, calls, work, issued, rows[here])
        stream[here] = np.append(work.stream, NONE)[awaited[here]]
    of_device, on_event = kind == Call.DEVICE_SYNC, kind == Call.EVENT_SYNC
    awaited_end = np.append(work.end, ABSENT)[awaited]
    stream[of_device], awaited_end[of_device] = _ALL, Issued.of(work, together=True).ended_before(0, begin[of_device])
    waited = awaited_end > begin
    own, unclaimed = _own_costs(trace, rows, waited, stream != NONE)
    target, event = np.where(on_event, NONE, stream).astype(np.int32), np.where(on_event, awaited, ABSENT).astype(np.int32)
    return Synchronisations(rows, target, event, own, unclaimed, waited, awaited_end)


def _inferred(trace: Trace, calls: Int8, work: DeviceWork, issued: Issued, rows: Int32) -> Int64:
    """The last work that synchronisations wait for by the order of calls, ABSENT without any. rows: of one kind, by start."""
    out = np.full(len(rows), ABSENT, np.int64)
    if not len(rows):
        return out
    call_place, alike = repetitions(trace, work, rows)
    events = np.sort(trace.start[calls == Call.EVENT_RECORD])
    if calls[rows[0]] == Call.STREAM_SYNC:
        awaitable = [Awaitable(issued.issued, furthest=0)]
    elif not len(events):  # any work may have had an event behind it, but only repetitions can tell which
        awaitable = [Awaitable(issued.issued, furthest=np.where(np.bincount(call_place)[call_place] > 1, NO_TIME, 0))]
    else:
        awaitable = [Awaitable(events, recorded=True, in_turn=int(call_place.max()) + 1), Awaitable(events, recorded=True)]
    call = np.arange(len(rows))
    begin, over = trace.start[rows], trace.start[rows] + trace.duration[rows]
    waits = OpenWaits(call_place, alike, call_place, call, np.full(len(rows), ABSENT), begin, over, begin)
    row, source = solve(issued, waits, awaitable, WAKE_UP)
    out[row] = source
    return out


def _own_costs(trace: Trace, rows: Int32, waited: NDArray[np.bool_], resolved: NDArray[np.bool_]) -> tuple[Int64, Int64]:
    """What the calls themselves cost, and the part of that which is a wait that no rule explains, ns.

    A call that waited costs the median of the calls of its name that had nothing to wait for. Where there are none, it costs as much
    as the shortest call of which that is not known (not `resolved`), unless that is long too, or nothing. Any other call costs its
    measured time, and where that exceeds the usual cost by LONG_CALL, it contains a wait.
    """
    own, beyond = trace.duration[rows], np.zeros(len(rows), np.int64)
    for name in trace.names_of(rows):
        of_kind = trace.name[rows] == name
        idle, short = of_kind & ~waited & resolved, of_kind & ~resolved & (own < LONG_CALL)
        costs = own[idle] if idle.any() else np.sort(own[short])[:1]
        usual = int(np.median(costs)) if len(costs) else 0
        beyond[of_kind] = np.maximum(own[of_kind] - usual, 0)
    return np.where(waited, own - beyond, own), np.where(~waited & (beyond >= LONG_CALL), beyond, 0)


def blocking_copies(trace: Trace, calls: Int8, work: DeviceWork, waits: StreamWaits) -> BlockingCopies:
    """The copies that block their call.

    These are pageable copies from the device, pageable copies to it that are larger than what the runtime stages at once,
    copies by calls that always block, and copies that ran inside their call; never copies within a device or of pinned
    memory. The call's own cost is the time until the copy starts (staging) where its stream was idle and waited for no other;
    elsewhere the median of those times.
    """
    copies = np.flatnonzero((trace.category[work.row] == Category.MEMCPY) & (work.call >= 0))
    if not len(copies):
        return BlockingCopies(np.empty(0, np.int64), np.empty(0, np.int64))
    row, call = work.row[copies], work.call[copies]
    size = trace.dense("bytes")[row]
    call_start, call_end = trace.start[call], trace.start[call] + trace.duration[call]
    inside = (work.start[copies] >= call_start) & (work.end[copies] <= call_end)
    asynchronous = _says(trace, row, "Pinned", "DtoD", "Device -> Device", "CopyDeviceToDevice")
    pageable = _says(trace, row, "Pageable")
    from_device = _says(trace, row, "DtoH", "DeviceToHost")
    large = np.where(size == ABSENT, inside, size > STAGED_COPY)
    blocking = ~asynchronous & ((pageable & (from_device | large)) | (calls[call] == Call.BLOCKING_COPY) | (~pageable & inside))
    chosen = np.flatnonzero(blocking)
    index = copies[chosen]
    staging = np.maximum(work.start[index] - call_start[chosen], 0)
    ready = work.previous_end()
    np.maximum.at(ready, waits.work, work.end[waits.source])
    idle = ready[index] <= call_start[chosen]
    own = staging.copy()
    for direction in (True, False):
        alike = from_device[chosen] == direction
        usual = int(np.median(staging[alike & idle])) if (alike & idle).any() else 0
        own[alike & ~idle] = np.minimum(usual, staging[alike & ~idle])
    return BlockingCopies(index, own)


def _says(trace: Trace, rows: Int32, *words: str) -> NDArray[np.bool_]:
    """Which rows have one of the words in their name, bool[rows]."""
    names = [i for i in trace.names_of(rows) if any(word in trace.strings[i] for word in words)]
    return np.isin(trace.name[rows], names)
