"""Which rows of a trace are inside which: the rows of one thread nest as the calls did that they are of."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from lumos import _slices
from lumos.errors import TraceError
from lumos.trace.table import ABSENT

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from lumos.trace.table import Int32, Int64, Trace


#: No program calls operators that deep in each other: PyTorch's own nest some ten deep, and a dozen more where checkpoints do.
DEEPEST = 200


def callers(trace: Trace, rows: Int64 | Int32, enclosing: NDArray[np.bool_] | None = None) -> Int64:
    """For each of `rows` the position in `rows` of the innermost one that was open on its thread when it began, int64[rows]; ABSENT for
    none. Of two that begin together the longer is around the shorter. enclosing: bool[rows], which may be around others; by default all.

    Raises TraceError where all may be around others and more than DEEPEST are.
    """
    start = trace.start[rows]
    end = start + trace.duration[rows]
    lane, may_enclose = trace.lane[rows], np.ones(len(rows), np.uint8) if enclosing is None else enclosing.astype(np.uint8)
    order = np.lexsort((-end, start, lane))
    most = DEEPEST if enclosing is None else len(rows)
    caller, deep = _slices.callers(lane[order], start[order], end[order], may_enclose[order], most)
    if deep != ABSENT:
        raise TraceError(
            f"{trace.path}: more than {DEEPEST} operators are open in each other at {trace.strings[trace.name[rows[order[deep]]]]!r}, as no"
            " program calls them: their ts or dur are wrong; record it again"
        )
    out = np.empty(len(rows), np.int64)
    out[order] = np.append(order, ABSENT)[caller]  # the last is what index -1 finds
    return out


def parents(trace: Trace, rows: Int64, enclosing: NDArray[np.bool_] | None = None) -> Int64:
    """The same as a column of the trace: for each of its rows, the row around it; ABSENT for none, and for rows that are not in `rows`."""
    out = np.full(len(trace), ABSENT, np.int64)
    caller = callers(trace, rows, enclosing)
    out[rows[caller >= 0]] = rows[caller[caller >= 0]]
    return out
