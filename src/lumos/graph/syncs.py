"""Calls that wait for the device: synchronisations, blocking copies, and launches into a full queue.

Each becomes two tasks: the call's own cost, and its return, which depends on the work that the call waits for. Which work
that is comes from the profiler's `cuda_sync` rows where the trace has them, else from the order of calls: a synchronisation
waits for what was issued before it. The own cost is measured on calls that had nothing to wait for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.graph.calls import Call
from lumos.trace.table import ABSENT, Category, Int8, Int32, Int64, Trace

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from lumos.graph.launches import DeviceWork

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


class Issued:
    """The device work issued to each stream, searched by the time of the launching call."""

    def __init__(self, work: DeviceWork) -> None:
        self.work = work
        self.bounds = work.bounds()

    def last_before(self, stream: int, time: int) -> int:
        """Index of the last work on `stream` whose call started before `time`; ABSENT if none."""
        low, high = int(self.bounds[stream]), int(self.bounds[stream + 1])
        at = int(np.searchsorted(self.work.issued[low:high], time, "left"))
        return low + at - 1 if at else ABSENT

    def last_of_all_before(self, time: int) -> int:
        """Of the last work on each stream whose call started before `time`, the one that ended last; ABSENT if none."""
        last = [i for s in range(len(self.work.streams)) if (i := self.last_before(s, time)) != ABSENT]
        return max(last, key=lambda i: int(self.work.end[i]), default=ABSENT)


def synchronisations(trace: Trace, calls: Int8, work: DeviceWork) -> Synchronisations:
    """The synchronising calls of a trace, each with the work it waits for."""
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
            target[i] = _ALL
            awaited[i] = issued.last_of_all_before(begin)
        elif calls[row] == Call.STREAM_SYNC:
            known = None if note is None else note_stream(stream_of, note.device, note.stream)
            stream = _likely_stream(issued, begin, finish) if known is None else known
            target[i] = stream
            awaited[i] = issued.last_before(stream, begin) if stream >= 0 else ABSENT
        else:
            awaited[i] = _work_before_event(issued, note, trace, stream_of, begin, finish)
            event[i] = awaited[i]
    awaited_end = np.where(awaited >= 0, work.end[awaited], ABSENT) if len(work) else np.full(count, ABSENT, np.int64)
    own, unclaimed, waited = _own_costs(trace, calls, rows, awaited_end)
    return Synchronisations(rows, target, event, own, unclaimed, waited, awaited_end)


@dataclass(frozen=True, slots=True)
class Note:
    """A `cuda_sync` row: the streams and the event that a synchronising call, or a stream's wait, refers to."""

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
    """The index of the stream that a note names; None where the trace has no work on it."""
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
    """The stream that a synchronisation probably waited for, where the trace does not name it.

    Of the streams whose last issued work ended during the call, the one whose work ended last; where there is none, the
    stream that work was issued to last. NONE where nothing was issued.
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


def _work_before_event(
    issued: Issued, note: Note | None, trace: Trace, stream_of: dict[tuple[int, int], int], begin: int, finish: int
) -> int:
    """The last work that was issued before the event for which a call waits; ABSENT if none.

    Exact where a note names the stream; else the last work issued to the likely stream, if it ended before the call returned.
    """
    if note is not None and note.source_stream != ABSENT:
        stream = note_stream(stream_of, note.device, note.source_stream)
        return ABSENT if stream is None else issued.last_before(stream, record_time(trace, note, begin))
    stream = _likely_stream(issued, begin, finish)
    last = issued.last_before(stream, begin) if stream >= 0 else ABSENT
    return last if last != ABSENT and issued.work.end[last] <= finish else ABSENT


class _OwnCosts(NamedTuple):
    """For every call: its own cost, the part of it that is a wait which no rule explains (both ns), and whether it waited."""

    own: Int64
    unclaimed: Int64
    waited: NDArray[np.bool_]


def _own_costs(trace: Trace, calls: Int8, rows: Int32, awaited_end: Int64) -> _OwnCosts:
    """What the calls themselves cost.

    A call that waited costs the median of the calls of its kind that had nothing to wait for (0 where there are none). A
    call that had nothing to wait for costs its measured time.
    """
    begin, duration = trace.start[rows], trace.duration[rows]
    waited = awaited_end > begin
    own, unclaimed = duration.copy(), np.zeros(len(rows), np.int64)
    for kind in np.unique(calls[rows]):
        of_kind = calls[rows] == kind
        idle = of_kind & ~waited
        usual = int(np.median(duration[idle])) if idle.any() else 0
        blocked = of_kind & waited
        own[blocked] = np.minimum(usual, duration[blocked])
        long = idle & (duration - usual >= LONG_CALL)
        unclaimed[long] = duration[long] - usual
    return _OwnCosts(own, unclaimed, waited)


def blocking_copies(trace: Trace, calls: Int8, work: DeviceWork) -> BlockingCopies:
    """The copies that block their call.

    These are pageable copies from the device, pageable copies to it that are larger than what the runtime stages at once,
    copies by calls that always block, and copies that ran inside their call; never copies within a device or of pinned
    memory. The call's own cost is the time until the copy starts (staging) where the stream was idle; elsewhere the median
    of those times.
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
        alike = from_device[chosen] == direction
        usual = int(np.median(staging[alike & idle])) if (alike & idle).any() else 0
        own[alike & ~idle] = np.minimum(usual, staging[alike & ~idle])
    return BlockingCopies(index, own)


#: So many launches must begin at the largest count of outstanding launches before that count is taken for the queue's depth;
#: by chance there would be fewer.
FULL_QUEUE_SIGHTINGS = 100
#: A smaller count is not taken for the queue's depth (launches): CUDA's queue holds about 1,024, and loops in a program make
#: launches begin at smaller counts again and again.
SHALLOWEST_QUEUE = 900


class QueueDepth(NamedTuple):
    """depth: launches of the rank that may be outstanding, 0 where the trace shows no limit. order: launched work (indices into
    DeviceWork) in the order of the calls. outstanding: for each of these, the launches that had not ended when its call began, with those
    from before the recording. freed: where these were as many as the depth, the work (an index into DeviceWork) whose end made place;
    ABSENT elsewhere."""

    depth: int
    order: Int64
    outstanding: Int64
    freed: Int64


def queue_depth(work: DeviceWork) -> QueueDepth:
    """How many launches may be outstanding. There is a limit where many launches begin at the largest count that occurs."""
    launched = np.flatnonzero(work.call >= 0)
    order = launched[np.argsort(work.issued[launched], kind="stable")]
    early = np.flatnonzero((work.call < 0) & (work.issued == np.iinfo(np.int64).min))
    every = np.concatenate((early, order))
    by_end = every[np.argsort(work.end[every], kind="stable")]
    before = len(early) + np.arange(len(order))
    outstanding = before - np.searchsorted(work.end[by_end], work.issued[order], "left")
    freed = np.full(len(order), ABSENT, np.int64)
    if not len(order):
        return QueueDepth(0, order, outstanding, freed)
    most = int(outstanding.max())
    at_limit = int((outstanding >= most - 1).sum())
    if most < SHALLOWEST_QUEUE or at_limit < FULL_QUEUE_SIGHTINGS:
        return QueueDepth(0, order, outstanding, freed)
    blocked = np.flatnonzero(outstanding >= most)
    freed[blocked] = by_end[before[blocked] - most]
    return QueueDepth(most, order, outstanding, freed)
