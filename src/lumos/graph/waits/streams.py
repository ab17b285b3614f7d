"""Streams that wait for each other, by cudaStreamWaitEvent on an event of cudaEventRecord.

The waits are exact where the trace has `cuda_sync` rows (Stream Wait Event: which stream waits for which other one, as of
which record call). Elsewhere they are inferred from the order of calls, for all repetitions of a wait in the code together
(`graph.waits.recurrence`). The waiting stream is the one that the next launch after the wait goes to, the work held back the next that is
launched to it. The awaited work is the latest on another stream that an event can stand for (`graph.waits.issued`) and that no repetition
refutes by having started before it had ended; of several waits before one launch, each has awaited work of its own. Without such work the
wait is unresolved: it holds nothing back, and it is counted.

A communication library also lets its own streams wait for each other. Such a wait is called inside the library's call, behind its
launch; nothing in the trace waits for it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.graph.calls import Call
from lumos.graph.enclosing import Ranges
from lumos.graph.waits.issued import Issued, awaitable_from, issued_together
from lumos.graph.waits.notes import Note, note_stream, sync_notes
from lumos.graph.waits.recurrence import recurrences
from lumos.trace.table import ABSENT, Category, Int8, Int32, Int64, Trace

if TYPE_CHECKING:
    from collections.abc import Container, Sequence

    from numpy.typing import NDArray

    from lumos.graph.launches import DeviceWork

#: The launch that a wait holds back is among the next so many (it need not be the first: the autograd thread may call the
#: wait while the main thread launches).
LAUNCHES_AHEAD = 8


@dataclass(frozen=True, slots=True, eq=False)
class StreamWaits:
    """Work work[i] starts only when source[i] has ended; both index DeviceWork. Pairs with one number place[i] repeat the same wait.

    exact, inferred, unresolved: waits read from the profiler's own rows, inferred from the order of calls, and without a source.
    """

    work: Int64
    source: Int64
    place: Int64
    exact: int
    inferred: int
    unresolved: int


class _Recurring(NamedTuple):
    """One wait in the code. time: int64[k], when each repetition was called. waiting: the streams that may be the waiting one, the
    likeliest first. sources: the streams that may be awaited."""

    time: Int64
    waiting: Sequence[int]
    sources: Sequence[int]


def stream_waits(trace: Trace, calls: Int8, work: DeviceWork) -> StreamWaits:
    """The waits between the streams of one rank."""
    rows = np.flatnonzero(calls == Call.STREAM_WAIT).astype(np.int32)
    rows = rows[np.argsort(trace.start[rows], kind="stable")]
    issued, notes = Issued(work), sync_notes(trace)
    if len(rows) and any(note.source_stream != ABSENT for note in notes.values()):
        return _exact(trace, issued, notes, rows)
    waits = _recorded(trace, issued, notes, rows[~_inside_the_library(trace, work, rows)])
    awaitable = awaitable_from(trace, calls, issued)
    last = awaitable is None  # an event that was not recorded may stand for whatever was issued before the wait
    awaitable = issued_together(trace, work) if awaitable is None else awaitable
    pairs: dict[tuple[int, int], int] = {}
    inferred = unresolved = 0
    for place, wait in enumerate(waits):
        found = _source(issued, wait, awaitable, pairs, last=last)
        if found is None:
            unresolved += len(wait.time)
            continue
        inferred += len(wait.time)
        for held, source in zip(found.held.tolist(), found.source.tolist(), strict=True):
            if held != ABSENT and source != ABSENT:
                pairs.setdefault((held, source), place)
    return _waits(pairs, 0, inferred, unresolved)


def _waits(pairs: dict[tuple[int, int], int], exact: int, inferred: int, unresolved: int) -> StreamWaits:
    table = np.array(sorted((*pair, place) for pair, place in pairs.items()), np.int64).reshape(-1, 3)
    return StreamWaits(table[:, 0], table[:, 1], table[:, 2], exact, inferred, unresolved)


def _exact(trace: Trace, issued: Issued, notes: dict[int, Note], rows: Int32) -> StreamWaits:
    """The waits that the profiler's own rows name. It writes no row where the awaited stream has no work: nothing is waited for."""
    stream_of = {pair: i for i, pair in enumerate(issued.work.streams)}
    pairs: dict[tuple[int, int], int] = {}
    exact = 0
    for place, calls in enumerate(recurrences(trace, issued.work, trace.lane[rows], trace.start[rows])):
        for row in rows[calls].tolist():
            note = notes.get(int(trace.correlation[row]))
            if note is not None and note.source_stream != ABSENT:
                exact += 1
                pair = _named(issued, stream_of, note, int(trace.start[row]))
                if pair is not None:
                    pairs.setdefault(pair, place)
    return _waits(pairs, exact, 0, 0)


