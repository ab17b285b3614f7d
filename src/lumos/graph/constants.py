"""The four constants that a replay takes from one rank's trace, each estimated from many gaps.

launch_latency: from the end of a launch call to the start of its work, on a stream that had been idle.
kernel_gap: from the end of work to the start of the next on its stream, where the next had been launched long before.
sync_return: from the end of the awaited work to the return of the synchronising call.
copy_return: from the end of a blocking copy to the return of its call.
kernel_gap is a mean, because gaps have two sizes on some devices (ROCm: 1 ns and 3.5 us) and with the median of those a
busy stream would run too fast. The others are medians.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from lumos.graph.syncs import WAKE_UP, BlockingCopies, Synchronisations
from lumos.graph.table import Dependency

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from lumos.graph.launches import DeviceWork
    from lumos.trace.table import Int64, Trace

#: Work launched at least this long before the previous work ended waited for that work, not for its launch (ns).
LAUNCHED_EARLY = 5_000
#: A longer pause between two pieces of queued work has another cause and is left out of the estimate (ns).
LONGEST_GAP = 10_000
#: A longer launch onto an idle stream has another cause, such as module loading or profiler start-up (ns).
LONGEST_LATENCY = 100_000


@dataclass(frozen=True, slots=True)
class Constants:
    """The named constants of one rank, ns."""

    launch_latency: int = 0
    kernel_gap: int = 0
    sync_return: int = 0
    copy_return: int = 0

    def lags(self) -> Int64:
        """The delay that each kind of dependency adds, by `Dependency`."""
        lag = np.zeros(len(Dependency), np.int64)
        lag[Dependency.LAUNCH] = self.launch_latency
        lag[Dependency.STREAM_ORDER] = self.kernel_gap
        lag[Dependency.SYNC] = self.sync_return
        lag[Dependency.COPY] = self.copy_return
        return lag


#: The names above, by the dependency that adds them; what `replay` reports as `rank_constants`.
CONSTANT_NAMES = {
    Dependency.LAUNCH: "launch_latency",
    Dependency.STREAM_ORDER: "kernel_gap",
    Dependency.SYNC: "sync_return",
    Dependency.COPY: "copy_return",
}


def rank_constants(
    trace: Trace, work: DeviceWork, waiting: NDArray[np.bool_], syncs: Synchronisations, copies: BlockingCopies
) -> Constants:
    """Estimate the constants of one rank. `waiting` marks work that also waits for another stream."""
    if not len(work):
        return Constants()
    ordinary = (work.call >= 0) & ~waiting
    ordinary[copies.work] = False
    call_end = np.where(work.call >= 0, trace.start[work.call] + trace.duration[work.call], 0)
    previous_end = np.full(len(work), np.iinfo(np.int64).min)
    same = work.stream[1:] == work.stream[:-1]
    previous_end[1:][same] = work.end[:-1][same]
    idle = ordinary & (previous_end <= work.issued)
    queued = ordinary & (call_end + LAUNCHED_EARLY < previous_end)
    gap = (work.start - previous_end)[queued]
    latency = (work.start - call_end)[idle]
    waited = syncs.waited
    returned = (trace.start[syncs.row] + trace.duration[syncs.row])[waited] - syncs.awaited_end[waited]
    call = work.call[copies.work]
    after_copy = trace.start[call] + trace.duration[call] - work.end[copies.work]
    return Constants(
        launch_latency=_median(latency[latency < LONGEST_LATENCY]),
        kernel_gap=_mean(gap[gap < LONGEST_GAP]),
        sync_return=_median(returned[(returned >= 0) & (returned < WAKE_UP)]),
        copy_return=_median(after_copy[after_copy >= 0]),
    )


def _median(values: Int64) -> int:
    """Median, but not below zero, since an effect never precedes its cause; zero where there are no values."""
    return max(0, int(np.median(values))) if len(values) else 0


def _mean(values: Int64) -> int:
    """Mean, not below zero; zero where there are no values."""
    return max(0, int(np.mean(values))) if len(values) else 0
