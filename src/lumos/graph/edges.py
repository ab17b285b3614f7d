"""Edges collected by kind, turned into predecessors in CSR form."""

from __future__ import annotations

import numpy as np

from lumos.graph.table import Dependency
from lumos.trace.table import Int8, Int32, Int64


class Edges:
    """Edges from the end of one task to the start of another."""

    def __init__(self) -> None:
        self._before: list[Int64] = []
        self._after: list[Int64] = []
        self._kind: list[Int8] = []

    def add(self, before: Int64, after: Int64, kind: Dependency) -> None:
        """Add edges before[i] -> after[i]; entries with a negative end are no edges."""
        real = (before >= 0) & (after >= 0)
        self._before.append(before[real])
        self._after.append(after[real])
        self._kind.append(np.full(int(real.sum()), kind, np.uint8))

    def predecessors(self, tasks: int) -> tuple[Int64, Int32, Int8]:
        """(pred_offset, pred, pred_kind) over all edges added, as `Graph` holds them."""
        before, after, kind = (
            np.concatenate(parts) if parts else np.empty(0, np.int64) for parts in (self._before, self._after, self._kind)
        )
        order = np.argsort(after, kind="stable")
        offset = np.zeros(tasks + 1, np.int64)
        np.cumsum(np.bincount(after, minlength=tasks), out=offset[1:])
        return offset, before[order].astype(np.int32), kind[order].astype(np.uint8)
