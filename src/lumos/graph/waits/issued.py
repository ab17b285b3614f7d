"""What was issued to each stream before a moment, from when on an event may stand for it, and what the profiler notes of waits for it.

The profiler's own rows about synchronisation (`cuda_sync`), where it was told to record them, say which stream or event a call waits for.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from lumos.trace.table import ABSENT, Category, Int32, Int64, Trace, unique

if TYPE_CHECKING:
    from lumos.graph.launches import DeviceWork

#: The time at which work can be awaited that no event stands for: never.
NO_TIME = np.iinfo(np.int64).max
#: The time of a call from before the recording.
BEFORE = np.iinfo(np.int64).min + 1


class Issued:
    """Work issued to streams, or to threads, searched by when that was: of device work, when the launching call began.

    issued, end: int64[works] ns; on every stream, issued ascends. bounds: the first work of every stream, and the total. The streams that
    methods take are one for all times, or one for each; there is no work on a negative one.
    """

    def __init__(self, issued: Int64, end: Int64, bounds: Int64) -> None:
        self.issued, self.end, self.bounds = issued, end, bounds
        #: When all work that had been issued to its stream before it, and it itself, had ended.
        self.ended = np.empty(len(end), np.int64)
        for low, high in pairwise(bounds.tolist()):
            np.maximum.accumulate(end[low:high], out=self.ended[low:high])

    @classmethod
    def of(cls, work: DeviceWork, *, together: bool = False) -> Issued:
        """The work of a device. together: all streams as one."""
        order = np.argsort(work.issued, kind="stable") if together else np.arange(len(work))
        bounds = np.array([0, len(work)]) if together else work.bounds()
        return cls(work.issued[order], work.end[order], bounds)

    def last_before(self, stream: int | Int64, time: Int64) -> Int64:
        """Index of the last work on a stream whose call started before each time; ABSENT where there is none."""
        return self._last(self.issued, stream, time, "left")

    def next_after(self, stream: int | Int64, time: Int64) -> Int64:
        """Index of the first work on a stream whose call started at each time or later; ABSENT where there is none."""
        last = self.last_before(stream, time)
        first, end = (np.append(self.bounds, [0, 0])[np.add(stream, more)] for more in (0, 1))  # there is nothing on a negative stream
        at = np.where(last == ABSENT, first, last + 1)
        return np.where(at < end, at, ABSENT)

    def _last(self, ascending: Int64, stream: int | Int64, time: Int64, side: Literal["left", "right"]) -> Int64:
        """Index of the last work on a stream up to each time, by a column that ascends on every stream; ABSENT where there is none."""
        of, out = np.broadcast_to(stream, time.shape), np.full(len(time), ABSENT, np.int64)
        for stream_number in unique(of[of >= 0]).tolist():
            low, high = self.bounds[stream_number : stream_number + 2].tolist()
            here = np.flatnonzero(of == stream_number)
            at = np.searchsorted(ascending[low:high], time[here], side)
            out[here] = np.where(at > 0, low + at - 1, ABSENT)
        return out

    def ended_before(self, stream: int, time: Int64) -> Int64:
        """When all work on a stream had ended that was issued before each time, ns; ABSENT where there is none."""
        return np.append(self.ended, ABSENT)[self.last_before(stream, time)]

    def marked(self, stream: int | Int64, recorded: Int64, over: Int64) -> Int64:
        """Index of the work on a stream that events stand for which were recorded at each time; ABSENT where there is none. Of work from
        BEFORE the recording, it is the last that had ended when the wait was over."""
        last = self.last_before(stream, recorded)
        return np.where(recorded == BEFORE, np.minimum(last, self._last(self.ended, stream, over, "right")), last)


def issued_together(trace: Trace, work: DeviceWork) -> Int64:
    """From when each piece of work can be awaited where record calls were not recorded, int64[works] ns: from the launch of every
    collective, which communication libraries follow by an event, and of work after which its thread went on to launch to another stream;
    NO_TIME where that is not known."""
    out = np.where(work.communicates & (work.issued >= BEFORE), work.issued, NO_TIME)
    by_thread = np.flatnonzero(work.call >= 0)
    by_thread = by_thread[np.lexsort((by_thread, work.issued[by_thread], trace.lane[work.call[by_thread]]))]
    leaves = by_thread[:-1][np.diff(work.stream[by_thread]) != 0]
    out[leaves] = work.issued[leaves]
    return out


#: In the place of a stream that the trace has no work on.
UNUSED = -2


class Notes(NamedTuple):
    """What is noted of each call, int64[k]. stream: the stream that waits, or is waited for, and source: that of an event, as indices,
    UNUSED where the trace has no work on it, ABSENT where nothing is noted. recorded: when what it waits for was, ns: with the event, which
    may be BEFORE the recording, or when the call began."""

    stream: Int64
    source: Int64
    recorded: Int64


def noted(trace: Trace, work: DeviceWork, calls: Int32) -> Notes:
    """What is noted of some calls, by their correlation ids."""
    rows = np.flatnonzero((trace.category == Category.SYNC) & (trace.correlation != ABSENT))
    rows = rows[np.argsort(trace.correlation[rows], kind="stable")]
    at = np.searchsorted(trace.correlation[rows], trace.correlation[calls], "right") - 1
    row = np.append(rows, ABSENT)[at]
    known = (row != ABSENT) & (trace.correlation[row] == trace.correlation[calls])
    keys = ("device", "stream", "wait_on_stream", "wait_on_cuda_event_record_corr_id")
    device, stream, source, record = (np.where(known, trace.dense(key)[row], ABSENT) for key in keys)
    recorded = _call_times(trace, record)
    return Notes(
        _streams(work, device, stream), _streams(work, device, source), np.where(recorded == ABSENT, trace.start[calls], recorded)
    )


def _streams(work: DeviceWork, device: Int64, stream: Int64) -> Int64:
    """The indices of named streams; of a name that one device alone has, that of this."""
    out = np.full(len(stream), ABSENT, np.int64)
    for name in unique(stream[stream != ABSENT]).tolist():
        alike = {d: i for i, (d, s) in enumerate(work.streams) if s == name}
        only = next(iter(alike.values())) if len(alike) == 1 else UNUSED
        here = stream == name
        out[here] = [alike.get(d, only) for d in device[here].tolist()]
    return out


def _call_times(trace: Trace, correlation: Int64) -> Int64:
    """When the first runtime call with each of these correlation ids began, ns; ABSENT where there is none, but BEFORE for an id that is
    smaller than all that were recorded: ids ascend."""
    calls = np.flatnonzero((trace.category == Category.RUNTIME) & (trace.correlation != ABSENT))
    ids, first = np.unique(trace.correlation[calls], return_index=True)
    if not len(ids):
        return np.full(len(correlation), ABSENT, np.int64)
    at = np.minimum(np.searchsorted(ids, correlation), len(ids) - 1)
    time = np.where(ids[at] == correlation, trace.start[calls[first[at]]], np.where(correlation < ids[0], BEFORE, ABSENT))
    return np.where(correlation == ABSENT, ABSENT, time)
