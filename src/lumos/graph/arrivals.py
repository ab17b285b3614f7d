"""Batches that a loop receives from other processes, which a recording lacks.

PyTorch's loader with worker processes leaves one range for each batch that the loop takes. A batch that is ready costs well under a
millisecond; in a longer range the loop waits. Where it waits for every batch of the recording, no finished batch is ever left over, so the
processes work without a pause, and the time from one batch to the next is what they take for a batch, whatever the loop does. That time is
the loader's pace: a loop that becomes faster waits longer, one that becomes slower waits less and, beyond that pace, not at all.

A replay of the recording keeps these waits. A loop of its step (`analyze.loop.repeat`) leaves them out, and holds each batch back until
the processes have made it.

Limits: the pace is known only where the loop waits for all batches and these come at even times. A loader that is faster than the loop
shows no pace, and one whose processes deliver in bursts none that a few steps tell. Processes that share cores with the loop are taken to
be as fast as before, whatever changes there.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.graph.enclosing import Ranges
from lumos.graph.table import Arrivals
from lumos.trace.table import ABSENT, Category, Int64, Trace

if TYPE_CHECKING:
    from lumos.graph.hand_offs.slices import HostSlices
    from lumos.graph.hand_offs.threads import HandOffs

#: The range in which the loop takes a batch from PyTorch's loader with worker processes; a loader without them works in its range.
_FROM_PROCESSES = re.compile(r"enumerate\(DataLoader\)#_MultiProcessingDataLoaderIter")
#: To take a batch that is ready costs less than this (ns): 70 to 190 us on the public traces.
BATCH_READY = 1_000_000
#: The fewest batches that show a pace, and how far the time between any two may be from the mean, as a fraction. The workers of a loader
#: take turns: where one delivers late, the next batches follow at once, and the times between them differ by far more.
FEWEST_BATCHES, EVEN = 3, 0.25


class LoaderWaits(NamedTuple):
    """Where the loop waits for batches. slice: int64[k], the slice of HostSlices that holds the wait for each. wait: int64[k] ns of it.
    share: of the loop's time that all of them take. pace: ns from batch to batch, 0 where it is not known."""

    slice: Int64
    wait: Int64
    share: float
    pace: int


def from_processes(trace: Trace) -> Int64:
    """The rows in which a loop takes a batch from other processes."""
    return np.flatnonzero(trace.named(_FROM_PROCESSES.match) & trace.is_any(Category.OPERATOR, Category.ANNOTATION))


def loader_waits(trace: Trace, slices: HostSlices, handed: HandOffs) -> LoaderWaits:
    """The waits of one rank for batches of other processes."""
    every = from_processes(trace)
    ranges = every[trace.duration[every] >= BATCH_READY]
    own = np.isin(slices.lane, trace.lane[ranges])
    unknown = own & (slices.row < 0)
    unknown[handed.slice] = False
    gap = np.flatnonzero(unknown) if len(ranges) else np.empty(0, np.int64)
    around = Ranges(trace, ranges)
    middle = (slices.start[gap] + slices.end[gap]) // 2
    row = around.at(slices.lane[gap], middle)
    gap, row = gap[row != ABSENT], row[row != ABSENT]
    wait = np.minimum(slices.end[gap], trace.start[row] + trace.duration[row]) - np.maximum(slices.start[gap], trace.start[row])
    share = float((slices.end[gap] - slices.start[gap]).sum() / max(1, (slices.end[own] - slices.start[own]).sum()))
    return LoaderWaits(gap, wait, share, _pace(trace, every, row))


def _pace(trace: Trace, ranges: Int64, waited: Int64) -> int:
    """The time from batch to batch, ns, where each of `ranges` has one wait and they end at even times; else 0. waited: the range of each
    wait. The first range of a recording may have none: its thread has no row before it."""
    ranges = ranges[np.argsort(trace.start[ranges], kind="stable")]
    if len(ranges) < FEWEST_BATCHES or len(np.unique(trace.lane[ranges])) > 1:
        return 0
    if not any(np.array_equal(np.sort(waited), np.sort(some)) for some in (ranges, ranges[1:])):
        return 0
    between = np.diff(trace.start[ranges] + trace.duration[ranges])
    pace = float(between.mean())
    return round(pace) if (np.abs(between - pace) <= EVEN * pace).all() else 0


def arrivals(waits: LoaderWaits, tasks: Int64, durations: Int64) -> Arrivals | None:
    """The batches whose pace is known; None without any. tasks: the task of every slice. durations: ns of every task."""
    if not waits.pace:
        return None
    task = tasks[waits.slice]
    return Arrivals(task.astype(np.int32), waits.wait / np.maximum(durations[task], 1), np.full(len(task), waits.pace, np.int64))


def without_waits(durations: Int64, batches: Arrivals | None) -> Int64:
    """The durations of a job's tasks in a loop, in which waiting for a batch is no part of a task; the same where there is none."""
    if batches is None:
        return durations
    out = durations.copy()
    out[batches.task] = np.rint(durations[batches.task] * (1 - batches.wait)).astype(np.int64)
    return out
