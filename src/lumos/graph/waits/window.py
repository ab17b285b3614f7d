"""The window's begin: device work that runs, or that other work holds up, from before the recording.

When such work starts has its cause before the window, so its measured start is taken from the trace. Nothing else is. Such work also
takes places in the queue of launches, so a launch of the recording can wait for the end of work that the recording does not show.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from lumos.graph.launches import of_graph_launches
from lumos.trace.table import Category

if TYPE_CHECKING:
    from lumos.graph.launches import DeviceWork
    from lumos.graph.waits.streams import StreamWaits
    from lumos.trace.table import Int64, Trace

#: Work that starts more than this after its launch call was held up (ns): a launch onto an idle device takes 1-10 us.
HELD_UP = 20_000
#: A launch that takes more than this many times what the quicker launches of its rank take has waited: one whose kernel has to pass a
#: lock or a full cache takes two or three times as long.
STALLED = 5
#: So many launches must have waited before the queue is taken to have been full: a busy host interrupts one now and then.
FEWEST_STALLS = 20


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
    for number in np.unique(device[first]).tolist():
        begins = int(work.start[device == number].min())
        here = device[first] == number
        busy = bool((late & here & (work.start[first] == begins)).any())
        out |= here & late & busy & (trace.start[call] < begins)
    return first[out]


def stalled_at_begin(trace: Trace, work: DeviceWork, held_up: Int64) -> Int64:
    """The kernels whose launch waited for a place in a queue that work from before the recording had filled; ascending indices into `work`.

    These are launches to a device that was busy at the window's begin. They returned before it began the first work of the recording, and
    took much longer than others. The time for which a launch waited depends on work that was not recorded, and on no work that was.
    Launches that are the first of their kernel may have loaded its code; they are no evidence that the queue was full.
    """
    none = np.empty(0, np.int64)
    kernels = np.flatnonzero((work.call >= 0) & (trace.category[work.row] == Category.KERNEL) & ~of_graph_launches(trace, work))
    if not len(held_up) or not len(kernels):
        return none
    kernels = kernels[np.argsort(work.issued[kernels], kind="stable")]
    call = work.call[kernels]
    took = trace.duration[call]
    device = np.array([number for number, _ in work.streams], np.int64)[work.stream]
    out = [none]
    for number in np.intersect1d(device[held_up], device[kernels]).tolist():
        begins = int(work.start[device == number].min())
        here = device[kernels] == number
        long = took > STALLED * np.percentile(took[here], 10)
        out.append(np.flatnonzero(here & long & (trace.start[call] + took <= begins)))
    stalled = np.concatenate(out)
    first_of_kernel = np.unique(trace.name[work.row[kernels]], return_index=True)[1]
    if len(np.setdiff1d(stalled, first_of_kernel)) < FEWEST_STALLS:
        return none
    return np.sort(kernels[stalled])
