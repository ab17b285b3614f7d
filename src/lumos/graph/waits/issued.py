"""What was issued to each stream before a moment, and from when on an event may stand for it."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Literal

import numpy as np

from lumos.graph.calls import Call
from lumos.graph.waits.notes import BEFORE
from lumos.trace.table import ABSENT, Int8, Int64, Trace

if TYPE_CHECKING:
    from lumos.graph.launches import DeviceWork

#: The time at which work can be awaited that no event stands for: never.
NO_TIME = np.iinfo(np.int64).max


class Issued:
    """Work issued to streams, or to threads, searched by when that was: of device work, when the launching call began.

    issued, end: int64[works] ns; on every stream, issued ascends. bounds: the first work of every stream, and the total. rounding: how late
    an end may be shown, ns. The streams that methods take are one for all times, or one for each; there is no work on a negative one.
    """

    def __init__(self, issued: Int64, end: Int64, bounds: Int64, rounding: int = 0) -> None:
        self.issued, self.end, self.bounds, self.rounding = issued, end, bounds, rounding
        #: When all work that had been issued to its stream before it, and it itself, had ended.
        self.ended = np.empty(len(end), np.int64)
        for low, high in pairwise(bounds.tolist()):
            np.maximum.accumulate(end[low:high], out=self.ended[low:high])

    @classmethod
    def of(cls, work: DeviceWork, *, together: bool = False) -> Issued:
        """The work of a device. together: all streams as one. A clock of whole microseconds may show an end up to 1 us late."""
        order = np.argsort(work.issued, kind="stable") if together else np.arange(len(work))
        bounds = np.array([0, len(work)]) if together else work.bounds()
        return cls(work.issued[order], work.end[order], bounds, 1000 if not (work.start % 1000).any() else 0)

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
        for each in np.unique(of[of >= 0]).tolist():
            low, high = self.bounds[each : each + 2].tolist()
            here = np.flatnonzero(of == each)
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
        return np.where(recorded == BEFORE, np.minimum(last, self._last(self.ended, stream, over + self.rounding, "right")), last)


def recorded_events(trace: Trace, calls: Int8, issued: Issued) -> Int64 | None:
    """From when each piece of work can be awaited through an event, int64[works] ns: from the first record call after its launch and before
    the next launch to its stream; NO_TIME where there is none, and for work from before the recording. None without any record calls."""
    records = np.sort(trace.start[calls == Call.EVENT_RECORD])
    if not len(records):
        return None
    out = np.full(len(issued.end), NO_TIME)
    for stream in range(len(issued.bounds) - 1):
        last = issued.last_before(stream, records)
        np.minimum.at(out, last[last >= 0], records[last >= 0])
    return np.where(issued.issued >= BEFORE, out, NO_TIME)


def issued_together(trace: Trace, work: DeviceWork) -> Int64:
    """The same where record calls were not recorded: from the launch of every collective, which communication libraries follow by an
    event, and of work after which its thread went on to launch to another stream."""
    out = np.where(work.communicates & (work.issued >= BEFORE), work.issued, NO_TIME)
    by_thread = np.flatnonzero(work.call >= 0)
    by_thread = by_thread[np.lexsort((by_thread, work.issued[by_thread], trace.lane[work.call[by_thread]]))]
    leaves = by_thread[:-1][np.diff(work.stream[by_thread]) != 0]
    out[leaves] = work.issued[leaves]
    return out
