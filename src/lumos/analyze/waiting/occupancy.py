"""Until when each kernel found its device full, and which kernel then released its share.

A kernel in `Graph.occupancy` holds a share of its device from its start until `hold` of its own work is done. A member of a
rendezvous therefore holds its share while it waits for the last rank. No kernel starts while the kernels of other streams hold
the whole device. Holds scale with durations, and shares add up, as in the event loop, so that in a simulated run a kernel that
found the device full starts at exactly the time given here.

A measured kernel may begin before the device ceases to be full according to this model: it is then full until that start.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from lumos.graph.table import Dependency, Occupancy
from lumos.trace.table import unique

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from lumos.analyze.collectives import Waiting
    from lumos.simulation.timeline import Timeline
    from lumos.trace.table import Int32, Int64

#: A time that does not exist: earlier than any other.
NEVER = int(np.iinfo(np.int64).min)

#: As in the event loop, shares count in parts of 1e9, and a device within 1e-6 of full is full.
_WHOLE = 1_000_000_000
_FULL = _WHOLE - 1000


class LastFull(NamedTuple):
    """The last time that each task found its device full.

    until: int64[n] ns, the last time up to the task's start at which kernels of other streams held all of its device; NEVER
    where they never did. holder: int32[n], the kernel that then released its share, the last of those that released theirs at
    that time; -1 for none.
    """

    until: Int64
    holder: Int32


class _Holds(NamedTuple):
    """Kernels that hold shares of devices. stream: index into `Graph.processors`. start, end: of the hold, ns. share: in
    parts of _WHOLE."""

    task: Int32
    stream: Int32
    start: Int64
    end: Int64
    share: Int64

    def only(self, chosen: Int64) -> _Holds:
        return _Holds(self.task[chosen], self.stream[chosen], self.start[chosen], self.end[chosen], self.share[chosen])


def last_full(timeline: Timeline, waits: Waiting) -> LastFull:
    """Until when every task of the timeline found its device full. waits: of the same timeline."""
    graph = timeline.graph
    full = LastFull(np.full(len(graph), NEVER), np.full(len(graph), -1, np.int32))
    if graph.occupancy is None or Dependency.OCCUPANCY in graph.ignored:
        return full
    holds = _holds(timeline, waits, graph.occupancy)
    numbers: dict[tuple[int, int], int] = {}
    number = np.array([numbers.setdefault((p.rank, p.device), len(numbers)) for p in graph.processors], np.int32)
    device = number[holds.stream]
    for one_device in unique(device):
        shared = np.flatnonzero(device == one_device)
        for stream in unique(holds.stream[shared]):
            own, others = holds.only(shared[holds.stream[shared] == stream]), holds.only(shared[holds.stream[shared] != stream])
            begin, until, holder = _full_periods(others)
            last = np.searchsorted(begin, own.start, side="left") - 1
            known = np.flatnonzero(last >= 0)
            full.until[own.task[known]] = np.minimum(until[last[known]], own.start[known])
            full.holder[own.task[known]] = holder[last[known]]
    return full


def _holds(timeline: Timeline, waits: Waiting, table: Occupancy) -> _Holds:
    """The holds of all kernels in the table. A hold scales with how long the kernel works in this timeline."""
    graph, task = timeline.graph, table.task
    began = waits.began[task]
    end = began + _share_of(timeline.end[task] - began, table.hold, np.maximum(graph.duration[task], 1))
    share = np.rint(table.share.astype(np.float64) * _WHOLE).astype(np.int64)
    return _Holds(task, graph.processor[task], timeline.start[task], end, share)


def _share_of(time: Int64, part: Int64, whole: Int64) -> Int64:
    """time · part / whole, rounded down as in the event loop, also where the product exceeds 64 bits; part ≤ whole."""
    if float(whole.max(initial=0)) * float(time.max(initial=0)) < 2.0**62:
        return time * part // whole
    return np.array([t * p // w for t, p, w in zip(time.tolist(), part.tolist(), whole.tolist(), strict=True)], np.int64)


class _Periods(NamedTuple):
    """When kernels hold the whole device, ascending: begin, end (ns), and the kernel whose release ended it."""

    begin: Int64
    end: Int64
    holder: Int32


def _full_periods(holds: _Holds) -> _Periods:
    """The periods in which these kernels hold the whole device."""
    holds = holds.only(np.flatnonzero(holds.end > holds.start))
    by_start, by_end = np.argsort(holds.start, kind="stable"), np.argsort(holds.end, kind="stable")
    start, end = holds.start[by_start], holds.end[by_end]
    taken, released = (np.concatenate(([0], np.cumsum(holds.share[order]))) for order in (by_start, by_end))
    time = unique(start, end)

    def held(side: Literal["left", "right"]) -> NDArray[np.bool_]:
        """Whether the device is full just before ("left") or after ("right") each time."""
        full: NDArray[np.bool_] = taken[np.searchsorted(start, time, side)] - released[np.searchsorted(end, time, side)] >= _FULL
        return full

    before, after = held("left"), held("right")
    ended = time[before & ~after]
    return _Periods(time[~before & after], ended, holds.task[by_end[np.searchsorted(end, ended, side="right") - 1]])
