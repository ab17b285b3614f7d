"""CPU tasks: the slices of all threads of a rank, and the returns of blocking calls and of hand-offs between them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from lumos.graph.joined.collectives import is_cpu_collective
from lumos.graph.table import Kind
from lumos.trace.table import Category, Int8, Int32, Int64, Trace

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from lumos.graph.hand_offs.slices import HostSlices
    from lumos.graph.hand_offs.threads import HandOffs


@dataclass(slots=True, eq=False)
class HostPlan:
    """Which task every slice becomes: its kind, its CPU work, and whether a return follows it. Each rule changes it in turn.

    kind: uint8 `Kind`; duration: ns of CPU work; begin, finish: measured start and end of that work; returns: a RETURN follows.
    """

    slices: HostSlices
    kind: Int8
    duration: Int64
    begin: Int64
    finish: Int64
    returns: NDArray[np.bool_]
    last_of_row: Int32  # last slice of each row of the trace, -1 without one

    def cut(self, rows: Int32, kind: Kind, own: Int64) -> None:
        """Say that the calls in `rows` cost `own` ns and then wait: their slices become that short, and a return follows each."""
        at = self.last_of_row[rows]
        self.kind[at] = kind
        self.duration[at] = np.minimum(own, self.duration[at])
        self.finish[at] = self.begin[at] + self.duration[at]
        self.returns[at] = True


def plan(trace: Trace, slices: HostSlices) -> HostPlan:
    """A plan in which every slice is CPU work for its whole measured time."""
    kind = np.full(len(slices), Kind.OPERATOR, np.uint8)
    real = np.flatnonzero(slices.row >= 0)
    kind[slices.row < 0] = Kind.HOST
    kind[real[trace.category[slices.row[real]] == Category.RUNTIME]] = Kind.RUNTIME
    kind[real[is_cpu_collective(trace)[slices.row[real]]]] = Kind.COLLECTIVE
    last = np.full(len(trace), -1, np.int32)
    last[slices.row[real]] = real
    return HostPlan(slices, kind, slices.end - slices.start, slices.start.copy(), slices.end.copy(), np.zeros(len(slices), bool), last)


@dataclass(frozen=True, slots=True, eq=False)
class HostTasks:
    """CPU tasks of one rank, by measured start.

    kind, row (of the Trace, -1 none), lane, duration, start, end: columns, one entry per task.
    of_slice: the task of each slice. return_of_slice: the RETURN after each slice, -1 without one.
    hand_off_task, hand_off_source: hand_off_task[i] is a RETURN that waits for task hand_off_source[i] of another thread.
    """

    kind: Int8
    row: Int32
    lane: Int32
    duration: Int64
    start: Int64
    end: Int64
    of_slice: Int64
    return_of_slice: Int64
    hand_off_task: Int64
    hand_off_source: Int64

    def __len__(self) -> int:
        return len(self.kind)


def host_tasks(planned: HostPlan, handed: HandOffs) -> HostTasks:
    """Make the tasks, in the order of their measured starts.

    A hand-off becomes a RETURN at the end of the other thread's work, followed by a task for the CPU time that the waiting
    thread needed from then until its next row.
    """
    slices = planned.slices
    n = len(slices)
    resumed = handed.resumed(slices)
    in_gap = handed.paused
    gaps, first = handed.slice[in_gap], handed.slice[~in_gap]
    begin, duration = planned.begin.copy(), planned.duration.copy()
    begin[gaps] = resumed[in_gap]
    duration[gaps] = slices.end[gaps] - resumed[in_gap]
    after = np.flatnonzero(planned.returns)
    every = np.arange(n)
    source_slice = np.concatenate((handed.slice, first, every, after))
    none = np.zeros(len(handed.slice) + len(first), np.int64)
    new = np.repeat(np.array((Kind.RETURN, Kind.HOST, Kind.RETURN), np.uint8), (len(handed.slice), len(first), len(after)))
    kind = np.concatenate((new[: len(none)], planned.kind, new[len(none) :]))
    row = np.concatenate((none.astype(np.int32) - 1, slices.row, slices.row[after]))
    first_resumed = resumed[~in_gap]
    start = np.concatenate((resumed, first_resumed, begin, slices.end[after]))
    end = np.concatenate((resumed, slices.start[first], planned.finish, slices.end[after]))
    time = np.concatenate((none[: len(handed.slice)], slices.start[first] - first_resumed, duration, np.zeros(len(after), np.int64)))
    # By slice: the return of a hand-off, the work after it in a thread's first slice, the slice, its return.
    along = np.lexsort((np.repeat(np.arange(4), (len(handed.slice), len(first), n, len(after))), source_slice))
    order = along[np.argsort(start[along], kind="stable")]
    position = np.empty(len(order), np.int64)
    position[order] = np.arange(len(order))
    split = np.cumsum((len(handed.slice), len(first), n))
    return_of_slice = np.full(n, -1, np.int64)
    return_of_slice[after] = position[split[2] :]
    of_slice = position[split[1] : split[2]]
    behind = np.where(return_of_slice >= 0, return_of_slice, of_slice)
    return HostTasks(
        kind=kind[order],
        row=row[order],
        lane=slices.lane[source_slice[order]],
        duration=time[order],
        start=start[order],
        end=end[order],
        of_slice=of_slice,
        return_of_slice=return_of_slice,
        hand_off_task=np.concatenate((position[: split[0]], position[handed.joins])),
        hand_off_source=behind[np.concatenate((handed.source, handed.joined))],
    )

