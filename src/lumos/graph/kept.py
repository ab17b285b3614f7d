"""Waiting that stayed in the graph as CPU work because no rule explained it.

Reported, never used: it is the part of a replay that would not shrink if the device or the other threads got faster.
"""

from __future__ import annotations

import numpy as np

from lumos.graph.launches import DeviceWork
from lumos.graph.syncs import Synchronisations
from lumos.graph.threads import SHORTEST_HAND_OFF, HandOffs, HostSlices
from lumos.intervals import union, within
from lumos.trace.table import Int64

#: A gap that ends within this of the last device work, all streams idle since, ended because of it (ns): a thread that was
#: blocked on the device is back after 4-11 us (`sync_return` of the public traces).
AFTER_DEVICE = 15_000


def kept_gaps(slices: HostSlices, work: DeviceWork, handed: HandOffs, timers: np.ndarray) -> tuple[Int64, Int64]:
    """Gaps of threads that look like waits but that no hand-off claims: (slice, ns).

    Two signs: the gap ended just after the device had become idle, having been busy all through it; or another thread
    worked through the gap (that share of it counts).
    """
    gap = (slices.row < 0) & (slices.end - slices.start >= SHORTEST_HAND_OFF) & ~timers[slices.lane]
    gap[handed.slice] = False
    found = np.flatnonzero(gap)
    start, end = slices.start[found], slices.end[found]
    kept = np.zeros(len(found), np.int64)
    lanes = [lane for lane in np.unique(slices.lane) if not timers[lane]]
    if len(lanes) > 1:
        for lane in lanes:
            mine = np.flatnonzero((slices.lane == lane) & (slices.row >= 0))
            others = slices.lane[found] != lane
            kept = np.maximum(kept, np.where(others, within(union(slices.start[mine], slices.end[mine]), start, end), 0))
    works = union(work.start, work.end)
    if works.total:
        busy = within(works, start, end)
        last_end = works.end[np.maximum(np.searchsorted(works.start, end, "left") - 1, 0)]
        device_ended = (last_end <= end) & (end - last_end <= AFTER_DEVICE) & (last_end > start)
        through = busy >= 0.9 * np.maximum(last_end - start, 1)
        kept = np.where(device_ended & through, np.maximum(kept, busy), kept)
    real = kept > 0
    return found[real], kept[real]


def kept_calls(syncs: Synchronisations) -> tuple[Int64, Int64]:
    """Synchronising calls that took long without anything to wait for: (index into `syncs`, ns)."""
    found = np.flatnonzero(syncs.kept > 0)
    return found, syncs.kept[found]
