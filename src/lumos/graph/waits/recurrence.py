"""Which calls are the same place in the code, run again.

Two calls are taken for the same place where their threads launched the same kernel before and after them. In a recording with marked
steps they must also be the same one of as many such calls in their step: a place is then run once in every step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from lumos.graph.lists import numbered, ordinals
from lumos.graph.steps import is_step_mark

if TYPE_CHECKING:
    from lumos.graph.launches import DeviceWork
    from lumos.trace.table import Int32, Int64, Trace


def recurrences(trace: Trace, work: DeviceWork, lane: Int32, time: Int64) -> list[Int64]:
    """The calls of each place in the code, as positions in `lane` and `time` (ns), which ascends; places by their first call."""
    places = [place for alike in alike_places(trace, work, lane, time) for place in alike]
    return sorted(places, key=lambda calls: int(calls[0]))


def alike_places(trace: Trace, work: DeviceWork, lane: Int32, time: Int64) -> list[list[Int64]]:
    """The same, with the places together that differ only in their number within a step: the layers of a model, say."""
    if not len(time):
        return []
    context = numbered(*_kernels_around(trace, work, lane, time))
    marks = np.sort(trace.start[is_step_mark(trace)])
    if not len(marks):
        return [[calls] for calls in _grouped(context)]
    of_step = numbered(context, np.searchsorted(marks, time, "right"))
    place = numbered(ordinals(of_step), np.bincount(of_step)[of_step])
    return [[calls[of] for of in _grouped(place[calls])] for calls in _grouped(context)]


def _grouped(key: Int64) -> list[Int64]:
    """The positions of each value, ascending."""
    order = np.argsort(key, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(key[order])) + 1)


def _kernels_around(trace: Trace, work: DeviceWork, lane: Int32, time: Int64) -> tuple[Int64, Int64]:
    """Names of the device work that the thread of each call launched last before it and first after it; -1 without any."""
    before, after = np.full(len(time), -1, np.int64), np.full(len(time), -1, np.int64)
    launched = np.flatnonzero(work.call >= 0)
    of_launch, start = trace.lane[work.call[launched]], trace.start[work.call[launched]]
    for thread in np.unique(lane):
        mine = launched[of_launch == thread]
        mine = mine[np.argsort(start[of_launch == thread], kind="stable")]
        here = np.flatnonzero(lane == thread)
        if not len(mine):
            continue
        at = np.searchsorted(trace.start[work.call[mine]], time[here], "left")
        name = trace.name[work.row[mine]]
        before[here] = np.where(at > 0, name[np.maximum(at - 1, 0)], -1)
        after[here] = np.where(at < len(mine), name[np.minimum(at, len(mine) - 1)], -1)
    return before, after
