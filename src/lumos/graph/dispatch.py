"""Kernels whose dispatch shows as a gap behind the kernel before them.

To dispatch a kernel, a device's command processor takes it from its queue and starts its blocks. ROCm's profiler takes down the start of a
kernel when it is taken from the queue. Mostly that happens while the kernel before it still runs; the dispatch is then part of the
recorded duration, and the kernels of a stream follow one another without a gap. While a collective runs in another queue, the processor
serves both, and comes to the next kernel of a stream only some time after the last one began to run. A kernel that runs for less has ended
by then, and the dispatch of the next is recorded as a gap.

So whether there is a gap follows from a collective that may run at the same time, and from a kernel before that runs only for a moment.
The first is read from the order of calls: the kernel was issued after what a collective waits for, and before what waits for the
collective. Where the recorded duration of the kernel before includes its own dispatch, that is taken off. No recorded start decides about
a kernel. The gap is a constant of the rank. Profilers that take down starts after the dispatch (CUDA's) record a gap before every
kernel, and this rule has nothing to explain.

Limits: the collective is taken to be under way wherever its dependencies let it be, and a change that makes it shorter leaves the gaps
as they are. What a collective waits for is unknown where it was launched before the window.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from lumos.graph.launches import DeviceWork
    from lumos.graph.waits.streams import StreamWaits
    from lumos.trace.table import Int64

#: A kernel that runs for less than this has ended when the processor comes to the next one (ns). On the public recording of ROCm with
#: collectives, all kernels of less than 1.0 us are followed by a gap, and none of more than 1.5 us.
TAKEN_UP = 1_000
#: Work that begins so soon after the work before it follows without a gap (ns).
NO_GAP = 1
#: A longer gap has another cause than the dispatch (ns).
LONGEST_DISPATCH = 10_000


class Dispatches(NamedTuple):
    """The device work whose dispatch is a gap behind the work before it on its stream, int64[k] indices into `DeviceWork`, and how long
    a dispatch takes, ns."""

    work: Int64
    delay: int


def dispatches(work: DeviceWork, waits: StreamWaits) -> Dispatches:
    """The dispatches that are gaps."""
    beside = _beside_collectives(work, waits)
    gap = np.where(beside, work.start - np.roll(work.end, 1), 0)
    before = np.roll(work.end - work.start, 1)
    at_once = beside & (before < TAKEN_UP)
    sample = gap[at_once & (gap < LONGEST_DISPATCH)]
    delay = int(np.median(sample)) if len(sample) else 0
    if delay <= NO_GAP or np.median(gap[beside]) > NO_GAP:
        return Dispatches(np.empty(0, np.int64), 0)
    return Dispatches(np.flatnonzero(_gaps(beside, at_once, before < TAKEN_UP + delay)), delay)


def _beside_collectives(work: DeviceWork, waits: StreamWaits) -> NDArray[np.bool_]:
    """Which work may run beside a collective: bool[works], all work of a stream that was issued after what a collective on another
    stream waits for, and before what waits for the collective."""
    n, bounds = len(work), work.bounds()
    of_collective = work.communicates[waits.work]
    collective, source = waits.work[of_collective], waits.source[of_collective]
    held = np.sort(waits.source * n + waits.work)  # for each piece of work, what waits for it
    after = np.append(held, -1)[np.searchsorted(held, collective * n + source, "right")]
    end = bounds[work.stream[source] + 1]
    end = np.where(after // max(n, 1) == collective, np.minimum(after % max(n, 1), end), end)
    some = end > source + 1
    change = np.bincount(source[some] + 1, minlength=n + 1) - np.bincount(end[some], minlength=n + 1)
    out = np.cumsum(change)[:n] > 0
    out[work.communicates] = False
    out[bounds[:-1][np.diff(bounds) > 0]] = False  # the first work of a stream follows nothing
    return out


def _gaps(beside: NDArray[np.bool_], at_once: NDArray[np.bool_], short: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Which work has its dispatch as a gap, bool[works]. at_once: the recorded duration of the work before it is that of a kernel which
    runs for a moment. short: it is that if it includes a dispatch, which it does where no gap is in front."""
    open_ = beside & short & ~at_once
    index = np.arange(len(beside))
    decided = np.maximum.accumulate(np.where(open_, -1, index))
    # In a row of undecided work, a gap in front of one means none in front of the next.
    turned: NDArray[np.bool_] = (index - decided) % 2 == 1
    return np.not_equal((beside & at_once)[decided], turned).astype(bool)
