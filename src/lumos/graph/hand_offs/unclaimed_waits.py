"""Waiting that stays in the graph as CPU work because no dependency rule explained it.

It is only reported (as `kept_wait`), never used: this part of a replayed step would not shrink if the device or the other
threads were faster. One rule holds for operators, calls and the time between them: what remains of a slice as CPU work looks like a wait
where all streams worked until just before its end, or where a thread pauses while another works, and so much of it is beyond what is
usual at that place in the code: the median of the slices of the same row, between the same rows, that do not look like a wait.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from lumos.graph.hand_offs.threads import SHORTEST_HAND_OFF, HandOffs
from lumos.graph.waits.solve import WAKE_UP
from lumos.intervals import Union, union, within

if TYPE_CHECKING:
    from lumos.graph.hand_offs.slices import HostSlices
    from lumos.graph.host import HostPlan
    from lumos.graph.launches import DeviceWork
    from lumos.trace.table import Int32, Int64


def unclaimed_waits(name: Int32, planned: HostPlan, work: DeviceWork, handed: HandOffs, timers: np.ndarray) -> tuple[Int64, Int64]:
    """The slices of threads that hold waiting which is part of no dependency, and how much, ns. name: of every row of the trace.

    Of a gap that a hand-off explains, only the time after the hand-off can count, and none where the thread then begins a collective: it
    waited for the issuer alone.
    """
    slices = planned.slices
    begin = slices.start.copy()
    begin[handed.slice] = np.where(handed.issued, slices.end[handed.slice], handed.resumed(slices))
    kept = np.minimum(slices.end - begin, planned.duration)
    candidate = np.flatnonzero((kept >= SHORTEST_HAND_OFF) & ~timers[slices.lane])
    start, end = begin[candidate], slices.end[candidate]
    waiting = np.where(handed.pause[candidate], _while_others_work(slices, candidate, start, end, timers), 0)
    waiting = np.maximum(waiting, _until_device_is_idle(union(work.start, work.end), start, end))
    candidate, waiting = candidate[waiting > 0], waiting[waiting > 0]
    waiting = np.minimum(waiting, kept[candidate] - _usual(name, slices, kept, candidate))
    waited = waiting >= SHORTEST_HAND_OFF
    return candidate[waited], waiting[waited]


def _while_others_work(slices: HostSlices, candidate: Int64, start: Int64, end: Int64, timers: np.ndarray) -> Int64:
    """For how long one other thread worked during each of the intervals [start, end), the one that worked most."""
    out = np.zeros(len(candidate), np.int64)
    for lane in (lane for lane in slices.lanes() if not timers[lane]):
        of_lane = np.flatnonzero((slices.lane == lane) & (slices.row >= 0))
        busy = within(union(slices.start[of_lane], slices.end[of_lane]), start, end)
        out = np.maximum(out, np.where(slices.lane[candidate] != lane, busy, 0))
    return out


def _until_device_is_idle(works: Union, start: Int64, end: Int64) -> Int64:
    """For how long the streams worked in each of the intervals, where they did throughout and until just before its end; else 0."""
    if not works.total:
        return np.zeros(len(start), np.int64)
    busy = within(works, start, end)
    last = works.end[np.maximum(np.searchsorted(works.start, end, "left") - 1, 0)]
    through = (last > start) & (last <= end) & (end - last <= WAKE_UP) & (busy >= 0.9 * (last - start))
    return np.where(through, busy, 0)


def _usual(name: Int32, slices: HostSlices, kept: Int64, waits: Int64) -> Int64:
    """What is usual at the place of each of `waits`, ns: the median of `kept` of the other slices there; 0 where there are none."""
    own = np.where(slices.row >= 0, name[slices.row], -1).astype(np.int64) + 1
    size = int(own.max(initial=0)) + 1
    place = (own * size + np.roll(own, 1)) * size + np.roll(own, -1)
    others = np.setdiff1d(np.flatnonzero(np.isin(place, place[waits])), waits)
    order = others[np.lexsort((kept[others], place[others]))]
    low, high = (np.searchsorted(place[order], place[waits], side) for side in ("left", "right"))
    return np.where(high > low, np.append(kept[order], 0)[(low + high) // 2], 0)
