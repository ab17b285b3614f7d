"""Waiting that stays in the graph as CPU work because no dependency rule explained it.

It is only reported (as `kept_wait`), never used: this part of a replayed step would not shrink if the device or the other
threads were faster. One rule holds for operators, calls and the time between them: what remains of a slice as CPU work looks like a wait
where all streams worked until just before its end, on a thread that calls the runtime, or where a thread pauses while another works, and
so much of it is beyond what is usual at that place in the code: the median of the slices there that do not look like a wait, or without any
of those of that name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from lumos.graph.hand_offs.threads import SHORTEST_HAND_OFF, HandOffs
from lumos.graph.lists import numbered
from lumos.graph.places import step_at
from lumos.graph.waits.solve import WAKE_UP, in_steps
from lumos.intervals import Union, union, within
from lumos.trace.table import Category, excluding

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from lumos.graph.hand_offs.slices import HostSlices
    from lumos.graph.host import HostPlan
    from lumos.graph.launches import DeviceWork
    from lumos.trace.table import Int64, Trace


def unclaimed_waits(trace: Trace, planned: HostPlan, work: DeviceWork, handed: HandOffs, timers: np.ndarray) -> tuple[Int64, Int64]:
    """The slices of threads that hold waiting which is part of no dependency, and how much, ns.

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
    calls = np.isin(slices.lane[candidate], trace.lane[trace.category == Category.RUNTIME])
    waiting = np.maximum(waiting, np.where(calls, _until_device_is_idle(union(work.start, work.end), start, end), 0))
    candidate, waiting = candidate[waiting > 0], waiting[waiting > 0]
    waiting = np.minimum(waiting, kept[candidate] - _usual(trace, slices, kept, candidate))
    waited = waiting >= SHORTEST_HAND_OFF
    return candidate[waited], waiting[waited]


def _usual(trace: Trace, slices: HostSlices, kept: Int64, waits: Int64) -> Int64:
    """What is usual at the place of each of `waits`, ns, or without any other there, between such rows, or of its name."""
    name = np.where(slices.row >= 0, trace.name[slices.row], -1)
    near = np.flatnonzero(np.isin(name, name[waits]))
    alike = numbered(*(np.roll(name, by)[near] for by in (0, 1, -1)), slices.lane[near])
    slice_place = in_steps(alike, step_at(trace, slices.start[near]))
    at = np.searchsorted(near, waits)
    usual, known = np.zeros(len(at), np.int64), np.zeros(len(at), bool)
    for like in (slice_place, alike, name[near]):
        more, some = _usual_of_others(like, kept[near], at)
        usual, known = np.where(known, usual, more), known | some
    return usual


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


def _usual_of_others(slice_place: Int64, kept: Int64, waits: Int64) -> tuple[Int64, NDArray[np.bool_]]:
    """What is usual at the place of each of `waits`, ns: the median of `kept` of the other slices there; and whether there are any."""
    others = excluding(np.flatnonzero(np.isin(slice_place, slice_place[waits])), waits)
    order = others[np.lexsort((kept[others], slice_place[others]))]
    low, high = (np.searchsorted(slice_place[order], slice_place[waits], side) for side in ("left", "right"))
    return np.where(high > low, np.append(kept[order], 0)[(low + high) // 2], 0), high > low
