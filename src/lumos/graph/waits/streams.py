"""Streams that wait for each other: by cudaStreamWaitEvent on an event of cudaEventRecord, and around launches of whole graphs.

The waits for events are exact where the trace has `cuda_sync` rows (Stream Wait Event: which stream waits for which other one, as of
which record call). Elsewhere they are inferred from the order of calls (`graph.waits.solve`). The waiting stream is mostly
the one that the next launch after the wait goes to, the work held back the next that is launched to it, and the awaited work the latest on
another stream that an event can stand for. A wait without any holds nothing back, and is counted.

A graph is launched to the launching thread's current stream, taken to be the one that the thread last launched other work to: no
collective, as these have streams of their own. All of the graph's work follows what was issued to that stream before, and comes before
what is issued to it next, also on streams of the graph's own. What its work waits for among itself is not recorded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from lumos.graph.launches import Call, of_graph_launches
from lumos.graph.places import Ranges
from lumos.graph.waits.issued import Issued, issued_together, noted
from lumos.graph.waits.solve import Awaitable, OpenWaits, repetitions, solve
from lumos.trace.table import ABSENT, Int8, Int32, Int64, Trace, excluding, unique

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


def graph_order(trace: Trace, work: DeviceWork) -> tuple[Int64, Int64]:
    """Pairs of device work, one of each pair part of a graph: the second follows the first. int64[k] indices into `work`."""
    in_graph = of_graph_launches(trace, work)
    if not in_graph.any():
        return np.empty(0, np.int64), np.empty(0, np.int64)
    graphs, issued = unique(work.call[in_graph]), Issued.of(work)
    stream = _current_streams(trace, work, np.flatnonzero((work.call >= 0) & ~in_graph & ~work.communicates), graphs)
    before, after = issued.last_before(stream, trace.start[graphs]), issued.next_after(stream, trace.start[graphs] + 1)
    members = np.flatnonzero(in_graph)
    graph = np.searchsorted(graphs, work.call[members])
    elsewhere = work.stream[members] != stream[graph]
    members, graph = members[elsewhere], graph[elsewhere]
    branch = graph * len(work.streams) + work.stream[members]
    first = np.unique(branch, return_index=True)[1]
    last = len(branch) - 1 - np.unique(branch[::-1], return_index=True)[1]
    earlier, later = np.append(before[graph[first]], members[last]), np.append(members[first], after[graph[last]])
    pairs = np.unique(np.stack((earlier, later))[:, (earlier != ABSENT) & (later != ABSENT)], axis=1)
    return pairs[0], pairs[1]


def _current_streams(trace: Trace, work: DeviceWork, plain: Int64, graphs: Int32) -> Int64:
    """The streams that the threads of graph launches launched `plain` work to, last before them or else first after them; ABSENT without
    any."""
    launches, stream = Ranges(trace, work.call[plain]), np.full(len(trace) + 1, ABSENT, np.int64)
    stream[work.call[plain]] = work.stream[plain]
    last = launches.last(trace.lane[graphs], trace.start[graphs])
    first = np.append(launches.rows, ABSENT)[np.searchsorted(launches.lane, trace.lane[graphs])]
    own = (first != ABSENT) & (trace.lane[first] == trace.lane[graphs])
    return stream[np.where(last != ABSENT, last, np.where(own, first, ABSENT))]
