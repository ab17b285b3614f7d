"""Which rows of threads enclose moments."""

from __future__ import annotations

import numpy as np

from lumos.trace.table import ABSENT, Int32, Int64, Trace


class Ranges:
    """Rows of a trace, sorted so that those running at many moments are found at once. rows: indices, of any lanes, in any order."""

    def __init__(self, trace: Trace, rows: Int32 | Int64) -> None:
        self.trace = trace
        self.rows = rows[np.lexsort((trace.start[rows], trace.lane[rows]))]
        self.lane, self.start = trace.lane[self.rows], trace.start[self.rows]

    def at(self, lane: Int32, time: Int64) -> Int64:
        """For each i the row on lane[i] that began last at or before time[i] (ns), unless it ended before that; ABSENT if there is none."""
        row = self.last(lane, time)
        return np.where((row != ABSENT) & (time <= self.trace.start[row] + self.trace.duration[row]), row, ABSENT)

    def last(self, lane: Int32, time: Int64) -> Int64:
        """For each i the row on lane[i] that began last at or before time[i] (ns); ABSENT if there is none."""
        out = np.full(len(time), ABSENT, np.int64)
        for own in np.unique(lane):
            low, high = np.searchsorted(self.lane, np.array((own, own + 1), np.int32))
            here = np.flatnonzero(lane == own)
            last = np.searchsorted(self.start[low:high], time[here], "right") - 1
            out[here[last >= 0]] = self.rows[low + last[last >= 0]]
        return out
