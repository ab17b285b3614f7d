"""Calls that wait for the device: synchronisations and blocking copies.

Each becomes two tasks: the call's own cost, and its return, which depends on the work that the call waits for. Which work
that is comes from the profiler's `cuda_sync` rows where the trace has them, else from the order of calls, for all repetitions of a
call in the code together (`graph.waits.issued`): a stream is awaited up to the last work issued to it before the call, an event up to
the work at a record call before it. Of several, the latest that no repetition refutes by returning before that work had ended. Where a
stream has as many events in a step as there are calls, they wait for the events in turn. The own cost is measured on calls that had
nothing to wait for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.graph.calls import Call
from lumos.graph.waits.issued import NO_TIME, REFUTED, Issued, alike_places, awaitable_from
from lumos.graph.waits.notes import noted
from lumos.trace.table import ABSENT, Category, Int8, Int32, Int64, Trace

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from lumos.graph.launches import DeviceWork
    from lumos.graph.waits.streams import StreamWaits

#: A call that returns within this time after the end of device work may have waited for that work (ns): an interrupt and
#: the wake-up of a thread take some 5-50 us.
WAKE_UP = 60_000

#: Largest pageable copy to the device that the CUDA runtime stages without waiting (bytes): CUDA C Programming Guide,
#: "API synchronization behavior".
STAGED_COPY = 64 * 1024

#: A synchronising call that had no work to wait for, and yet took at least this much longer than the usual call of its
#: kind, contains a wait that no rule explains (ns).
LONG_CALL = 20_000


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
    issued, notes = Issued(work), noted(trace, work, rows)
    kind, begin, finish = calls[rows], trace.start[rows], trace.start[rows] + trace.duration[rows]
    target, event = (np.full(len(rows), none, np.int32) for none in (NONE, ABSENT))
    awaited, resolved = np.full(len(rows), ABSENT, np.int64), np.ones(len(rows), bool)
    of_device = kind == Call.DEVICE_SYNC
    target[of_device] = _ALL
    awaited[of_device] = issued.last_of_all_before(begin[of_device])
    for of, named in ((Call.STREAM_SYNC, notes.stream), (Call.EVENT_SYNC, notes.source)):
        for stream in np.unique(named[(kind == of) & (named >= 0)]).tolist():
            here = np.flatnonzero((kind == of) & (named == stream))
            target[here] = stream
            recorded = notes.recorded[here] if of == Call.EVENT_SYNC else np.full(len(here), ABSENT)
            awaited[here] = issued.marked(stream, recorded, begin[here], finish[here])
        here = np.flatnonzero((kind == of) & (named < 0))
        found = _inferred(trace, calls, issued, rows[here])
        target[here], awaited[here], resolved[here] = found.stream, found.work, found.stream != NONE
    on_event = kind == Call.EVENT_SYNC
    target[on_event], event[on_event] = NONE, awaited[on_event]
    awaited_end = np.where(awaited >= 0, np.append(work.end, 0)[awaited], ABSENT)
    own, unclaimed, waited = _own_costs(trace, rows, awaited_end, resolved)
    return Synchronisations(rows, target, event, own, unclaimed, waited, awaited_end)


class _Awaited(NamedTuple):
    """For each call: the stream that it waits for, NONE where none is known, and the last work that it awaits, ABSENT without any."""

    stream: Int32
    work: Int64


def _inferred(trace: Trace, calls: Int8, issued: Issued, rows: Int32) -> _Awaited:
    """What the synchronisations in `rows`, all of one kind and by start, wait for by the order of calls."""
    out = _Awaited(np.full(len(rows), NONE, np.int32), np.full(len(rows), ABSENT, np.int64))
    if not len(rows):
        return out
    begin, finish = trace.start[rows], trace.start[rows] + trace.duration[rows]
    of_event = bool(calls[rows[0]] == Call.EVENT_SYNC)
    recorded = awaitable_from(trace, calls, issued) if of_event else None
    # where no event was recorded, any work may have had one behind it, but only repetitions can tell which
    never = np.full(len(issued.work), NO_TIME)
    any_work = issued.work.issued if of_event else never
    alike = alike_places(trace, issued.work, trace.lane[rows], begin)
    in_step = sum(map(len, alike))
    for places in alike:
        events = [recorded if recorded is not None else any_work if len(place) > 1 else never for place in places]
        best = []
        for stream in range(len(issued.work.streams)):
            choices = [[issued.sources(stream, begin[p], finish[p], e, last=recorded is None) for p, e in zip(places, events, strict=True)]]
            in_turn = issued.in_turn(stream, begin, finish, recorded, in_step) if recorded is not None and in_step > 1 else None
            if in_turn is not None:  # an event from before the recording does not tell more than the place
                by_place = zip(places, choices[0], strict=True)
                choices.append([np.where((in_turn[p] >= 0) & (work != REFUTED), in_turn[p], work) for p, work in by_place])
            explained = [_explained(issued, np.concatenate(places), np.concatenate(works), begin, finish) for works in choices]
            best.append(max(zip(explained, range(len(choices)), choices, strict=True))[::2])
        # Calls that are alike wait for one stream: the one that explains most of them, and of several the one issued to last.
        for i, place in enumerate(places):
            last = [(n, int(issued.work.issued[works[i].max()]), s) for s, (n, works) in enumerate(best) if (works[i] >= 0).any()]
            if last:
                stream = max(last)[-1]
                work = best[stream][1][i]
                out.stream[place], out.work[place] = np.where(work >= 0, stream, NONE), work
    return out


def _explained(issued: Issued, calls: Int64, work: Int64, begin: Int64, finish: Int64) -> int:
    """How many of the calls that took long returned just after the work had ended that they may have awaited."""
    begin, finish = begin[calls], finish[calls]
    end = np.where(work >= 0, issued.work.end[np.maximum(work, 0)], begin)
    return int(((finish - begin >= LONG_CALL) & (end > begin) & (finish - end <= WAKE_UP)).sum())


class _OwnCosts(NamedTuple):
    """For every call: its own cost, the part of it that is a wait which no rule explains (both ns), and whether it waited."""

    own: Int64
    unclaimed: Int64
    waited: NDArray[np.bool_]


def _own_costs(trace: Trace, rows: Int32, awaited_end: Int64, resolved: NDArray[np.bool_]) -> _OwnCosts:
    """What the calls themselves cost.

    A call that waited costs the median of the calls of its name that had nothing to wait for. Where there are none, it costs as much
    as the shortest call of which that is not known (not `resolved`), unless that is long too, or nothing. Any other call costs its
    measured time, and where that exceeds the usual cost by LONG_CALL, it contains a wait.
    """
    begin, duration = trace.start[rows], trace.duration[rows]
    waited = awaited_end > begin
    own, unclaimed = duration.copy(), np.zeros(len(rows), np.int64)
    for name in trace.names_of(rows):
        of_kind = trace.name[rows] == name
        idle, short = of_kind & ~waited & resolved, of_kind & ~resolved & (duration < LONG_CALL)
        costs = duration[idle] if idle.any() else np.sort(duration[short])[:1]
        usual = int(np.median(costs)) if len(costs) else 0
        blocked = of_kind & waited
        own[blocked] = np.minimum(usual, duration[blocked])
        long = of_kind & ~waited & (duration - usual >= LONG_CALL)
        unclaimed[long] = duration[long] - usual
    return _OwnCosts(own, unclaimed, waited)


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
    found = [i for i in trace.names_of(rows) if any(word in trace.strings[i] for word in words)]
    return np.isin(trace.name[rows], found)
