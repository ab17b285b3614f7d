"""A recording without some of its rows."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from lumos.trace.table import Column, Int64, Trace

if TYPE_CHECKING:
    from numpy.typing import NDArray


def without_rows(trace: Trace, gone: NDArray[np.bool_] | Int64) -> Trace:
    """The recording as if these rows (a mask, or their indices) were not in its file. Row i of the result is the i-th that is left."""
    kept = np.ones(len(trace), bool)
    kept[gone] = False
    row = np.cumsum(kept, dtype=np.int32) - 1
    columns = ("start", "duration", "name", "category", "lane", "correlation", "external_id")
    args = {}
    for key, column in trace.args.items():
        has = kept[column.rows]
        args[key] = Column(row[column.rows[has]].astype(np.int32), column.values[has], column.kind)
    return replace(trace, args=args, **{key: getattr(trace, key)[kept] for key in columns})
