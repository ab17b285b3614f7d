"""Batches that a loop receives from other processes, which a recording lacks.

PyTorch's loader with worker processes leaves one range for each batch that the loop takes. A batch that is ready costs well under a
millisecond; in a longer range the loop waits. The wait stays CPU work, under a name of its own: how fast the processes are is not recorded,
and the time from one batch to the next does not tell it, because they may have waited for the loop in between.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from lumos.graph.places import Ranges
from lumos.trace.once import once_a_trace
from lumos.trace.table import ABSENT, Category, Int64, Trace

if TYPE_CHECKING:
    from lumos.graph.hand_offs.slices import HostSlices
    from lumos.graph.hand_offs.threads import HandOffs

#: The range in which the loop takes a batch from PyTorch's loader with worker processes; a loader without them works in its range.
_FROM_PROCESSES = re.compile(r"enumerate\(DataLoader\)#_MultiProcessingDataLoaderIter")
#: To take a batch that is ready costs less than this (ns): 70 to 190 us on the public traces.
BATCH_READY = 1_000_000
#: Name of the tasks that are a loop's waits for batches of other processes.
AWAITS_BATCH = "(waiting for a batch)"


@once_a_trace
def from_processes(trace: Trace) -> Int64:
    """The rows in which a loop takes a batch from other processes."""
    return np.flatnonzero(trace.named(_FROM_PROCESSES.match) & trace.is_any(Category.OPERATOR, Category.ANNOTATION))


def loader_waits(trace: Trace, slices: HostSlices, handed: HandOffs) -> tuple[Int64, float]:
    """The slices in which the loop waits for batches of other processes, and their share of its time from the first of them on."""
    ranges = from_processes(trace)
    ranges = ranges[trace.duration[ranges] >= BATCH_READY]
    own = np.isin(slices.lane, trace.lane[ranges])
    unknown = own & (slices.row < 0)
    unknown[handed.slice] = False
    gap = np.flatnonzero(unknown)
    gap = gap[Ranges(trace, ranges).at(slices.lane[gap], (slices.start[gap] + slices.end[gap]) // 2) != ABSENT]
    lasted = slices.end - slices.start
    since = own & (slices.start >= slices.start[gap].min(initial=np.iinfo(np.int64).max))
    return gap, float(lasted[gap].sum() / max(1, lasted[since].sum()))
