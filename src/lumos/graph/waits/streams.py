"""Streams that wait for each other, by cudaStreamWaitEvent on an event of cudaEventRecord.

The waits are exact where the trace has `cuda_sync` rows (Stream Wait Event: which stream waits for which other one, as of
which record call). Elsewhere they are inferred from the order of calls (`graph.waits.solve`). The waiting stream is mostly
the one that the next launch after the wait goes to, the work held back the next that is launched to it, and the awaited work the latest on
another stream that an event can stand for. A wait without any holds nothing back, and is counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from lumos.graph.launches import Call
from lumos.graph.waits.issued import Issued, issued_together, noted
from lumos.graph.waits.solve import Awaitable, OpenWaits, repetitions, solve
from lumos.trace.table import ABSENT, Int8, Int32, Int64, Trace, excluding

if TYPE_CHECKING:
    from lumos.graph.launches import DeviceWork

#: The launch that a wait holds back is among the next so many (it need not be the first: the autograd thread may call the
#: wait while the main thread launches).
LAUNCHES_AHEAD = 8
#: A longer pause between the end of awaited work and the start of the work that waited for it has another cause (ns). ROCm takes 10 us.
LONGEST_DELAY = 20_000


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


def stream_waits(trace: Trace, calls: Int8, work: DeviceWork) -> StreamWaits:
    """The waits between the streams of one rank."""
    rows = np.flatnonzero(calls == Call.STREAM_WAIT).astype(np.int32)
    rows = rows[np.argsort(trace.start[rows], kind="stable")]
    notes = noted(trace, work, rows)
    known, unresolved = int((notes.source != ABSENT).sum()), 0
    issued, wait_place = Issued.of(work), repetitions(trace, work, rows).place
    if known:
        held = issued.next_after(notes.stream, trace.start[rows])
        source = issued.marked(notes.source, notes.recorded, np.append(work.start, 0)[held])
    else:
        waits = _may_hold(trace, work, issued, rows, wait_place, notes.stream)
        row, source = solve(issued, waits, _awaitable(trace, calls, work, issued), LONGEST_DELAY)
        unresolved = int(np.isin(wait_place, excluding(waits.place, waits.place[row])).sum())
        held, wait_place = waits.held[row], waits.place[row]
    real = (held != ABSENT) & (source != ABSENT)
    _, first = np.unique(held[real] * len(work) + source[real], return_index=True)
    held, source, wait_place = (column[real][first] for column in (held, source, wait_place))
    return StreamWaits(held, source, wait_place, known, 0 if known else len(rows) - unresolved, unresolved)


def _awaitable(trace: Trace, calls: Int8, work: DeviceWork, issued: Issued) -> list[Awaitable]:
    """What waits between streams may be for. An event that was not recorded may stand for whatever was issued before the wait."""
    events = np.sort(trace.start[calls == Call.EVENT_RECORD])
    if len(events):
        return [Awaitable(events, recorded=True)]
    return [Awaitable(issued.issued, furthest=0), Awaitable(issued_together(trace, work))]


def _may_hold(trace: Trace, work: DeviceWork, issued: Issued, rows: Int32, wait_place: Int64, named: Int64) -> OpenWaits:
    """The waits in `rows`, with the next work of the streams that may be the waiting one: of the `named` one, where it is noted, else of
    those to which is launched next after the first call of their place."""
    launches = np.flatnonzero(work.call >= 0)
    launches = launches[np.argsort(work.issued[launches], kind="stable")]
    _, first = np.unique(wait_place, return_index=True)
    at = np.searchsorted(work.issued[launches], trace.start[rows[first]], "left")[:, None] + np.arange(LAUNCHES_AHEAD)
    ahead = np.append(work.stream[launches], ABSENT)[np.minimum(at, max(len(launches) - 1, 0))]
    ahead = np.where(named[first, None] >= 0, named[first, None], ahead)
    for later in range(1, LAUNCHES_AHEAD):
        ahead[(ahead[:, :later] == ahead[:, later, None]).any(axis=1), later] = ABSENT
    wait, nth = np.nonzero(ahead[wait_place] != ABSENT)
    stream, called = ahead[wait_place[wait], nth], trace.start[rows[wait]]
    held = issued.next_after(stream, called)
    option = wait_place[wait] * LAUNCHES_AHEAD + nth
    ready = np.maximum(work.previous_end(), np.where(work.call >= 0, trace.start[work.call] + trace.duration[work.call], work.issued))
    waits = OpenWaits(wait_place[wait], option, option, held, stream, called, np.append(work.start, 0)[held], np.append(ready, 0)[held])
    return OpenWaits(*(column[held != ABSENT] for column in waits))  # nothing is held back where nothing is launched any more
