"""Calls that wait for the device: synchronisations, blocking copies, and launches into a full queue.

Each becomes two tasks: the call's own cost, and its return behind the work it waits for. Which work that is comes from
the profiler's `cuda_sync` rows where the trace has them, else from the order of calls: a synchronisation waits for what
was issued before it. The own cost is measured on calls that found nothing to wait for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lumos.graph.calls import Call
from lumos.graph.launches import DeviceWork
from lumos.trace.table import ABSENT, Category, Int8, Int32, Int64, Trace

#: A call that returns within this of the end of device work may have waited for that work (ns): an interrupt and a
#: thread's wake-up take some 5-50 us.
WAKE_UP = 60_000

#: Largest pageable copy to the device that the CUDA runtime stages without waiting (bytes): CUDA C Programming Guide,
#: "API synchronization behavior".
STAGED_COPY = 64 * 1024

#: Synchronising calls that take at least this much longer than their kind's own cost, without any work to wait for,
#: hold a wait that no rule explains (ns).
LONG_CALL = 20_000


@dataclass(frozen=True, slots=True, eq=False)
class Synchronisations:
    """Synchronising calls of one rank, by start.

    row: row of the Trace. target: stream (index into DeviceWork.streams) whose issued work the call awaits, ALL for all,
    NONE where it awaits `event`. event: index of the DeviceWork entry behind an event, ABSENT if none was issued.
    own: ns of the call itself. kept: ns of `own` that are an unexplained wait. waited: the measured call waited.
    awaited_end: measured end of what it awaited, ABSENT if nothing.
    """

    row: Int32
    target: Int32
    event: Int32
    own: Int64
    kept: Int64
    waited: NDArray[np.bool_]
    awaited_end: Int64


ALL = -1
NONE = -2


@dataclass(frozen=True, slots=True, eq=False)
class BlockingCopies:
    """Copies whose call returns when they are done: work[i] (DeviceWork index), and ns of the call before the copy may start."""

    work: Int64
    own: Int64


class Issued:
    """What was issued to each stream, by the time of the launching call."""

    def __init__(self, work: DeviceWork) -> None:
        self.work = work
        self.bounds = work.bounds()

    def last_before(self, stream: int, time: int) -> int:
        """Index of the last work on `stream` whose call started before `time`; ABSENT if none."""
        low, high = int(self.bounds[stream]), int(self.bounds[stream + 1])
        at = int(np.searchsorted(self.work.issued[low:high], time, "left"))
        return low + at - 1 if at else ABSENT

    def last_of_all_before(self, time: int) -> int:
        """The same over all streams: the piece that ended last."""
        found = [i for s in range(len(self.work.streams)) if (i := self.last_before(s, time)) != ABSENT]
        return max(found, key=lambda i: int(self.work.end[i]), default=ABSENT)


def synchronisations(trace: Trace, calls: Int8, work: DeviceWork) -> Synchronisations:
    """The synchronising calls of a trace, each with what it awaits."""
    rows = np.flatnonzero((calls >= Call.DEVICE_SYNC) & (calls <= Call.EVENT_SYNC)).astype(np.int32)
    rows = rows[np.argsort(trace.start[rows], kind="stable")]
    issued = Issued(work)
    notes = sync_notes(trace)
    stream_of = {pair: i for i, pair in enumerate(work.streams)}
    count = len(rows)
    target, event = np.full(count, NONE, np.int32), np.full(count, ABSENT, np.int32)
    awaited = np.full(count, ABSENT, np.int64)
    for i, row in enumerate(rows):
        begin, finish = int(trace.start[row]), int(trace.start[row] + trace.duration[row])
        note = notes.get(int(trace.correlation[row]))
        if calls[row] == Call.DEVICE_SYNC:
            target[i] = ALL
            awaited[i] = issued.last_of_all_before(begin)
        elif calls[row] == Call.STREAM_SYNC:
            known = None if note is None else note_stream(stream_of, note.device, note.stream)
            stream = _likely_stream(issued, begin, finish) if known is None else known
            target[i] = stream
            awaited[i] = issued.last_before(stream, begin) if stream >= 0 else ABSENT
        else:
            awaited[i] = _behind_event(issued, note, trace, stream_of, begin, finish)
            event[i] = awaited[i]
    awaited_end = np.where(awaited >= 0, work.end[awaited], ABSENT) if len(work) else np.full(count, ABSENT, np.int64)
    own, kept, waited = _own_costs(trace, calls, rows, awaited_end)
    return Synchronisations(rows, target, event, own, kept, waited, awaited_end)


@dataclass(frozen=True, slots=True)
class Note:
    """A `cuda_sync` row: what a synchronising call, or a stream's wait, refers to."""

    device: int
    stream: int
    source_stream: int
    record: int  # correlation of the event's record call, ABSENT if unknown


