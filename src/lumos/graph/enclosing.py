"""Which row of a thread encloses a moment."""

from __future__ import annotations

import numpy as np

from lumos.trace.table import ABSENT, Int64, Trace


class Ranges:
    """Rows of a trace, sorted so that the one running at a moment is found fast. rows: int64, of any lanes, in any order."""

    def __init__(self, trace: Trace, rows: Int64) -> None:
        self.trace = trace
        self.rows = rows[np.lexsort((trace.start[rows], trace.lane[rows]))]

    def at(self, lane: int, time: int) -> int:
        """The row on `lane` that began last at or before `time` (ns), unless it ended before `time`; ABSENT if there is none."""
        trace, rows = self.trace, self.rows
        low, high = np.searchsorted(trace.lane[rows], np.array((lane, lane + 1), np.int32))
        last = int(np.searchsorted(trace.start[rows[low:high]], time, "right")) - 1
        if last < 0:
            return ABSENT
        row = int(rows[low + last])
        return row if time <= trace.start[row] + trace.duration[row] else ABSENT
