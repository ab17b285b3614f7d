"""Streams that wait for each other, by cudaStreamWaitEvent on an event of cudaEventRecord.

The waits are exact where the trace has `cuda_sync` rows (Stream Wait Event: which stream waits for which other one, as of
which record call). Elsewhere they are inferred from the order of calls: the waiting stream is the one that the next launch
after the wait goes to; the awaited work is the last that was issued to another stream before the event was recorded, or
before the wait where the trace has no record calls. Measured times may refute such a pair (work that started before
the other ended did not wait for it) but never suggest one.

Some profilers (ROCm's) record neither the wait calls nor the record calls. For their traces the rule of the frameworks
applies: a collective waits for the work issued before it (torch.distributed makes its stream wait for the caller's), and the
next work launched behind an operator that awaits the result (a recorded wait, DDP's copy of a bucket to the gradients,
wait_tensor) waits for the collective.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from lumos.graph.calls import Call
from lumos.graph.collectives import is_communication
from lumos.graph.syncs import Issued, Note, note_stream, record_time, sync_notes
from lumos.trace.table import ABSENT, Category, Int8, Int64, Trace

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from lumos.graph.launches import DeviceWork

#: The launch that a wait holds back is among the next so many (it need not be the first: the autograd thread may call the
#: wait while the main thread launches).
LAUNCHES_AHEAD = 8


@dataclass(frozen=True, slots=True, eq=False)
class StreamWaits:
    """Work work[i] starts only when source[i] has ended; both index DeviceWork.

    exact, inferred, unresolved: waits read from the profiler's own rows, inferred from the order of calls, and without a source.
    """

    work: Int64
    source: Int64
    exact: int
    inferred: int
    unresolved: int


def stream_waits(trace: Trace, calls: Int8, work: DeviceWork) -> StreamWaits:
    """The waits between the streams of one rank."""
    waits = np.flatnonzero(calls == Call.STREAM_WAIT)
    waits = waits[np.argsort(trace.start[waits], kind="stable")]
    communicates = is_communication(trace)[work.row]
    if not len(waits) and communicates.any():
        return _collective_waits(trace, work, communicates)
    if not len(waits) or not len(work):
        return StreamWaits(np.empty(0, np.int64), np.empty(0, np.int64), 0, 0, len(waits))
    issued = Issued(work)
    notes = sync_notes(trace)
    records = np.sort(trace.start[calls == Call.EVENT_RECORD])
    launched = np.flatnonzero(work.call >= 0)
    by_call = launched[np.argsort(work.issued[launched], kind="stable")]
    by_call_start = work.issued[by_call]
    names_source = any(note.source_stream != ABSENT for note in notes.values())
    stream_of = {pair: i for i, pair in enumerate(work.streams)}
    pairs: list[tuple[int, int]] = []
    exact = unresolved = 0
    for row in waits:
        note = notes.get(int(trace.correlation[row]))
        time = int(trace.start[row])
        if note is not None and note.source_stream != ABSENT:
            pair = _exact(trace, issued, note, time)
            exact += pair is not None
        elif names_source:
            continue  # Kineto writes no row where the awaited stream has no work: there is nothing to wait for
        else:  # no rows, or (CUDA 12.9 and later) rows that name only the waiting stream
            waiting = None if note is None else note_stream(stream_of, note.device, note.stream)
            at = int(np.searchsorted(by_call_start, time, "left"))
            ahead = by_call[at:] if waiting is None else by_call[at:][work.stream[by_call[at:]] == waiting]
            pair = _inferred(issued, ahead[:LAUNCHES_AHEAD], time, records)
        if pair is None:
            unresolved += 1
        else:
            pairs.append(pair)
    found = np.array(sorted(set(pairs)), np.int64).reshape(-1, 2)
    return StreamWaits(found[:, 0], found[:, 1], exact, len(pairs) - exact, unresolved)


def _exact(trace: Trace, issued: Issued, note: Note, time: int) -> tuple[int, int] | None:
    """The (waiting, awaited) work that a Stream Wait Event row names; None where either stream has no such work."""
    stream_of = {pair: i for i, pair in enumerate(issued.work.streams)}
    waiting = note_stream(stream_of, note.device, note.stream)
    awaited = note_stream(stream_of, note.device, note.source_stream)
    if waiting is None or awaited is None:
        return None
    source = issued.last_before(awaited, record_time(trace, note, time))
    before = issued.last_before(waiting, time)
    follower = int(issued.bounds[waiting]) if before == ABSENT else before + 1
    if source == ABSENT or follower >= issued.bounds[waiting + 1]:
        return None
    return follower, source


def _inferred(issued: Issued, ahead: Int64, time: int, records: Int64) -> tuple[int, int] | None:
    """The (waiting, awaited) work that the order of calls suggests; None where measured times refute every candidate."""
    work = issued.work
    at = int(np.searchsorted(records, time, "right")) - 1
    recorded = int(records[at]) if at >= 0 else time
    for follower in ahead:
        candidates = []
        for stream in range(len(work.streams)):
            source = _unrefuted(issued, stream, recorded, int(follower)) if stream != work.stream[follower] else ABSENT
            if source != ABSENT:
                candidates.append(source)
        if candidates:
            return int(follower), max(candidates, key=lambda i: int(work.issued[i]))
    return None


def _unrefuted(issued: Issued, stream: int, time: int, follower: int) -> int:
    """The last work that was issued to `stream` before `time` and had ended when `follower` started; ABSENT if none."""
    source = issued.last_before(stream, time)
    while source != ABSENT and issued.work.end[source] > issued.work.start[follower]:
        source = source - 1 if source > issued.bounds[stream] else ABSENT
    return source


#: Operators at which the result of a collective is awaited (torch.distributed, DDP, functional collectives).
_AWAITS = re.compile(r"copy_bucket_to_grad|wait_tensor|c10d::.*wait")


def _collective_waits(trace: Trace, work: DeviceWork, communicates: NDArray[np.bool_]) -> StreamWaits:
    """The waits around collectives where the trace records no waits at all."""
    issued = Issued(work)
    carries_collectives = np.zeros(len(work.streams), bool)
    carries_collectives[work.stream[communicates]] = True
    compute, transfer = np.flatnonzero(~carries_collectives), np.flatnonzero(carries_collectives)
    pairs: set[tuple[int, int]] = set()
    unresolved = 0
    launched = np.flatnonzero(work.call >= 0)
    for index in launched[communicates[launched]]:
        sources = [i for s in compute if (i := _unrefuted(issued, int(s), int(work.issued[index]), int(index))) != ABSENT]
        if sources:
            pairs.add((int(index), max(sources, key=lambda i: int(work.issued[i]))))
    users = launched[~carries_collectives[work.stream[launched]]]
    users = users[np.argsort(work.issued[users], kind="stable")]
    for time in _await_times(trace):
        at = int(np.searchsorted(work.issued[users], time, "left"))
        if at == len(users):
            continue
        sources = [i for s in transfer if (i := _unrefuted(issued, int(s), int(time), int(users[at]))) != ABSENT]
        if sources:
            pairs.add((int(users[at]), max(sources, key=lambda i: int(work.issued[i]))))
        else:
            unresolved += 1
    found = np.array(sorted(pairs), np.int64).reshape(-1, 2)
    return StreamWaits(found[:, 0], found[:, 1], 0, len(found), unresolved)


def _await_times(trace: Trace) -> Int64:
    """When operators that await a collective began."""
    awaits = trace.named(_AWAITS.search) & trace.is_any(Category.OPERATOR, Category.ANNOTATION)
    recorded = trace.args.get("Collective name")
    if recorded is not None and recorded.kind == "string":
        words = np.array([trace.strings[v] == "wait" for v in recorded.values])
        awaits[recorded.rows[words]] = True
    return np.sort(trace.start[awaits])