def _named(issued: Issued, stream_of: dict[tuple[int, int], int], note: Note, time: int) -> tuple[int, int] | None:
    """The (waiting, awaited) work that a Stream Wait Event row names; None where nothing had been issued to the awaited stream, or nothing
    is issued to the waiting one any more: then nothing waits."""
    waiting = note_stream(stream_of, note.device, note.stream)
    awaited = note_stream(stream_of, note.device, note.source_stream)
    if waiting is None or awaited is None:
        return None
    held = issued.next_after(waiting, time)
    source = ABSENT if held == ABSENT else issued.marked(awaited, note.recorded, time, int(issued.work.start[held]))
    return None if source == ABSENT else (held, source)


class _Found(NamedTuple):
    """For each repetition of a wait: the work that is held back and the work that it waits for, ABSENT without; int64[k]."""

    held: Int64
    source: Int64


def _source(issued: Issued, wait: _Recurring, awaitable: Int64, known: Container[tuple[int, int]], *, last: bool) -> _Found | None:
    """What a wait in the code holds back, and for what; None where its repetitions refute every candidate. Nothing is held back where
    nothing is launched any more. known: what other waits hold back and for what. Nobody lets the same work wait for the same work twice, so
    of several candidates those come first that no other wait has."""
    start = issued.work.start
    nothing, repeated = True, None
    for waiting in wait.waiting:
        held = np.array([issued.next_after(waiting, time) for time in wait.time.tolist()], np.int64)
        real = np.flatnonzero(held != ABSENT)
        if not len(real):
            continue
        nothing = False
        candidates = []
        for stream in wait.sources:
            if stream != waiting:
                source = issued.sources(stream, wait.time[real], start[held[real]], awaitable, last=last)
                if source is not None:
                    candidates.append(source)
        candidates.sort(key=lambda source: -int(issued.work.issued[source.max()]))
        for source in candidates:
            found = _Found(held[real], source)
            if not all(pair in known for pair in zip(found.held.tolist(), source.tolist(), strict=True)):
                return found
            repeated = repeated or found
    return repeated or (_Found(np.empty(0, np.int64), np.empty(0, np.int64)) if nothing else None)


def _recorded(trace: Trace, issued: Issued, notes: dict[int, Note], rows: Int32) -> list[_Recurring]:
    """The waits of the calls in `rows`, by start. Notes of CUDA 12.9 and later name only the waiting stream."""
    work = issued.work
    stream_of = {pair: i for i, pair in enumerate(work.streams)}
    launched = np.flatnonzero(work.call >= 0)
    launched = launched[np.argsort(work.issued[launched], kind="stable")]
    start = work.issued[launched]
    out = []
    for calls in recurrences(trace, work, trace.lane[rows], trace.start[rows]):
        time = trace.start[rows[calls]]
        at = int(np.searchsorted(start, time[0], "left"))
        note = notes.get(int(trace.correlation[rows[calls[0]]]))
        named = None if note is None else note_stream(stream_of, note.device, note.stream)
        ahead = [named] if named is not None else list(dict.fromkeys(work.stream[launched[at : at + LAUNCHES_AHEAD]].tolist()))
        out.append(_Recurring(time, ahead, range(len(work.streams))))
    return out


#: The ranges in which communication libraries are called.
_LIBRARY = re.compile(r"(nccl|rccl):")


def _inside_the_library(trace: Trace, work: DeviceWork, rows: Int32) -> NDArray[np.bool_]:
    """Which wait calls a communication library makes for streams of its own: those in its call, behind its launch."""
    calls = np.flatnonzero(trace.named(_LIBRARY.match) & trace.is_any(Category.OPERATOR, Category.ANNOTATION))
    launches = work.call[work.communicates & (work.call >= 0)]
    lane, time = trace.lane[rows], trace.start[rows]
    call, launch = Ranges(trace, calls).at(lane, time), Ranges(trace, launches).last(lane, time)
    inside: NDArray[np.bool_] = (call != ABSENT) & (launch != ABSENT) & (trace.start[launch] >= trace.start[call])
    return inside
