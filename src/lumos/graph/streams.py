"""Streams that wait for each other: cudaStreamWaitEvent behind cudaEventRecord.

Exact where the trace has `cuda_sync` rows (Stream Wait Event: which stream waits, on which, since which record).
Elsewhere inferred from the order of calls, as a reader of the program would: the waiting stream is the one that the next
launch after the wait goes to; the awaited work is the last that was issued to another stream before the event was
recorded, or before the wait where the trace has no records. Measured times only ever refute such a pair (work that
started before the other ended did not wait for it), never suggest one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lumos.graph.calls import Call
from lumos.graph.launches import DeviceWork
from lumos.graph.syncs import Issued, _note_stream, _Note, _sync_notes
from lumos.trace.table import ABSENT, Category, Int8, Int32, Int64, Trace

#: The launch that a wait is for follows within so many launches (an autograd thread waits, the main thread launches).
LAUNCHES_AHEAD = 8


@dataclass(frozen=True, slots=True, eq=False)
class StreamWaits:
    """work[i] starts only when source[i] has ended; both index DeviceWork. exact: from the profiler's own rows."""

    work: Int64
    source: Int64
    exact: int
    inferred: int
    unresolved: int


def stream_waits(trace: Trace, calls: Int8, work: DeviceWork) -> StreamWaits:
    """The waits between the streams of one rank."""
    waits = np.flatnonzero(calls == Call.STREAM_WAIT)
    waits = waits[np.argsort(trace.start[waits], kind="stable")]
    if not len(waits) or not len(work):
        return StreamWaits(np.empty(0, np.int64), np.empty(0, np.int64), 0, 0, len(waits))
    issued = Issued(work)
    notes = _sync_notes(trace)
    records = np.sort(trace.start[calls == Call.EVENT_RECORD])
    launched = np.flatnonzero(work.call >= 0)
    by_call = launched[np.argsort(work.call_start[launched], kind="stable")]
    by_call_start = work.call_start[by_call]
    pairs: list[tuple[int, int]] = []
    exact = unresolved = 0
    for row in waits:
        note = notes.get(int(trace.correlation[row]))
        time = int(trace.start[row])
        if note is not None and note.source_stream != ABSENT:
            pair = _exact(trace, issued, note, time)
            exact += pair is not None
        elif notes:
            continue  # Kineto writes no row for a wait on a stream without work: nothing to wait for
        else:
            at = int(np.searchsorted(by_call_start, time, "left"))
            pair = _inferred(issued, by_call[at : at + LAUNCHES_AHEAD], time, records)
        if pair is None:
            unresolved += 1
        else:
            pairs.append(pair)
    found = np.array(sorted(set(pairs)), np.int64).reshape(-1, 2)
    return StreamWaits(found[:, 0], found[:, 1], exact, len(pairs) - exact, unresolved)


def _exact(trace: Trace, issued: Issued, note: _Note, time: int) -> tuple[int, int] | None:
    """The pair that a Stream Wait Event row names; None where either stream shows no work there."""
    stream_of = {pair: i for i, pair in enumerate(issued.work.streams)}
    waiting = _note_stream(stream_of, note.device, note.stream)
    awaited = _note_stream(stream_of, note.device, note.source_stream)
    if waiting is None or awaited is None:
        return None
    record = np.flatnonzero((trace.correlation == note.record) & (trace.category == Category.RUNTIME)) if note.record != ABSENT else []
    source = issued.last_before(awaited, int(trace.start[record[0]]) if len(record) else time)
    follower = issued.last_before(waiting, time) + 1 if issued.last_before(waiting, time) != ABSENT else int(issued.bounds[waiting])
    if source == ABSENT or follower >= issued.bounds[waiting + 1]:
        return None
    return follower, source


def _inferred(issued: Issued, ahead: Int64, time: int, records: Int64) -> tuple[int, int] | None:
    """The pair that the order of calls suggests; None where measured times refute every candidate."""
    work = issued.work
    at = int(np.searchsorted(records, time, "right")) - 1
    recorded = int(records[at]) if at >= 0 else time
    for follower in ahead:
        candidates = []
        for stream in range(len(work.streams)):
            if stream == work.stream[follower]:
                continue
            source = issued.last_before(stream, recorded)
            while source != ABSENT and work.end[source] > work.start[follower]:
                source = source - 1 if source > issued.bounds[stream] else ABSENT
            if source != ABSENT:
                candidates.append(source)
        if candidates:
            return int(follower), max(candidates, key=lambda i: int(work.call_start[i]))
    return None
