"""The six constants that a replay takes from one rank's trace, each estimated from many gaps.

launch_latency: from the end of a launch call to the start of its work, on a stream that had been idle.
kernel_gap: from the end of work to the start of the next on its stream, where the next had been launched long before.
dispatch: the same where the device came to the next only after the work before had ended.
stream_wait: from the end of the awaited work to the start of work on another stream that waited for it and for nothing else.
sync_return: from the end of the awaited work to the return of the synchronising call.
copy_return: from the end of a blocking copy to the return of its call.
kernel_gap is a mean, because gaps have two sizes on some devices (ROCm: 1 ns and 3.5 us), not all of which have a known cause, and with
the median of those a busy stream would run too fast. The others are medians. Work of a graph launch gives no launch latency: the call
starts hundreds of pieces, on streams of its own. A wait between streams may have another cause in one repetition or the other, so each
wait in the code gives its shortest delay.

Where no work of a rank was ever queued behind other work, its kernel_gap has no sample. It is then the usual gap of the platform, which no
gap in the recording may be shorter than. What it may be instead is stated with it, so that answers which depend on it say so.

*Dispatch.* To dispatch a kernel, a device's command processor takes it from its queue and starts its blocks. ROCm's profiler takes down the
start of a kernel when it is taken from the queue. Mostly that happens while the kernel before it still runs; the dispatch is then part of
the recorded duration, and the kernels of a stream follow one another without a gap. While a collective runs in another queue, the processor
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

from lumos.graph.launches import of_graph_launches
from lumos.graph.table import Dependency
from lumos.graph.waits.solve import WAKE_UP
from lumos.graph.waits.streams import LONGEST_DELAY
from lumos.trace.table import unique

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from lumos.graph.launches import DeviceWork
    from lumos.graph.waits.streams import StreamWaits
    from lumos.graph.waits.syncs import BlockingCopies, Synchronisations
    from lumos.trace.table import Int64, Trace

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


#: Work launched at least this long before the previous work ended waited for that work, not for its launch (ns).
LAUNCHED_EARLY = 5_000
#: A longer pause between two pieces of queued work has another cause and is left out of the estimate (ns).
LONGEST_GAP = 10_000
#: The gap between kernels on the public traces, ns: the smallest mean of a trace with at least 30 samples, the median over the devices, and
#: the largest mean. CUDA: 2080 Ti, V100, A100, H100; ROCm: MI210, MI300X, where most gaps are none (`python -m validation.replay` prints
#: the constants of every trace).
CUDA_GAP, ROCM_GAP = (900, 1_400, 2_300), (0, 0, 900)
#: A longer launch onto an idle stream has another cause, such as module loading or profiler start-up (ns).
LONGEST_LATENCY = 100_000


class Constants(NamedTuple):
    """The constants of one rank, ns. lag: int64[dependencies], the delay that each kind of `Dependency` adds. gap_range: the least and the
    most that kernel_gap may be where it has no sample, else None."""

    lag: Int64
    gap_range: tuple[int, int] | None = None


def rank_constants(
    trace: Trace, work: DeviceWork, waits: StreamWaits, syncs: Synchronisations, copies: BlockingCopies, dispatched: Dispatches
) -> Constants:
    """Estimate the constants of one rank. Work that also waits for another stream gives none but the delay of that."""
    lag = np.zeros(len(Dependency), np.int64)
    if not len(work):
        return Constants(lag)
    launched = work.call >= 0
    ordinary = launched.copy()
    ordinary[waits.work] = False
    ordinary[copies.work] = False
    call_end = np.where(launched, trace.start[work.call] + trace.duration[work.call], 0)
    previous_end = work.previous_end()
    idle = ordinary & (previous_end <= work.issued) & ~of_graph_launches(trace, work)
    queued = ordinary & (call_end + LAUNCHED_EARLY < previous_end)
    at_once = queued.copy()
    at_once[dispatched.work] = False
    gap = (work.start - previous_end)[at_once]
    latency = (work.start - call_end)[idle]
    waited = syncs.waited
    returned = (trace.start[syncs.row] + trace.duration[syncs.row])[waited] - syncs.awaited_end[waited]
    call = work.call[copies.work]
    after_copy = trace.start[call] + trace.duration[call] - work.end[copies.work]
    gap = gap[gap < LONGEST_GAP]
    least, lag[Dependency.STREAM_ORDER], most = (max(0, int(gap.mean())),) * 3 if len(gap) else _usual_gap(trace, work, ordinary)
    lag[Dependency.LAUNCH] = _median(latency[latency < LONGEST_LATENCY])
    lag[Dependency.OCCUPANCY] = dispatched.delay
    lag[Dependency.STREAM_WAIT] = _wait_delay(work, waits, np.maximum(previous_end, call_end + LAUNCHED_EARLY))
    lag[Dependency.SYNC] = _median(returned[(returned >= 0) & (returned < WAKE_UP)])
    lag[Dependency.COPY] = _median(after_copy[after_copy >= 0])
    return Constants(lag, (least, most) if least < most else None)


def _usual_gap(trace: Trace, work: DeviceWork, ordinary: NDArray[np.bool_]) -> tuple[int, int, int]:
    """The least, the usual and the most time between two kernels, ns, on the platform of the calls. Every pause between two of the rank's
    kernels held the gap, so none of the three is longer than the shortest pause. ordinary: work that waits for its stream alone."""
    launched = unique(trace.name[work.call[work.call >= 0]]).tolist()
    platform = ROCM_GAP if any(trace.strings[name].startswith("hip") for name in launched) else CUDA_GAP
    follows = ordinary & (np.diff(work.stream, prepend=-1) == 0)
    pause = (work.start - work.previous_end())[follows]
    shortest = max(0, int(pause.min())) if len(pause) else 0
    least, usual, most = (min(gap, shortest) for gap in platform)
    return least, usual, most


def _wait_delay(work: DeviceWork, waits: StreamWaits, otherwise_ready: Int64) -> int:
    """The delay of a wait between streams, from work whose awaited work ended after it was ready in every other way."""
    end = np.full(len(work), np.iinfo(np.int64).min)
    np.maximum.at(end, waits.work, work.end[waits.source])
    last = work.end[waits.source] == end[waits.work]
    binds = last & (end[waits.work] > otherwise_ready[waits.work])
    delay, wait_place = (work.start[waits.work] - end[waits.work])[binds], waits.place[binds]
    shortest = np.full(int(wait_place.max(initial=-1)) + 1, LONGEST_DELAY)
    np.minimum.at(shortest, wait_place, delay)
    return _median(shortest[shortest < LONGEST_DELAY])


def _median(values: Int64) -> int:
    """Median, but not below zero, since an effect never precedes its cause; zero where there are no values."""
    return max(0, int(np.median(values))) if len(values) else 0