def sync_notes(trace: Trace) -> dict[int, Note]:
    """`cuda_sync` rows by the correlation of their call."""
    rows = np.flatnonzero(trace.category == Category.SYNC)
    if not len(rows):
        return {}
    columns = [trace.dense(key)[rows] for key in ("device", "stream", "wait_on_stream", "wait_on_cuda_event_record_corr_id")]
    return {int(c): Note(*map(int, values)) for c, *values in zip(trace.correlation[rows], *columns, strict=True)}


def note_stream(stream_of: dict[tuple[int, int], int], device: int, stream: int) -> int | None:
    """The stream a note names; None where it names none that this trace shows work on."""
    if (device, stream) in stream_of:
        return stream_of[device, stream]
    same = [i for (_, s), i in stream_of.items() if s == stream]
    return same[0] if len(same) == 1 else None


def record_time(trace: Trace, note: Note, otherwise: int) -> int:
    """When the event that a note refers to was recorded; `otherwise` where the trace has no row of that call."""
    record = (
        np.flatnonzero((trace.correlation == note.record) & (trace.category == Category.RUNTIME)) if note.record != ABSENT else _NO_ROWS
    )
    return int(trace.start[record[0]]) if len(record) else otherwise


_NO_ROWS = np.empty(0, np.int64)


def _likely_stream(issued: Issued, begin: int, finish: int) -> int:
    """The stream that a synchronisation of unknown stream waited for.

    The one whose last issued work ended last before the call returned; where none had work left to wait for, the one
    that work was issued to last. NONE where nothing was issued.
    """
    best, best_end, latest, latest_call = NONE, begin, NONE, -1
    for stream in range(len(issued.work.streams)):
        last = issued.last_before(stream, begin)
        if last == ABSENT:
            continue
        end, call = int(issued.work.end[last]), int(issued.work.issued[last])
        if best_end < end <= finish:
            best, best_end = stream, end
        if call > latest_call:
            latest, latest_call = stream, call
    return best if best != NONE else latest


def _behind_event(issued: Issued, note: Note | None, trace: Trace, stream_of: dict[tuple[int, int], int], begin: int, finish: int) -> int:
    """The work behind the event that a call awaits: exact from a note, else the last issued work that ended before the return."""
    if note is not None and note.source_stream != ABSENT:
        stream = note_stream(stream_of, note.device, note.source_stream)
        return ABSENT if stream is None else issued.last_before(stream, record_time(trace, note, begin))
    stream = _likely_stream(issued, begin, finish)
    last = issued.last_before(stream, begin) if stream >= 0 else ABSENT
    return last if last != ABSENT and issued.work.end[last] <= finish else ABSENT


class _OwnCosts(NamedTuple):
    """Of every call: its own cost, the part of it that nothing explains (both ns), and whether it waited."""

    own: Int64
    kept: Int64
    waited: NDArray[np.bool_]


