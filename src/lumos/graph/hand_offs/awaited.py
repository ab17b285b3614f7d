"""Which collectives of other CPU threads a thread waited for.

A thread that issues collectives to others (gloo's, MPI's) waits for them later, in the order in which it issued them: in an operator
that does nothing else (`wait_tensor`), or between operators, where no row says so. Such a wait is a pause at one place in the code, and
at that place the thread waits for the same collective of the step in every step. So the repetitions can refute a candidate: a place
waits for no collective that had not begun, or was usually not over, when the thread went on.

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
from lumos.graph.places import Places, places_in_code, step_at
from lumos.trace.table import ABSENT, Category

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from lumos.graph.hand_offs.slices import HostSlices
    from lumos.trace.table import Int32, Int64, Trace

#: A row ends at most this much after its collective was over (ns): its thread gets a CPU back after a few time slices of the
#: scheduler, of 3 to 6 ms each on Linux.
LATEST_END = 50_000_000
#: Where a place is repeated, its collective usually is over: half of the rows have at most so much time left (ns), or such a share.
USUALLY_LEFT = 1_000_000
USUAL_SHARE_LEFT = 0.1


#: Operators that only wait for a collective that their thread issued.
_WAITS = re.compile(r"_?c10d_functional::wait_tensor$")


class _Collective(NamedTuple):
    """One collective on a CPU thread. slice: the last slice of its row. number: how many the thread issued in the step before it."""

    slice: int
    issued: int
    start: int
    end: int
    step: int
    number: int


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
        pauses = np.flatnonzero(pause & (slices.lane == lane))
        _of_thread(trace, slices, pauses, waits, _in_order(trace, rows[own], ends[own], by_row[own]), source)
    return Awaited(pause, source, issuer, issues)


def shortened(slices: HostSlices, source: Int64) -> HostSlices:
    """The slices in which a collective ends no later than the pause that waited for it; the time after it on its thread grows."""
    pause = np.flatnonzero(source >= 0)
    late = pause[slices.end[source[pause]] > slices.end[pause]]
    start, end = slices.start.copy(), slices.end.copy()
    np.minimum.at(end, source[late], slices.end[late])
    cut = np.unique(source[late])
    after = cut[cut + 1 < len(slices)] + 1
    after = after[(slices.lane[after] == slices.lane[after - 1]) & (slices.row[after] < 0)]
    start[after] = end[after - 1]
    return replace(slices, start=start, end=end)


def _in_order(trace: Trace, rows: Int32, last: Int64, by: Int32) -> list[_Collective]:
    """The collectives of one issuing thread in the order in which it issued them."""
    order = np.argsort(trace.start[by], kind="stable")
    out: list[_Collective] = []
    steps = step_at(trace, trace.start[by])
    for i in order.tolist():
        begin, step = int(trace.start[rows[i]]), int(steps[i])
        number = out[-1].number + 1 if out and out[-1].step == step else 0
        issued = int(trace.start[by[i]] + trace.duration[by[i]])
        out.append(_Collective(int(last[i]), issued, begin, begin + int(trace.duration[rows[i]]), step, number))
    return out


def _of_thread(trace: Trace, slices: HostSlices, pauses: Int64, waits: NDArray[np.bool_], found: list[_Collective], source: Int64) -> None:
    """Set the sources of the pauses of one thread, which issued the collectives `found`. waits: bool[rows], operators that only wait."""
    last = np.maximum.accumulate(np.array([c.end for c in found]))
    issued = np.array([c.issued for c in found])
    begin, end = slices.start[pauses], slices.end[pauses]
    oldest, newest = np.searchsorted(last, begin, "right"), np.searchsorted(issued, begin, "right")
    under_way = oldest < newest
    if not under_way.any():
        return
    lane = slices.lane[pauses[0]]
    at = places_in_code(trace, np.flatnonzero((trace.lane == lane) & (trace.category == Category.OPERATOR)))
    left = np.where(waits[at.row], at.start + trace.duration[at.row], at.start)  # when the thread leaves a wait at this place
    refuted = _Refuted(at, left, found)
    # The place of a pause is the operator that waits, or else the next one.
    own = slices.row[pauses]
    place = np.where(own >= 0, at.begun_before(trace.start[own]), at.begun_before(end))
    for i in np.flatnonzero(under_way & (place >= 0)).tolist():
        here, step = int(at.place[place[i]]), int(at.step[place[i]])
        outstanding = [c for c in found[oldest[i] : newest[i]] if c.end > begin[i] and not refuted(here, step - c.step, c.number)]
        source[pauses[i]] = _last_awaited(outstanding, int(begin[i]), int(end[i]))


class _Refuted:
    """Whether some repetition of a place shows that the thread does not wait there for a collective: for that which was the
    `number`-th to be issued in a step, when the thread comes to the place `later` steps after it."""

    def __init__(self, places: Places, left: Int64, found: list[_Collective]) -> None:
        self._places, self._left, self._rows = places, left, places.repetitions()
        self._found: dict[int, dict[int, _Collective]] = {}
        self._known: dict[tuple[int, int, int], bool] = {}
        for c in found:
            self._found.setdefault(c.number, {})[c.step] = c

    def __call__(self, place: int, later: int, number: int) -> bool:
        if (place, later, number) not in self._known:
            of_step = self._found[number]
            rows = self._rows.flat[self._rows.offset[place] : self._rows.offset[place + 1]]
            times = zip(self._places.step[rows].tolist(), self._left[rows].tolist(), strict=True)
            pairs = [(of_step[step - later], time) for step, time in times if step - later in of_step]
            running = [c.end - time > max(USUALLY_LEFT, USUAL_SHARE_LEFT * (c.end - c.start)) for c, time in pairs]
            usually = len(pairs) > 1 and 2 * sum(running) > len(pairs)
            self._known[place, later, number] = usually or any(c.start >= time for c, time in pairs)
        return self._known[place, later, number]


def _last_awaited(outstanding: list[_Collective], begin: int, end: int) -> int:
    """The slice of the last collective that the pause [begin, end) waited for, -1 without one.

    Collectives are awaited in order. One whose row ends after the pause counts where the row goes on for less time than the thread
    had waited for it alone.
    """
    waited, out = begin, ABSENT
    for c in outstanding:
        if c.end <= end:
            if c.end > waited:
                waited, out = c.end, c.slice
        elif c.start < end and c.end - end < min(end - max(waited, c.start), LATEST_END):
            return c.slice
        else:
            break
    return out
