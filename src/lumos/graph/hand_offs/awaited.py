"""Which collectives of other CPU threads a thread waited for.

A thread that issues collectives to others (gloo's, MPI's) waits for them later, in the order in which it issued them: in an operator
that does nothing else (`wait_tensor`), or between operators, where no row says so: such a wait is a pause.

The row of a collective may end late. The thread that carried it out says first that it is over and ends its row afterwards; where
it loses its CPU in between, that is some milliseconds later, and the waiting thread has long gone on. Such a collective was over
when the waiting thread went on, and the rest of its row is time of its own thread.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.graph.joined.collectives import is_cpu_collective, issuers
from lumos.trace.table import ABSENT, unique

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from lumos.graph.hand_offs.slices import HostSlices
    from lumos.trace.table import Int64, Trace

#: A row ends at most this much after its collective was over (ns): its thread gets a CPU back after a few time slices of the
#: scheduler, of 3 to 6 ms each on Linux.
LATEST_END = 50_000_000

#: Operators that only wait for a collective that their thread issued.
_WAITS = re.compile(r"_?c10d_functional::wait_tensor$")


class _Collectives(NamedTuple):
    """The collectives of one issuing thread in the order in which it issued them, int64[k].

    slice: the last slice of each row. issued: when it had been, and start, end: of its row, ns.
    """

    slice: Int64
    issued: Int64
    start: Int64
    end: Int64


@dataclass(frozen=True, slots=True, eq=False)
class Awaited:
    """The collective slices that pauses waited for.

    pause: bool[slices], slices that may be waits. source: int64[slices], the collective that a pause waited for last, -1 without one.
    issuer: int64[slices], for the slices of a collective, the row that issued it, ABSENT elsewhere. issues: bool[lanes], threads that
    issue collectives: their pauses wait for no collective but these.
    """

    pause: NDArray[np.bool_]
    source: Int64
    issuer: Int64
    issues: NDArray[np.bool_]


def awaited(trace: Trace, slices: HostSlices, shortest: int) -> Awaited:
    """Find the pauses, which last at least `shortest` ns, and the collectives that they waited for."""
    source, issuer = (np.full(len(slices), ABSENT, np.int64) for _ in range(2))
    issues = np.zeros(len(trace.lanes), bool)
    long = slices.end - slices.start >= shortest
    of_row = np.flatnonzero((slices.row >= 0) & is_cpu_collective(trace)[slices.row])
    if not len(of_row):
        return Awaited((slices.row < 0) & long, source, issuer, issues)
    rows, last = np.unique(slices.row[of_row][::-1], return_index=True)
    ends = of_row[::-1][last]
    by_row = issuers(trace, rows)
    issuer[of_row] = by_row[np.searchsorted(rows, slices.row[of_row])]
    issues[trace.lane[by_row[by_row != ABSENT]]] = True
    waits = trace.named(_WAITS.match)
    pause = long & ((slices.row < 0) | (waits[slices.row] & issues[slices.lane]))
    for lane in np.flatnonzero(issues).tolist():
        own = (by_row != ABSENT) & (trace.lane[by_row] == lane)
        order = np.flatnonzero(own)[np.argsort(trace.start[by_row[own]], kind="stable")]
        row, by = rows[order], by_row[order]
        start, end = trace.start[row], trace.start[row] + trace.duration[row]
        collectives = _Collectives(ends[order], trace.start[by] + trace.duration[by], start, end)
        _of_thread(slices, np.flatnonzero(pause & (slices.lane == lane)), collectives, source)
    return Awaited(pause, source, issuer, issues)


def shortened(slices: HostSlices, source: Int64) -> HostSlices:
    """The slices in which a collective ends no later than the pause that waited for it; the time after it on its thread grows."""
    pause = np.flatnonzero(source >= 0)
    late = pause[slices.end[source[pause]] > slices.end[pause]]
    start, end = slices.start.copy(), slices.end.copy()
    np.minimum.at(end, source[late], slices.end[late])
    cut = unique(source[late])
    after = cut[cut + 1 < len(slices)] + 1
    after = after[(slices.lane[after] == slices.lane[after - 1]) & (slices.row[after] < 0)]
    start[after] = end[after - 1]
    return replace(slices, start=start, end=end)


def _of_thread(slices: HostSlices, pauses: Int64, collectives: _Collectives, source: Int64) -> None:
    """Set the sources of the pauses of one thread, which issued the `collectives`."""
    begin, end = slices.start[pauses], slices.end[pauses]
    oldest = np.searchsorted(np.maximum.accumulate(collectives.end), begin, "right")
    newest = np.searchsorted(collectives.issued, begin, "right")
    for i in np.flatnonzero(oldest < newest).tolist():
        outstanding = oldest[i] + np.flatnonzero(collectives.end[oldest[i] : newest[i]] > begin[i])
        source[pauses[i]] = _last_awaited(collectives, outstanding, int(begin[i]), int(end[i]))


def _last_awaited(collectives: _Collectives, outstanding: Int64, begin: int, end: int) -> int:
    """The slice of the last of the outstanding collectives that the pause [begin, end) waited for, ABSENT without one.

    Collectives are awaited in order. One whose row ends after the pause counts where the row goes on for less time than the thread
    had waited for it alone.
    """
    over = np.append(collectives.end[outstanding] > end, True).argmax()
    waited, last = begin, ABSENT
    if over:
        last = outstanding[collectives.end[outstanding[:over]].argmax()]
        waited = collectives.end[last]
    if over < len(outstanding):
        next_one = outstanding[over]
        alone = end - max(waited, collectives.start[next_one])
        if collectives.start[next_one] < end and collectives.end[next_one] - end < min(alone, LATEST_END):
            last = next_one
    return int(collectives.slice[last]) if last != ABSENT else ABSENT