def _own_costs(trace: Trace, calls: Int8, rows: Int32, awaited_end: Int64) -> _OwnCosts:
    """What the calls themselves cost.

    A call that waited costs what calls of its kind cost that found nothing to wait for (their median; 0 without one). A
    call that found nothing keeps its measured time.
    """
    begin, duration = trace.start[rows], trace.duration[rows]
    waited = awaited_end > begin
    own, kept = duration.copy(), np.zeros(len(rows), np.int64)
    for kind in np.unique(calls[rows]):
        of_kind = calls[rows] == kind
        idle = of_kind & ~waited
        usual = int(np.median(duration[idle])) if idle.any() else 0
        blocked = of_kind & waited
        own[blocked] = np.minimum(usual, duration[blocked])
        long = idle & (duration - usual >= LONG_CALL)
        kept[long] = duration[long] - usual
    return _OwnCosts(own, kept, waited)


def blocking_copies(trace: Trace, calls: Int8, work: DeviceWork) -> BlockingCopies:
    """The copies that block their call.

    Pageable copies from the device, pageable copies to it beyond what the runtime stages at once, the calls that block
    by definition, and copies that ran inside their call; never device-to-device or pinned. The call's own cost is the
    time until the copy starts (staging) where the stream was idle; elsewhere the median of those.
    """
    copies = np.flatnonzero((trace.category[work.row] == Category.MEMCPY) & (work.call >= 0))
    if not len(copies):
        return BlockingCopies(np.empty(0, np.int64), np.empty(0, np.int64))
    row, call = work.row[copies], work.call[copies]
    names = [trace.strings[i] for i in trace.name[row]]
    size = trace.dense("bytes")[row]
    call_start, call_end = trace.start[call], trace.start[call] + trace.duration[call]
    inside = (work.start[copies] >= call_start) & (work.end[copies] <= call_end)
    asynchronous = np.array(["Pinned" in n or "DtoD" in n or "Device -> Device" in n or "CopyDeviceToDevice" in n for n in names])
    pageable = np.array(["Pageable" in n for n in names])
    from_device = np.array(["DtoH" in n or "DeviceToHost" in n for n in names])
    large = np.where(size == ABSENT, inside, size > STAGED_COPY)
    blocking = ~asynchronous & ((pageable & (from_device | large)) | (calls[call] == Call.BLOCKING_COPY) | (~pageable & inside))
    chosen = np.flatnonzero(blocking)
    index = copies[chosen]
    staging = np.maximum(work.start[index] - call_start[chosen], 0)
    previous_end = np.where((index > 0) & (work.stream[index] == work.stream[index - 1]), work.end[index - 1], np.iinfo(np.int64).min)
    idle = previous_end <= call_start[chosen]
    own = staging.copy()
    for direction in (True, False):
        of = from_device[chosen] == direction
        usual = int(np.median(staging[of & idle])) if (of & idle).any() else 0
        own[of & ~idle] = np.minimum(usual, staging[of & ~idle])
    return BlockingCopies(index, own)


#: Launches that must have met a full queue before it is believed to exist: chance alone makes no such cluster.
FULL_QUEUE_SIGHTINGS = 100
#: Shallowest queue that is believed (launches): CUDA's holds about 1,024; smaller clusters come from loops in the program.
SHALLOWEST_QUEUE = 900


class QueueDepth(NamedTuple):
    """depth: launches of the rank that may be outstanding, 0 where the trace shows no limit. order: launched work (indices into
    DeviceWork) by call. outstanding: launches not yet done when the call of each began."""

    depth: int
    order: Int64
    outstanding: Int64


def queue_depth(work: DeviceWork) -> QueueDepth:
    """How many launches may be outstanding. A limit shows as many launches beginning at the same, largest count."""
    launched = np.flatnonzero(work.call >= 0)
    order = launched[np.argsort(work.issued[launched], kind="stable")]
    outstanding = np.arange(len(order)) - np.searchsorted(np.sort(work.end[order]), work.issued[order], "left")
    if not len(order):
        return QueueDepth(0, order, outstanding)
    most = int(outstanding.max())
    at_limit = int((outstanding >= most - 1).sum())
    full = most >= SHALLOWEST_QUEUE and at_limit >= FULL_QUEUE_SIGHTINGS
    return QueueDepth(most if full else 0, order, outstanding)
