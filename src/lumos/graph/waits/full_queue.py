"""Launches that wait for a place in the queue of launches.

A launch into a full queue returns when a place in it has become free, which is when the next piece of device work ends. So such a launch
takes longer than is usual for its call, and returns just after the first end of device work since it began, while about as many launches
are outstanding as there are places. About as many, because a recording may lack rows: where it lacks the launches or the kernels of some
places, fewer launches seem to be outstanding than there are. Work from before the recording that is not in it holds places too: as long as
the device has not begun with what was recorded, because of such work, a launch that takes long waits for the end of some of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.graph.waits.solve import LONG_CALL, WAKE_UP
from lumos.trace.table import unique

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from lumos.graph.launches import DeviceWork
    from lumos.trace.table import Int32, Int64, Trace

#: So many launches must begin at the largest count of outstanding launches before that count is taken for the queue's depth;
#: by chance there would be fewer.
FULL_QUEUE_SIGHTINGS = 100
#: So many launches that waited for a place for at least LONG_STALL (ns) show a full queue too, unless as many that took so long did not.
FEWEST_FULL, LONG_STALL = 5, 100_000
#: A smaller count is not taken for the queue's depth (launches): CUDA's queue holds about 1,024, and loops in a program make
#: launches begin at smaller counts again and again.
SHALLOWEST_QUEUE = 900
#: The queue may be full where as large a share of its places seems to be free: a recording that lacks more rows is not worth asking.
LOST_PLACES = 0.05
#: Of all launches by one call, this share is taken to wait for nothing: of those before the device begins most may wait.
QUICK = 0.25


class FullQueue(NamedTuple):
    """depth: launches of the rank that may be outstanding, 0 where the trace shows no limit. waited: the work whose launch waited for a
    place, in the order of the launches, and freed: the work whose end made that place. at_begin: the work whose launch waited for the end
    of work that was not recorded. Indices into DeviceWork."""

    depth: int
    waited: Int64
    freed: Int64
    at_begin: Int64


class Outstanding(NamedTuple):
    """launched: work whose launch takes a place in the queue, in the order of the launches. ahead: for each, the launches that had not
    ended when its call began, with those from before the recording. next_end: for each, the first work to end from then on. Indices into
    DeviceWork."""

    launched: Int64
    ahead: Int64
    next_end: Int64


def outstanding(work: DeviceWork) -> Outstanding:
    """How many launches are outstanding when each launch begins."""
    launched = np.flatnonzero((work.call >= 0) & work.placed)
    launched = launched[np.argsort(work.issued[launched], kind="stable")]
    early = np.flatnonzero((work.call < 0) & (work.issued == np.iinfo(np.int64).min))
    every = np.concatenate((early, launched))
    by_end = every[np.argsort(work.end[every], kind="stable")]
    ended = np.searchsorted(work.end[by_end], work.issued[launched], "left")
    return Outstanding(launched, len(early) + np.arange(len(launched)) - ended, by_end[np.minimum(ended, len(by_end) - 1)])


def full_queue(trace: Trace, work: DeviceWork, held_up: Int64) -> FullQueue:
    """How many launches may be outstanding, and which launches waited for a place. held_up: the first work of streams that work from before
    the recording kept busy (`held_up_at_begin`)."""
    launched, ahead, next_end = outstanding(work)
    call, most = work.call[launched], int(ahead.max(initial=0))
    took = trace.duration[call]
    after = trace.start[call] + took - work.end[next_end]
    near = ahead >= (1 - LOST_PLACES) * most
    if len(held_up):  # of work that was not recorded no end can be seen
        near[:most] = False
    waited = near & (after >= 0) & (after <= WAKE_UP)
    stalled = near & (took >= LONG_STALL)
    often = (ahead >= most - 1).sum() >= FULL_QUEUE_SIGHTINGS
    if most < SHALLOWEST_QUEUE or not (often or (stalled & waited).sum() >= max(FEWEST_FULL, (stalled & ~waited).sum())):
        most, waited = 0, np.zeros_like(waited)
    return FullQueue(most, launched[waited], next_end[waited], launched[_at_begin(trace, work, call, held_up)])


def _at_begin(trace: Trace, work: DeviceWork, call: Int32, held_up: Int64) -> NDArray[np.bool_]:
    """Which launches took longer than is usual of such a call before the device, busy with work from before the recording, began with
    any."""
    took, name, waited = trace.duration[call], trace.name[call], np.zeros(len(call), bool)
    if len(held_up):
        waited = trace.start[call] < work.start[held_up].min()
    for call_name in unique(name[waited]).tolist():
        same = name == call_name
        waited[same] &= took[same] >= np.quantile(took[same], QUICK) + LONG_CALL
    return waited
