"""Launches that wait for a place in the queue of launches, and device work that runs, or that other work holds up, from before the
recording.

A launch into a full queue returns when a place in it has become free, which is when the next piece of device work ends. So such a launch
takes longer than is usual for its call, and returns just after the first end of device work since it began, while about as many launches
are outstanding as there are places. About as many, because a recording may lack rows: where it lacks the launches or the kernels of some
places, fewer launches seem to be outstanding than there are. Work from before the recording that is not in it holds places too: as long as
the device has not begun with what was recorded, because of such work, a launch that takes long waits for the end of some of it.

When work from before the recording starts, or what it holds up, has its cause before the window, so its measured start is taken from the
trace. Nothing else is.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.graph.waits.solve import LONG_CALL, WAKE_UP
from lumos.trace.table import unique

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from lumos.graph.launches import DeviceWork
    from lumos.graph.waits.streams import StreamWaits
    from lumos.trace.table import Int32, Int64, Trace

#: Work that starts more than this after its launch call was held up (ns): a launch onto an idle device takes 1-10 us.
HELD_UP = 20_000


def launched_before(work: DeviceWork) -> Int64:
    """Device work launched before the window: the orphans before a stream's first work with a launch. Where no work of the rank has a
    launch, it is each stream's first work alone."""
    early: list[Int64] = [np.empty(0, np.int64)]
    for low, high in pairwise(work.bounds()):
        launched = np.flatnonzero(work.call[low:high] >= 0)
        count = int(launched[0]) if len(launched) else (int(high - low) if (work.call >= 0).any() else 1)
        early.append(np.arange(low, low + count))
    return np.concatenate(early)


def held_up_at_begin(trace: Trace, work: DeviceWork, waits: StreamWaits) -> Int64:
    """The first work of each stream that was in use at the window's begin, where it started only long after its launch, as earlier work
    that was not recorded kept the stream busy; ascending indices into `work`.

    The first work that a device runs shows whether it was busy. If it was, so were the streams that were launched to before that started,
    unless their first work waits for another stream. A stream that is first used later waits for work that the recording shows.
    """
    first = work.bounds()[:-1]
    first = first[(work.call[first] >= 0) & ~np.isin(first, waits.work)]
    call = work.call[first]
    late = work.start[first] - trace.start[call] - trace.duration[call] > HELD_UP
    device = np.array([number for number, _ in work.streams], np.int64)[work.stream]
    out = np.zeros(len(first), bool)
    for number in unique(device[first]).tolist():
        begins = int(work.start[device == number].min())
        here = device[first] == number
        busy = bool((late & here & (work.start[first] == begins)).any())
        out |= here & late & busy & (trace.start[call] < begins)
    return first[out]


#: So much longer than usual must launches that waited for a place take together (ns), longer than those near them that did not, and twice
#: as much as by chance, before the queue is taken to be full.
LEAST_WAIT = 500_000
#: A smaller count is not taken for the queue's depth (launches): CUDA's queue holds about 1,024, and loops in a program make
#: launches begin at smaller counts again and again.
SHALLOWEST_QUEUE = 900
#: The queue may be full where as large a share of its places seems to be free: a recording that lacks more rows is not worth asking.
LOST_PLACES = 0.05
#: Of all launches by one call, this share is taken to wait for nothing: in a recording of a busy device most may wait.
QUICK = 0.25


class FullQueue(NamedTuple):
    """depth: launches of the rank that may be outstanding, 0 where the trace shows no limit. waited: the work whose launch waited for a
    place, in the order of the launches, and freed: the work whose end made that place. at_begin: the work whose launch waited for the end
    of work that was not recorded. Indices into DeviceWork."""

    depth: int
    waited: Int64
    freed: Int64
    at_begin: Int64


def full_queue(trace: Trace, work: DeviceWork, held_up: Int64) -> FullQueue:
    """How many launches may be outstanding, and which launches waited for a place. held_up: the first work of streams that work from before
    the recording kept busy (`held_up_at_begin`)."""
    launched = np.flatnonzero((work.call >= 0) & work.placed)
    launched = launched[np.argsort(work.issued[launched], kind="stable")]
    before = np.flatnonzero((work.call < 0) & (work.issued == np.iinfo(np.int64).min))
    by_end = np.append(before, launched)
    by_end = by_end[np.argsort(work.end[by_end], kind="stable")]
    ended = np.searchsorted(work.end[by_end], work.issued[launched], "left")
    next_end = by_end[np.minimum(ended, len(by_end) - 1)]
    ahead = len(before) + np.arange(len(launched)) - ended  # launches that had not ended, with those from before the recording
    call, most = work.call[launched], int(ahead.max(initial=0))
    near = ahead >= (1 - LOST_PLACES) * most
    early = np.zeros(len(call), bool)
    if len(held_up):  # of work that was not recorded no end can be seen
        near[:most] = False
        early = trace.start[call] < work.start[held_up].min()
    longer, over = _longer(trace, call, ~near), trace.start[call] + trace.duration[call] - work.end[next_end]
    waited, elsewhere = near & (over >= 0) & (over <= WAKE_UP), longer[~near & ~early]
    by_chance = 2 * elsewhere.sum() * waited.sum() / max(len(elsewhere), 1)
    if most < SHALLOWEST_QUEUE or longer[waited].sum() < max(LEAST_WAIT, by_chance, longer[near & ~waited].sum()):
        most, waited = 0, np.zeros_like(waited)
    return FullQueue(most, launched[waited], next_end[waited], launched[early & (longer >= LONG_CALL)])


def _longer(trace: Trace, call: Int32, free: NDArray[np.bool_]) -> Int64:
    """By how much each launch took longer than is usual of such a call, ns; 0 where it did not. free: those that found places; where there
    are none, nothing is usual."""
    took, name = trace.duration[call], trace.name[call]
    usual = np.full(len(call), np.quantile(took[free], QUICK) if free.any() else 0.0)
    for call_name in unique(name[free]).tolist():
        usual[name == call_name] = np.quantile(took[free & (name == call_name)], QUICK)
    longer: Int64 = np.maximum(took - usual, 0).astype(np.int64)
    return longer
