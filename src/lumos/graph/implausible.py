"""Rows that last longer than any work can, or start hours from the rest: a broken time, which must not hide what all other rows say."""

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
#: A larger share of the rows of a recording does not start far from the rest by mistake: it is of another window.
MOST_APART = 0.01
_HAPPENS = (Category.OPERATOR, Category.RUNTIME, Category.ANNOTATION, *DEVICE_WORK)


def plausible(trace: Trace) -> Trace:
    """The trace, in which rows with broken times do no harm, with diagnostics that say so."""
    return _lasting(_starting(trace))


def _starting(trace: Trace) -> Trace:
    """The trace, where the few rows that start more than LONGEST_WORK from all others, as no work goes on for so long without another, are
    set aside (`start-implausible`)."""
    rows = np.flatnonzero(trace.is_any(*_HAPPENS))
    if not len(rows) or int(np.ptp(trace.start[rows])) <= LONGEST_WORK:
        return trace
    rows = rows[np.argsort(trace.start[rows], kind="stable")]
    window = np.cumsum(np.diff(trace.start[rows], prepend=trace.start[rows[0]]) > LONGEST_WORK)
    main = np.bincount(window).argmax()
    apart = rows[window != main]
    if not 0 < len(apart) <= MOST_APART * len(rows):
        return trace
    category = trace.category.copy()
    category[apart] = Category.OTHER
    first, begin = apart[0], int(trace.start[rows[window == main]][0])
    far = f"{trace.strings[trace.name[first]]!r}: {duration(abs(int(trace.start[first]) - begin))} from the begin of the others"
    message = f"rank {trace.rank}: {count(len(apart), 'row')} cannot have started when recorded ({far}); set aside"
    return replace(trace, category=category, diagnostics=(*trace.diagnostics, Diagnostic("start-implausible", message)))


def _lasting(trace: Trace) -> Trace:
    """The trace, where a row of work that cannot have lasted so long is taken to last as the others of its name do (their median; 0 where
    it is the only one; `duration-implausible`)."""
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
