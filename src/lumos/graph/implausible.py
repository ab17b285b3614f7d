"""Rows that last longer than any work can: a broken end, which must not hide what all other rows say."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from lumos.diagnostics import Diagnostic
from lumos.trace.table import DEVICE_WORK, Category
from lumos.units import count, duration

if TYPE_CHECKING:
    from lumos.trace.table import Trace

#: No operator, call or kernel lasts for longer than an hour: collectives that hang are given up after half of that (ns) ...
LONGEST_WORK = 3_600_000_000_000
#: ... or than so many times the time in which all work of the recording begins.
MOST_OF_WINDOW = 100


def plausible(trace: Trace) -> Trace:
    """The trace, where a row of work that cannot have lasted so long is taken to last as the others of its name do (their median; 0 where
    it is the only one), with a diagnostic `duration-implausible` that says so."""
    work = trace.is_any(Category.OPERATOR, Category.RUNTIME, *DEVICE_WORK)
    if not work.any() or int(trace.duration[work].max()) <= LONGEST_WORK:
        return trace
    window = int(trace.start[work].max()) - int(trace.start[work].min())
    broken = work & (trace.duration > max(LONGEST_WORK, MOST_OF_WINDOW * window))
    rows = np.flatnonzero(broken)
    if not len(rows):
        return trace
    lasts = trace.duration.copy()
    for row in rows.tolist():
        alike = (trace.name == trace.name[row]) & (trace.category == trace.category[row]) & ~broken
        lasts[row] = int(np.median(trace.duration[alike])) if alike.any() else 0
    first = f"{trace.strings[trace.name[rows[0]]]!r}: {duration(int(trace.duration[rows[0]]))}"
    message = (
        f"rank {trace.rank}: {count(len(rows), 'row')} cannot have lasted so long as recorded ({first}, while all work begins within"
        f" {duration(window)}); taken to last as others of that name do"
    )
    return replace(trace, duration=lasts, diagnostics=(*trace.diagnostics, Diagnostic("duration-implausible", message)))
