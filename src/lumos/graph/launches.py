"""What runtime calls do, by their names in the CUDA runtime, the CUDA driver or HIP, and the device work that they launched.

Work and its call have the same correlation id, which is unique among the calls of one process; one call may launch
several pieces of work (a graph launch: hundreds). Work whose call has no row is called an orphan and is a task all the same.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

import numpy as np

from lumos.graph.joined.collectives import is_communication
from lumos.trace.once import once_a_trace
from lumos.trace.table import ABSENT, DEVICE_WORK, Category, Int8, Int32, Int64, Trace

if TYPE_CHECKING:
    from numpy.typing import NDArray

class Call(IntEnum):
    """The kinds of calls that the dependency rules and the evidence need. Any other call is CPU work, or a launch where device work
    has its id."""

    OTHER = 0
    DEVICE_SYNC = 1
    STREAM_SYNC = 2
    EVENT_SYNC = 3
    STREAM_WAIT = 4
    EVENT_RECORD = 5
    QUERY = 6
    BLOCKING_COPY = 7  # copies that return only when they have ended, whatever the memory
    LAUNCH = 8  # launches one kernel
    GRAPH_LAUNCH = 9  # launches all kernels of a graph
    MAY_WAIT = 10  # allocates, registers or frees memory, for which drivers may wait for all device work


_PATTERNS = (
    (Call.DEVICE_SYNC, re.compile(r"(cuda|hip)DeviceSynchronize|cuCtxSynchronize|cuda_?ThreadSynchronize")),
    (Call.STREAM_SYNC, re.compile(r"(cuda|hip|cu)StreamSynchronize(_ptsz)?")),
    (Call.EVENT_SYNC, re.compile(r"(cuda|hip|cu)EventSynchronize")),
    (Call.STREAM_WAIT, re.compile(r"(cuda|hip|cu)StreamWaitEvent(_ptsz)?")),
    (Call.EVENT_RECORD, re.compile(r"(cuda|hip|cu)EventRecord(WithFlags)?(_ptsz)?")),
    (Call.QUERY, re.compile(r"(cuda|hip|cu)(Event|Stream)Query(_ptsz)?")),
    (Call.BLOCKING_COPY, re.compile(r"(cuda|hip)Memcpy(2D|3D)?|hipMemcpy(WithStream|DtoH|HtoD|DtoD)|cuMemcpy(DtoH|HtoD|DtoD)(_v2)?")),
    (Call.LAUNCH, re.compile(r"(cuda|hip|cu)(Ext)?(Module)?Launch(Cooperative)?Kernel(ExC|Ex)?(_ptsz|_spt)?")),
    (Call.GRAPH_LAUNCH, re.compile(r"(cuda|hip|cu)GraphLaunch(_ptsz)?")),
    (Call.MAY_WAIT, re.compile(r"(cuda|hip)(Free|Malloc)(Host|Array|Pitch|Managed)?|(cuda|hip)Host(Alloc|Malloc|Free|(Unr|R)egister)")),
    (Call.MAY_WAIT, re.compile(r"hipExtMallocWithFlags|cuMem(Alloc|Free)(Host)?(_v2)?|cuMemHost(Alloc|(Unr|R)egister(_v2)?)")),
)


@once_a_trace
def classify(trace: Trace) -> Int8:
    """The `Call` of every row; OTHER for rows that are not runtime calls."""
    of_name = np.zeros(max(1, len(trace.strings)), np.uint8)
    runtime = trace.category == Category.RUNTIME
    for name in trace.names_of(runtime):
        text = trace.strings[name]
        of_name[name] = next((call for call, pattern in _PATTERNS if pattern.fullmatch(text)), Call.OTHER)
    return np.where(runtime, of_name[trace.name], 0).astype(np.uint8)


@dataclass(frozen=True, slots=True, eq=False)
class DeviceWork:
    """The device work of one rank, sorted by (device, stream, issue); entry i is one kernel, copy or memset.

    row: row of the Trace. call: row of the runtime call that launched it, ABSENT for an orphan.
    stream: index into `streams`, the (device, stream) pairs in ascending order. communicates: whether it communicates between ranks.
    placed: whether its launch takes a place in the queue of launches; that of work which a change added to a job does not, and its file
    says so.
    """

    row: Int32
    call: Int32
    stream: Int32
    start: Int64
    end: Int64
    issued: Int64  # start of the launching call; for an orphan, that of the launch before it on the stream, else the smallest int64
    communicates: NDArray[np.bool_]
    placed: NDArray[np.bool_]
    streams: tuple[tuple[int, int], ...]

    def __len__(self) -> int:
        return len(self.row)

    def bounds(self) -> Int64:
        """First index of every stream's work, and the total: int64[streams + 1]."""
        return np.asarray(np.searchsorted(self.stream, np.arange(len(self.streams) + 1)), np.int64)

    def previous_end(self) -> Int64:
        """End of the work before each on its stream, int64[n] ns; the smallest int64 for the first of a stream."""
        out = np.full(len(self), np.iinfo(np.int64).min)
        same = self.stream[1:] == self.stream[:-1]
        out[1:][same] = self.end[:-1][same]
        return out


