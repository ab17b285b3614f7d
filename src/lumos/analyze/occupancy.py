"""Until when a device had no room for a kernel, and whose kernel then made room.

A kernel that takes part in `Graph.occupancy` holds its share of the device from its start until `hold` of its own work is
done; a member of a rendezvous so holds it while it waits for the last rank. No kernel starts while those of other streams
hold the whole device. Holds scale with durations and shares add up as in the event loop, so in a simulated run a kernel that
found the device full starts at the very moment given here. A measured kernel that began while the device should have been
full was let in before the model has it: it had no room until that very start.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from lumos.analyze.collectives import Waiting
from lumos.graph.table import Dependency, Occupancy
from lumos.simulate.timeline import Timeline
from lumos.trace.table import Int32, Int64

#: A time that does not exist: earlier than any other.
NEVER = int(np.iinfo(np.int64).min)

#: As in the event loop, shares count in parts of 1e9, and a device within 1e-6 of full is full.
_WHOLE = 1_000_000_000
_FULL = _WHOLE - 1000


class Room(NamedTuple):
    """By task. since: int64[n] ns, the last time up to its start at which other streams' kernels filled its device, NEVER where
    they never did. holder: int32[n], the kernel whose letting go made room, the last of several at one time; -1 for none."""

    since: Int64
    holder: Int32


class _Holds(NamedTuple):
    """Kernels that hold a share of a device for some time: task, its stream, from when to when (ns), and the share."""

    task: Int32
    stream: Int32
    start: Int64
    end: Int64
    share: Int64

    def only(self, chosen: Int64) -> _Holds:
        return _Holds(self.task[chosen], self.stream[chosen], self.start[chosen], self.end[chosen], self.share[chosen])


def room(timeline: Timeline, waits: Waiting) -> Room:
    """Since when every task of the timeline had room on its device. waits: of the same timeline."""
    graph = timeline.graph
    found = Room(np.full(len(graph), NEVER), np.full(len(graph), -1, np.int32))
    if graph.occupancy is None or Dependency.OCCUPANCY in graph.ignored:
        return found
    holds = _holds(timeline, waits, graph.occupancy)
    numbers: dict[tuple[int, int], int] = {}
    number = np.array([numbers.setdefault((p.rank, p.device), len(numbers)) for p in graph.processors], np.int32)
    device = number[holds.stream]
    for each in np.unique(device):
        shared = np.flatnonzero(device == each)
        for stream in np.unique(holds.stream[shared]):
            own, others = holds.only(shared[holds.stream[shared] == stream]), holds.only(shared[holds.stream[shared] != stream])
            since, holder = _made_room(others)
            last = np.searchsorted(since, own.start, side="right") - 1
            known = last >= 0
            found.since[own.task[known]], found.holder[own.task[known]] = since[last[known]], holder[last[known]]
            holder = _let_in(others, own.start)
            found.since[own.task[holder >= 0]], found.holder[own.task[holder >= 0]] = own.start[holder >= 0], holder[holder >= 0]
    return found


def _holds(timeline: Timeline, waits: Waiting, table: Occupancy) -> _Holds:
    """Who holds how much of a device, and how long: the hold scales with how long the kernel works in this timeline."""
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


def _made_room(holds: _Holds) -> tuple[Int64, Int32]:
    """When these kernels ceased to fill the device, ascending, and who let go then."""
    holds = holds.only(np.flatnonzero(holds.end > holds.start))
    by_start, by_end = np.argsort(holds.start, kind="stable"), np.argsort(holds.end, kind="stable")
    start, end = holds.start[by_start], holds.end[by_end]
    taken, let_go = (np.concatenate(([0], np.cumsum(holds.share[order]))) for order in (by_start, by_end))
    time = np.unique(end)
    taken = taken[np.searchsorted(start, time, side="left")]
    before = taken - let_go[np.searchsorted(end, time, side="left")]
    last = np.searchsorted(end, time, side="right")
    ceased = (before >= _FULL) & (taken - let_go[last] < _FULL)
    return time[ceased], holds.task[by_end[last[ceased] - 1]]


def _let_in(holds: _Holds, time: Int64) -> Int32:
    """Of the kernels that fill the device across each time, the one whose letting go makes room, int32[times]; -1 where they
    do not fill it. A stream runs one kernel at a time, the last that it began."""
    streams = [holds.only(np.flatnonzero(holds.stream == stream)) for stream in np.unique(holds.stream)]
    if not streams:
        return np.full(len(time), -1, np.int32)
    end, share, task = (np.empty((len(streams), len(time)), np.int64) for _ in range(3))
    for row, each in enumerate(streams):
        each = each.only(np.argsort(each.start, kind="stable"))
        last = np.searchsorted(each.start, time, side="left") - 1
        end[row], task[row] = each.end[last], each.task[last]
        share[row] = np.where((last >= 0) & (end[row] > time), each.share[last], 0)
    order = np.argsort(-end, axis=0, kind="stable")  # the last to let go first
    held = np.cumsum(np.take_along_axis(share, order, 0), axis=0)
    fills = (held >= _FULL).argmax(axis=0)
    at = np.arange(len(time))
    out: Int32 = np.where(held[-1] >= _FULL, task[order[fills, at], at], -1).astype(np.int32)
    return out
