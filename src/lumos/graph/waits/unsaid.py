"""Calls that wait for all device work although their names do not say so: those that allocate, register or free memory.

Whether such a call waits depends on the driver, the size and what else is allocated, so that only its times can tell. It waits where it
took longer than it does on an idle device, and returned just after the last work of all streams that was issued before it had ended. A
place in the code where it returned before that end, or took long for another reason, is refuted with all its repetitions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from lumos.graph.calls import Call
from lumos.graph.waits.issued import Issued
from lumos.graph.waits.recurrence import recurrences
from lumos.graph.waits.syncs import LONG_CALL, WAKE_UP

if TYPE_CHECKING:
    from lumos.graph.launches import DeviceWork
    from lumos.trace.table import Int8, Int32, Int64, Trace

#: So many calls of one name must have waited, or one of them for so long (ns): a single short one may end with the device by chance.
FEWEST_WAITS, LONG_WAIT = 2, 1_000_000


def with_unsaid_waits(trace: Trace, calls: Int8, work: DeviceWork) -> Int8:
    """The `Call` of every row, where the calls that wait for all device work without saying so are among those that say so."""
    may = np.flatnonzero(calls == Call.MAY_WAIT).astype(np.int32)
    out, issued = calls.copy(), Issued(work)
    for name in trace.names_of(may):
        for rows in _waiting(trace, issued, may[trace.name[may] == name]):
            out[rows] = Call.DEVICE_SYNC
    return out


def _waiting(trace: Trace, issued: Issued, rows: Int32) -> list[Int32]:
    """Of the calls of one name, those at the places where it waits."""
    rows = rows[np.argsort(trace.start[rows], kind="stable")]
    begin, took = trace.start[rows], trace.duration[rows]
    last = _last_ends(issued, begin)
    busy = last > begin
    usual = int(np.median(took[~busy])) if not busy.all() else 0
    after = begin + took - last
    long = busy & (took >= usual + LONG_CALL)
    waited = long & (after >= -issued.rounding) & (after <= usual + WAKE_UP) & (last - begin >= took // 2)
    refuted = busy & (after < -issued.rounding) | long & ~waited
    places = [
        calls for calls in recurrences(trace, issued.work, trace.lane[rows], begin) if waited[calls].any() and not refuted[calls].any()
    ]
    waits = sum(int(waited[calls].sum()) for calls in places)
    enough = waits >= FEWEST_WAITS or any(took[calls].max() >= LONG_WAIT for calls in places)
    return [rows[calls] for calls in places] if enough else []


def _last_ends(issued: Issued, begin: Int64) -> Int64:
    """When all work that was issued before each of these times had ended, ns; the times themselves where there was none."""
    last = [issued.last_of_all_before(time) for time in begin.tolist()]
    return np.array([time if i < 0 else int(issued.work.end[i]) for i, time in zip(last, begin.tolist(), strict=True)], np.int64)