def of_graph_launches(trace: Trace, work: DeviceWork) -> NDArray[np.bool_]:
    """Which device work was launched as part of a graph, bool[n]."""
    return np.asarray((work.call >= 0) & (classify(trace)[work.call] == Call.GRAPH_LAUNCH))


def device_work(trace: Trace) -> DeviceWork:
    """The device work of a trace in issue order per stream, each piece with the call that launched it.

    A stream starts its work in the order in which it was issued, so the order of measured starts is the issue order,
    also where several threads launch to one stream. The times of the calls decide only between equal starts.
    """
    rows = np.flatnonzero(trace.is_any(*DEVICE_WORK)).astype(np.int32)
    call = _launching_calls(trace, rows)
    start = trace.start[rows]
    call_start = np.where(call >= 0, trace.start[call], start)
    device, stream = _queues(trace, rows)
    order = np.lexsort((call_start, start, stream, device))
    device, stream = device[order], stream[order]
    changes = np.flatnonzero((np.diff(device) != 0) | (np.diff(stream) != 0)) + 1
    first = np.concatenate((np.zeros(min(1, len(rows)), np.int64), changes))
    index = np.zeros(len(rows), np.int32)
    index[changes] = 1
    rows, start = rows[order], start[order]
    issued = np.where(call[order] >= 0, call_start[order], np.iinfo(np.int64).min)
    for low, high in zip(first, np.append(changes, len(rows))[: len(first)], strict=True):
        np.maximum.accumulate(issued[low:high], out=issued[low:high])
    return DeviceWork(
        row=rows,
        call=call[order],
        stream=np.cumsum(index, dtype=np.int32),
        start=start,
        end=start + trace.duration[rows],
        issued=issued,
        communicates=is_communication(trace)[rows],
        placed=trace.dense("Queue place")[rows] != 0,
        streams=tuple((int(device[i]), int(stream[i])) for i in first),
    )


def _queues(trace: Trace, rows: Int32) -> tuple[Int64, Int64]:
    """Device and stream of each row, from its arguments, else from the ids of its lane."""
    stream, device = trace.dense("stream")[rows], trace.dense("device")[rows]
    lane = trace.lane[rows]
    if (stream == ABSENT).any():
        stream = np.where(stream == ABSENT, np.array([_number(item.tid) for item in trace.lanes] or [0])[lane], stream)
    if (device == ABSENT).any():
        device = np.where(device == ABSENT, np.array([_number(item.pid) for item in trace.lanes] or [0])[lane], device)
    return device, stream


def _number(text: str) -> int:
    """The number in a lane's name ("7", "stream 7"), 0 where it has none."""
    digits = "".join(c for c in text if c in "0123456789")
    return int(digits[:9]) if digits else 0


def _launching_calls(trace: Trace, rows: Int32) -> Int32:
    """For each row of device work the runtime call with its correlation id: the last that started before it ended."""
    calls = np.flatnonzero(trace.category == Category.RUNTIME)
    latest = _latest_before(trace.correlation[calls], trace.start[calls], trace.correlation[rows], trace.start[rows] + trace.duration[rows])
    return np.where(latest >= 0, calls[latest], ABSENT).astype(np.int32) if len(calls) else np.full(len(rows), ABSENT, np.int32)


def _latest_before(key: Int64, time: Int64, wanted_key: Int64, wanted_time: Int64) -> Int64:
    """Index of the entry with the wanted key and the latest time <= wanted time, else the first with that key, else -1."""
    order = np.lexsort((time, key))
    sorted_key, sorted_time = key[order], time[order]
    if len(key) == 0:
        return np.full(len(wanted_key), -1, np.int64)
    low = np.searchsorted(sorted_key, wanted_key, "left")
    high = np.searchsorted(sorted_key, wanted_key, "right")
    many = np.flatnonzero(high - low > 1)
    at = low.copy()
    for i in many:  # an id that occurs twice is rare, so a loop is fast enough
        at[i] += max(int(np.searchsorted(sorted_time[low[i] : high[i]], wanted_time[i], "right")) - 1, 0)
    present = (high > low) & (wanted_key != ABSENT)
    return np.where(present, order[np.minimum(at, len(order) - 1)], -1)
