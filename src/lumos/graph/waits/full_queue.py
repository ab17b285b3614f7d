"""Launches that wait for a place in the queue of launches.

A launch into a full queue returns when a place in it has become free, which is when the next piece of device work ends. So such a launch
takes longer than is usual for its call, and returns just after the first end of device work since it began, while about as many launches
are outstanding as there are places. About as many, because a recording may lack rows: where it lacks the launches or the kernels of some
places, fewer launches seem to be outstanding than there are. A queue that work from before the recording filled shows in launches that take
long and return before the device comes to the recording's first work; for how long they waited depends on no work that was recorded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.graph.launches import of_graph_launches
from lumos.graph.waits.syncs import WAKE_UP
from lumos.trace.table import Category

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from lumos.graph.launches import DeviceWork
    from lumos.trace.table import Int64, Trace

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
#: A launch that takes no more than so many times what is usual for its call is not said to have waited. Of the launches that wait in
#: resnet-v100, 98 % take longer.
USUAL_SPREAD = 1.5
#: So many launches that take more than so many times what the quicker ones take have waited for work from before the recording: one whose
#: kernel has to pass a lock takes two or three times as long, and a busy host interrupts one now and then.
FEWEST_STALLS, STALLED = 20, 5
#: The depth of a queue that was full without showing how deep it is (launches): that of CUDA's in the public traces, 1,020 to 1,022.
USUAL_QUEUE = 1022


class FullQueue(NamedTuple):
    """depth: launches of the rank that may be outstanding, 0 where the trace shows no limit. waited: the work whose launch waited for a
    place, in the order of the launches, and freed: the work whose end made that place. stalled: the work whose launch waited for work from
    before the recording. Indices into DeviceWork."""

    depth: int
    waited: Int64
    freed: Int64
    stalled: Int64


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
    """How many launches may be outstanding, and which launches waited for a place. held_up: as `held_up_at_begin` gives it."""
    launched, ahead, next_end = outstanding(work)
    most = int(ahead.max(initial=0))
    near = ahead >= (1 - LOST_PLACES) * most
    waited = near & _returned_at(trace, work, launched, next_end) & _long(trace, work, launched, near)
    stalled = _stalled_at_begin(trace, work, held_up)
    often = (ahead >= most - 1).sum() >= FULL_QUEUE_SIGHTINGS
    if most >= SHALLOWEST_QUEUE and (often or _stalls(trace.duration[work.call[launched[near]]], waited[near])):
        return FullQueue(most, launched[waited], next_end[waited], stalled)
    return FullQueue(max(USUAL_QUEUE, most) if len(stalled) else 0, launched[:0], launched[:0], stalled)


def _stalled_at_begin(trace: Trace, work: DeviceWork, held_up: Int64) -> Int64:
    """The kernels whose launch waited for a place in a queue that work from before the recording had filled, in the order of the launches.
    A launch that is the first of its kernel may have loaded its code, and is no evidence that the queue was full."""
    kernels = np.flatnonzero((work.call >= 0) & (trace.category[work.row] == Category.KERNEL) & ~of_graph_launches(trace, work))
    if not len(held_up) or not len(kernels):
        return kernels[:0]
    kernels = kernels[np.argsort(work.issued[kernels], kind="stable")]
    call = work.call[kernels]
    took = trace.duration[call]
    long = took > STALLED * np.percentile(took, 10)
    stalled = np.flatnonzero(long & (trace.start[call] + took <= work.start[held_up].min()))
    first_of_kernel = np.unique(trace.name[work.row[kernels]], return_index=True)[1]
    often = len(np.setdiff1d(stalled, first_of_kernel)) >= FEWEST_STALLS
    return kernels[stalled] if often else kernels[:0]


def _returned_at(trace: Trace, work: DeviceWork, launched: Int64, next_end: Int64) -> NDArray[np.bool_]:
    """Whether each launch returned when the next work had ended."""
    call = work.call[launched]
    after = trace.start[call] + trace.duration[call] - work.end[next_end]
    return (after >= 0) & (after <= WAKE_UP)


def _long(trace: Trace, work: DeviceWork, launched: Int64, near: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Whether each launch took longer than the calls of its name did with places free; true where there are no such calls."""
    call = work.call[launched]
    name, took = trace.name[call], trace.duration[call]
    out = np.ones(len(launched), bool)
    for each in np.unique(name[~near]):
        of_name = name == each
        out[of_name] = took[of_name] > USUAL_SPREAD * np.median(took[of_name & ~near])
    return out


def _stalls(took: Int64, waited: NDArray[np.bool_]) -> bool:
    """Whether the launches that took long, enough of them, did so because they waited."""
    long = took >= LONG_STALL
    return bool((long & waited).sum() >= max(FEWEST_FULL, (long & ~waited).sum()))
