"""Many lists stored one after the other in one column: list i is `flat[offset[i] : offset[i + 1]]`.

Graphs hold predecessors and rendezvous this way (as in the compressed sparse row form of a matrix): millions of short lists take
two arrays, and whole lists are copied or counted without a loop.
Edges are collected kind by kind and then turned into the predecessors of every task.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.trace.table import unique

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import ArrayLike, NDArray

    from lumos.graph.table import Dependency
    from lumos.trace.table import Int8, Int32, Int64

class Lists(NamedTuple):
    """offset: int64[lists + 1], where each list begins and where the last one ends. flat: int64, the lists one after the other."""

    offset: Int64
    flat: Int64


def offsets(sizes: ArrayLike) -> Int64:
    """Where lists of these sizes begin, and where the last one ends: int64[lists + 1]."""
    return np.concatenate(([0], np.cumsum(sizes))).astype(np.int64)


def places(first: Int64, size: Int64) -> Int64:
    """The positions of the entries of lists that begin at first[i] and have size[i] entries: first[0], first[0] + 1, …, first[1], …"""
    offset = offsets(size)
    return np.asarray(np.repeat(first - offset[:-1], size) + np.arange(offset[-1]))


def end_to_end(lists: Sequence[ArrayLike]) -> Lists:
    """The given lists as `Lists`."""
    arrays = [np.asarray(one, np.int64) for one in lists]
    return Lists(offsets([len(one) for one in arrays]), np.concatenate(arrays) if arrays else np.empty(0, np.int64))


def grouped(list_of: Int64 | Int32, lists: int) -> Lists:
    """The entries 0, 1, … sorted into lists: entry i goes into list list_of[i], or into none where that is negative.

    Entries ascend within a list.
    """
    order = np.argsort(list_of, kind="stable")
    order = order[np.searchsorted(list_of[order], 0) :]
    return Lists(offsets(np.bincount(list_of[order], minlength=lists)), order)


def list_of(offset: Int64) -> Int64:
    """The list that each entry of the flat column belongs to."""
    return np.repeat(np.arange(len(offset) - 1), np.diff(offset))


def narrow(column: Int64 | Int32) -> NDArray[np.integer]:
    """The column as a sort key. Numbers below 65,536 become 16 bits wide: NumPy then sorts in time that grows with their count alone."""
    fits = len(column) and column.min() >= 0 and column.max() < 1 << 16
    return column.astype(np.uint16) if fits else column


def numbered(*columns: Int64 | Int32 | Int8) -> Int64:
    """A number for every row, the same for rows that are equal in all columns: 0, 1, …, in the order of the rows' values."""
    number = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        values = unique(column)
        number = number * len(values) + np.searchsorted(values, column)
        number = np.searchsorted(unique(number), number)
    return number


def equal_rows(*columns: Int64 | Int32) -> Iterator[Int64]:
    """The rows that are equal in all columns, ascending, in the order of their values."""
    order = np.lexsort([narrow(column) for column in columns[::-1]])
    if len(order):
        yield from np.split(order, np.flatnonzero(np.any([np.diff(column[order]) for column in columns], axis=0)) + 1)


def ordinals(*columns: Int64 | Int32) -> Int64:
    """For each row, how many rows before it are equal to it in all columns."""
    order = np.lexsort([narrow(column) for column in columns])
    new = np.ones(len(order), bool)
    new[1:] = np.any([column[order][1:] != column[order][:-1] for column in columns], axis=0)
    at = np.arange(len(order))
    out = np.empty(len(order), np.int64)
    out[order] = at - np.maximum.accumulate(np.where(new, at, 0))
    return out


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
