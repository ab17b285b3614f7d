"""The profiler's own rows about synchronisation (`cuda_sync`): which stream or event a call waits for, where it was told to record them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.trace.table import ABSENT, Category, Int32, Int64, Trace

if TYPE_CHECKING:
    from lumos.graph.launches import DeviceWork

#: In the place of a stream that the trace has no work on.
UNUSED = -2
#: The time of a call from before the recording.
BEFORE = np.iinfo(np.int64).min + 1


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
    for name in np.unique(stream[stream != ABSENT]).tolist():
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
