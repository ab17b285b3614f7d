"""Where in the code of a step a row stands, so that repetitions of one place can be compared.

A loop runs the same code in every step. The n-th row of a name that a thread begins in a step is therefore the same place in the
code as the n-th row of that name in every other step, whatever their times. What holds at a place holds in all of its repetitions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.graph.lists import narrow, ordinals
from lumos.graph.steps import is_step_mark

if TYPE_CHECKING:
    from lumos.trace.table import Int64, Trace

#: A place: the name of a row (index into `Trace.strings`) and how many rows of that name the thread began in the step before it.
Place = tuple[int, int]


@dataclass(frozen=True, slots=True, eq=False)
class Places:
    """The places of the rows of one thread: row[i] of the trace, the i-th to begin, stands at (name[i], number[i]) in step[i].

    start: int64[rows] ns, ascending. step: int64[rows], number of the step mark that the row begins after; 0 before the first.
    """

    row: Int64
    start: Int64
    step: Int64
    name: Int64
    number: Int64

    def begun_before(self, time: Int64) -> Int64:
        """Index of the last row that began at or before each time, -1 without one."""
        return np.asarray(np.searchsorted(self.start, time, "right") - 1)

    def of(self, row: int) -> Place:
        """The place of the row with this index."""
        return int(self.name[row]), int(self.number[row])

    def repetitions(self) -> Repetitions:
        """The rows of every place, to look up."""
        width = int(self.number.max(initial=0)) + 1
        order = np.lexsort((narrow(self.number), narrow(self.name)))
        return Repetitions(width, order, (self.name * width + self.number)[order])


class Repetitions(NamedTuple):
    """The rows of every place: row order[i] stands at place key[i] = name · width + number, ascending."""

    width: int
    order: Int64
    key: Int64

    def at(self, place: Place) -> Int64:
        """The indices of the rows at a place, ascending."""
        key = place[0] * self.width + place[1]
        low, high = np.searchsorted(self.key, (key, key + 1))
        return self.order[low:high]


def places_in_code(trace: Trace, rows: Int64) -> Places:
    """The places of `rows` of the trace, which are rows of one thread."""
    order = rows[np.argsort(trace.start[rows], kind="stable")]
    start, name = trace.start[order], trace.name[order].astype(np.int64)
    step = step_at(trace, start)
    return Places(order, start, step, name, ordinals(name, step))


def step_at(trace: Trace, time: Int64) -> Int64:
    """How many step marks of the trace begin at or before each time; int64, like `time`."""
    marks = np.unique(trace.start[is_step_mark(trace)])
    return np.asarray(np.searchsorted(marks, time, "right"), np.int64)
