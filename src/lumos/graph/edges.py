"""Edges, collected kind by kind and then turned into the predecessors of every task."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.graph.lists import Lists, grouped, offsets

if TYPE_CHECKING:
    from lumos.graph.table import Dependency
    from lumos.trace.table import Int8, Int32, Int64


class Predecessors(NamedTuple):
    """The predecessors of every task, as `Graph` holds them in `pred_offset`, `pred` and `pred_kind`.

    offset: int64[tasks + 1]. task, kind: one entry per edge, grouped by the task that waits.
    """

    offset: Int64
    task: Int32
    kind: Int8


class Edges:
    """Edges from the end of one task to the start of another."""

    def __init__(self) -> None:
        self._before: list[Int64] = []
        self._after: list[Int64] = []
        self._kind: list[Int8] = []

    def add(self, before: Int64, after: Int64, kind: Dependency) -> None:
        """Add edges before[i] -> after[i]; pairs with a negative task are left out."""
        real = (before >= 0) & (after >= 0)
        self._before.append(before[real])
        self._after.append(after[real])
        self._kind.append(np.full(int(real.sum()), kind, np.uint8))

    def predecessors(self, tasks: int) -> Predecessors:
        """All edges, grouped by the task that waits; within a task in the order in which they were added."""
        none = np.empty(0, np.int64)
        before, after = np.concatenate([none, *self._before]), np.concatenate([none, *self._after])
        kind = np.concatenate([none.astype(np.uint8), *self._kind])
        offset, order = grouped(after, tasks)
        return Predecessors(offset, before[order].astype(np.int32), kind[order])


def distinct(before: Int64, after: Int64, tasks: int) -> Lists:
    """The predecessors of every task through edges before[i] -> after[i], ascending and without repetitions."""
    key = np.sort(after * np.int64(tasks) + before)  # np.unique hashes before it sorts, which takes several times as long
    key = key[np.diff(key, prepend=-1) > 0]
    return Lists(offsets(np.bincount(key // tasks, minlength=tasks)), key % tasks)
