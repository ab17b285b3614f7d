"""Streams that wait for each other, by cudaStreamWaitEvent on an event of cudaEventRecord.

The waits are exact where the trace has `cuda_sync` rows (Stream Wait Event: which stream waits for which other one, as of
which record call). Elsewhere they are inferred from the order of calls, for all repetitions of a wait in the code together
(`graph.waits.issued`). The waiting stream is the one that the next launch after the wait goes to, the work held back the next that is
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
from lumos.graph.places import Ranges
from lumos.graph.waits.issued import REFUTED, Issued, awaitable_from, issued_together, recurrences
from lumos.graph.waits.notes import Notes, noted
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


class _Found(NamedTuple):
    """For each repetition of a wait: the work that is held back and the work that it waits for, ABSENT without; int64[k]."""

    held: Int64
    source: Int64


def stream_waits(trace: Trace, calls: Int8, work: DeviceWork) -> StreamWaits:
    """The waits between the streams of one rank."""
    rows = np.flatnonzero(calls == Call.STREAM_WAIT).astype(np.int32)
    rows = rows[np.argsort(trace.start[rows], kind="stable")]
    issued, notes = Issued(work), noted(trace, work, rows)
    exact = bool((notes.source != ABSENT).any())
    if not exact:
        inside = _inside_the_library(trace, work, rows)
        rows, notes = rows[~inside], Notes(*(column[~inside] for column in notes))
    awaitable = awaitable_from(trace, calls, issued)
    last = awaitable is None  # an event that was not recorded may stand for whatever was issued before the wait
    awaitable = issued_together(trace, work) if awaitable is None else awaitable
    ahead = _launches_ahead(work, trace.start[rows])
    pairs: dict[tuple[int, int], int] = {}
    unresolved = 0
    for place, same in enumerate(recurrences(trace, work, trace.lane[rows], trace.start[rows])):
        time, named = trace.start[rows[same]], Notes(*(column[same] for column in notes))
        if exact:
            found: _Found | None = _named(issued, named, time)
        else:
            waiting = [int(named.stream[0])] if named.stream[0] >= 0 else list(dict.fromkeys(ahead[same[0]].tolist()))
            found = _source(issued, waiting, time, awaitable, pairs, last=last)
        if found is None:
            unresolved += len(same)
            continue
        for held, source in zip(found.held.tolist(), found.source.tolist(), strict=True):
            if held != ABSENT and source != ABSENT:
                pairs.setdefault((held, source), place)
    table = np.array(sorted((*pair, place) for pair, place in pairs.items()), np.int64).reshape(-1, 3)
    known = int((notes.source != ABSENT).sum())
    return StreamWaits(table[:, 0], table[:, 1], table[:, 2], known, 0 if exact else len(rows) - unresolved, unresolved)


def _launches_ahead(work: DeviceWork, time: Int64) -> Int64:
    """The streams of the next LAUNCHES_AHEAD launches after each time, int64[k, launches]; of fewer where the recording ends."""
    launched = np.flatnonzero(work.call >= 0)
    launched = launched[np.argsort(work.issued[launched], kind="stable")]
    next_to = np.searchsorted(work.issued[launched], time, "left")[:, None] + np.arange(LAUNCHES_AHEAD)
    return work.stream[launched][np.minimum(next_to, len(launched) - 1)] if len(launched) else np.empty((len(time), 0), np.int64)


def _named(issued: Issued, notes: Notes, time: Int64) -> _Found:
    """What the profiler's own rows name. It writes none where the awaited stream has no work, and nothing waits where nothing had been
    issued to the awaited stream, or nothing is issued to the waiting one any more."""
    held, source = np.full(len(time), ABSENT, np.int64), np.full(len(time), ABSENT, np.int64)
    for waiting, awaited in {*zip(notes.stream.tolist(), notes.source.tolist(), strict=True)}:
        if waiting >= 0 and awaited >= 0:
            here = np.flatnonzero((notes.stream == waiting) & (notes.source == awaited))
            held[here] = issued.next_after(waiting, time[here])
            here = here[held[here] != ABSENT]
            source[here] = issued.marked(awaited, notes.recorded[here], time[here], issued.work.start[held[here]])
    return _Found(held, source)


def _source(
    issued: Issued, waiting: Sequence[int], time: Int64, awaitable: Int64, known: Container[tuple[int, int]], *, last: bool
) -> _Found | None:
    """What a wait in the code, called at `time`, holds back, and for what; None where its repetitions refute every candidate. Nothing is
    held back where nothing is launched any more. waiting: the streams that may be the waiting one, the likeliest first. known: what other
    waits hold back and for what. Nobody lets the same work wait for the same work twice, so of several candidates those come first that no
    other wait has."""
    nothing, repeated = True, None
    for stream in waiting:
        held = issued.next_after(stream, time)
        real = held != ABSENT
        if not real.any():
            continue
        nothing = False
        others = (other for other in range(len(issued.work.streams)) if other != stream)
        candidates = [issued.sources(other, time[real], issued.work.start[held[real]], awaitable, last=last) for other in others]
        candidates = [source for source in candidates if (source != REFUTED).all()]
        for source in sorted(candidates, key=lambda source: -int(issued.work.issued[source.max()])):
            found = _Found(held[real], source)
            if not all(pair in known for pair in zip(found.held.tolist(), source.tolist(), strict=True)):
                return found
            repeated = repeated or found
    return repeated or (_Found(time[:0], time[:0]) if nothing else None)


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
