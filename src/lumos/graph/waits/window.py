"""The window's begin: device work that runs, or that other work holds up, from before the recording.

When such work starts has its cause before the window, so its measured start is taken from the trace. Nothing else is.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from lumos.trace.table import unique

if TYPE_CHECKING:
    from lumos.graph.launches import DeviceWork
    from lumos.graph.waits.streams import StreamWaits
    from lumos.trace.table import Int64, Trace

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
