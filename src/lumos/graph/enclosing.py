"""Which row of a thread encloses a moment."""

from __future__ import annotations

import numpy as np

from lumos.trace.table import ABSENT, Int64, Trace


class Ranges:
    """Rows of a trace, sorted so that the one running at a moment is found fast. rows: int64, of any lanes, in any order."""

    def __init__(self, trace: Trace, rows: Int64) -> None:
        self.trace = trace
        self.rows = rows[np.lexsort((trace.start[rows], trace.lane[rows]))]
        self.lane, self.start = trace.lane[self.rows], trace.start[self.rows]

    def at(self, lane: int, time: int) -> int:
        """The row on `lane` that began last at or before `time` (ns), unless it ended before `time`; ABSENT if there is none."""
        row = self.last(lane, time)
        return row if row != ABSENT and time <= self.trace.start[row] + self.trace.duration[row] else ABSENT

    def last(self, lane: int, time: int) -> int:
        """The row on `lane` that began last at or before `time` (ns); ABSENT if there is none."""
        low, high = np.searchsorted(self.lane, np.array((lane, lane + 1), np.int32))
        last = int(np.searchsorted(self.start[low:high], time, "right")) - 1
        return int(self.rows[low + last]) if last >= 0 else ABSENT
