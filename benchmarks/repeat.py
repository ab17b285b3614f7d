"""A recording repeated in time, which gives inputs of a chosen size with real rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from lumos.trace.table import ABSENT, Trace

#: Pause between two repetitions, ns.
PAUSE = 1_000_000


def repeated(trace: Trace, times: int) -> Trace:
    """The rows of `trace` `times` times over, shifted in time and with correlation ids of their own."""
    n = len(trace)
    span = int((trace.start + trace.duration).max() - trace.start.min()) + PAUSE
    turn = np.repeat(np.arange(times, dtype=np.int64), n)
    correlation = np.tile(trace.correlation, times)
    step = int(trace.correlation.max(initial=0)) + 1
    args = {
        key: replace(
            column,
            rows=(np.tile(column.rows.astype(np.int64), times) + np.repeat(np.arange(times, dtype=np.int64) * n, len(column.rows))).astype(
                np.int32
            ),
            values=np.tile(column.values, times),
        )
        for key, column in trace.args.items()
    }
    return replace(
        trace,
        start=np.tile(trace.start, times) + turn * span,
        duration=np.tile(trace.duration, times),
        name=np.tile(trace.name, times),
        category=np.tile(trace.category, times),
        lane=np.tile(trace.lane, times),
        correlation=np.where(correlation == ABSENT, ABSENT, correlation + turn * step),
        external_id=np.tile(trace.external_id, times),
        args=args,
    )


def stretched(trace: Trace, factor: float) -> Trace:
    """The trace with all of its times stretched by a factor."""
    origin = trace.start.min()
    start = origin + np.rint((trace.start - origin) * factor).astype(np.int64)
    return replace(trace, start=start, duration=np.rint(trace.duration * factor).astype(np.int64))
