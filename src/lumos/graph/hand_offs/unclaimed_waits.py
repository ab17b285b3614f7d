"""Waiting that stays in the graph as CPU work because no dependency rule explained it.

It is only reported (as `kept_wait`), never used: this part of a replayed step would not shrink if the device or the other
threads were faster.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from lumos.graph.hand_offs.threads import SHORTEST_HAND_OFF, HandOffs
from lumos.intervals import union, within

if TYPE_CHECKING:
    from lumos.graph.hand_offs.slices import HostSlices
    from lumos.graph.launches import DeviceWork
    from lumos.trace.table import Int64

#: A gap ended because of device work where it ends within this time after that work and all streams are idle in between (ns).
#: A thread that was blocked on the device returns after 4-11 us (`sync_return` of the public traces).
AFTER_DEVICE = 15_000


def unclaimed_gaps(slices: HostSlices, work: DeviceWork, handed: HandOffs, timers: np.ndarray) -> tuple[Int64, Int64]:
    """Gaps of threads that look like waits and are part of no hand-off, or go on after it: (slice, ns of waiting).

    A gap looks like a wait where the device was busy throughout it and became idle just before its end, or where another
    thread worked during it; the time that the device or that thread worked counts. Of a gap that a hand-off explains, only the
    time after the hand-off can count, and none where the thread then begins a collective: it waited for the issuer alone.
    """
    begin = slices.start.copy()
    begin[handed.slice] = np.where(handed.issued, slices.end[handed.slice], handed.resumed(slices))
    gap = handed.pause & (slices.end - begin >= SHORTEST_HAND_OFF) & ~timers[slices.lane]
    candidate = np.flatnonzero(gap)
    start, end = begin[candidate], slices.end[candidate]
    waiting = np.zeros(len(candidate), np.int64)
    lanes = [lane for lane in slices.lanes() if not timers[lane]]
    if len(lanes) > 1:
        for lane in lanes:
            of_lane = np.flatnonzero((slices.lane == lane) & (slices.row >= 0))
            elsewhere = slices.lane[candidate] != lane
            busy = within(union(slices.start[of_lane], slices.end[of_lane]), start, end)
            waiting = np.maximum(waiting, np.where(elsewhere, busy, 0))
    works = union(work.start, work.end)
    if works.total:
        busy = within(works, start, end)
        last_end = works.end[np.maximum(np.searchsorted(works.start, end, "left") - 1, 0)]
        device_ended = (last_end <= end) & (end - last_end <= AFTER_DEVICE) & (last_end > start)
        through = busy >= 0.9 * np.maximum(last_end - start, 1)
        waiting = np.where(device_ended & through, np.maximum(waiting, busy), waiting)
    waited = waiting > 0
    return candidate[waited], waiting[waited]
