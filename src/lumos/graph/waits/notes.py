"""The profiler's own rows about synchronisation (`cuda_sync`): which stream or event a call waits for, where it was told to record them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from lumos.trace.table import ABSENT, Category, Trace

if TYPE_CHECKING:
    from lumos.trace.table import Int64


#: The time of a call from before the recording.
BEFORE = np.iinfo(np.int64).min + 1


@dataclass(frozen=True, slots=True)
class Note:
    """A `cuda_sync` row: the streams and the event that a synchronising call, or a stream's wait, refers to."""

    device: int
    stream: int
    source_stream: int
    recorded: int  # when the event was recorded, ns; BEFORE the recording; ABSENT where the trace has no row of that call


def sync_notes(trace: Trace) -> dict[int, Note]:
    """`cuda_sync` rows by the correlation of their call."""
    rows = np.flatnonzero(trace.category == Category.SYNC)
    if not len(rows):
        return {}
    *columns, record = (trace.dense(key)[rows] for key in ("device", "stream", "wait_on_stream", "wait_on_cuda_event_record_corr_id"))
    columns.append(_call_times(trace, record))
    return {int(c): Note(*map(int, values)) for c, *values in zip(trace.correlation[rows], *columns, strict=True)}


def _call_times(trace: Trace, correlation: Int64) -> Int64:
    """When the first runtime call with each of these correlation ids began, ns; ABSENT where there is none, but BEFORE for an id that is
    smaller than all that were recorded: ids ascend."""
    calls = np.flatnonzero(trace.category == Category.RUNTIME)
    ids, first = np.unique(trace.correlation[calls], return_index=True)
    if not len(ids):
        return np.full(len(correlation), ABSENT)
    at = np.minimum(np.searchsorted(ids, correlation), len(ids) - 1)
    known = (ids[at] == correlation) & (correlation != ABSENT)
    before = (correlation != ABSENT) & (correlation < ids[ids != ABSENT].min(initial=np.iinfo(np.int32).max))
    return np.where(known, trace.start[calls[first[at]]], np.where(before, BEFORE, ABSENT))


def note_stream(stream_of: dict[tuple[int, int], int], device: int, stream: int) -> int | None:
    """The index of the stream that a note names; None where the trace has no work on it."""
    if (device, stream) in stream_of:
        return stream_of[device, stream]
    same = [i for (_, s), i in stream_of.items() if s == stream]
    return same[0] if len(same) == 1 else None
