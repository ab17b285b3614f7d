"""Rows of kernels that repeat on a stream: the layers of a model, and the chains of small kernels in what is no layer.

All kernels, by name and in the order in which the streams run them, are one list. A row that occurs again and again is a pattern, and
shortens the list where each of its occurrences is written as one entry; the pattern that shortens it most is taken first, then the next
from what is left. So each kernel is in one pattern at most, and times of patterns add up. No pattern goes across a collective or from one
step to the next, and each occurs at least twice in some step: that every step is like the one before is not what it tells.

Rows that occur several times are neighbours in the order of the list's suffixes, so all are found at once.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.analyze.loop.steps import Members, step_times
from lumos.graph.table import Kind

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from lumos.simulation.timeline import Timeline
    from lumos.trace.table import Int64


class PatternRow(NamedTuple):
    """A row of kernels that repeats. times: how often, over all steps that count and all ranks. total_ns: the time of its kernels, all
    times together. share: of the time of all device work. gaps_ns: the time between its kernels, which one kernel in their place would not
    need."""

    kernels: tuple[str, ...]
    times: int
    total_ns: int
    share: float
    mean_ns: float
    gaps_ns: int


class Repeat(NamedTuple):
    """A row of a list of symbols that occurs several times. starts: where, ascending; the occurrences do not overlap."""

    length: int
    starts: Int64


class _Common(NamedTuple):
    """Neighbouring suffixes from `first` to `last` that have their first `length` symbols in common, and no others do."""

    length: int
    first: int
    last: int


def patterns(timeline: Timeline, owners: Members) -> tuple[PatternRow, ...]:
    """The patterns of the steps that count, those first that take most time."""
    graph, device = timeline.graph, np.flatnonzero(owners.on_device & step_times(timeline, owners).tasks_counted())
    if not len(device):
        return ()
    task = device[np.lexsort((timeline.start[device], owners.step[device], graph.processor[device]))]
    section = np.cumsum((np.diff(graph.processor[task], prepend=-1) != 0) | (np.diff(owners.step[task], prepend=-1) != 0))
    apart = graph.kind[task] == Kind.COLLECTIVE
    time = timeline.end[task] - timeline.start[task]
    before, everything = np.concatenate(([0], np.cumsum(time))), int(time.sum()) or 1
    rows = []
    for length, starts in repeats(np.where(apart, -1, graph.name[task]), section):
        total = int((before[starts + length] - before[starts]).sum())
        spans = int((timeline.end[task[starts + length - 1]] - timeline.start[task[starts]]).sum())
        names = tuple(graph.names[graph.name[i]] for i in task[starts[0] : starts[0] + length])
        rows.append(PatternRow(names, len(starts), total, total / everything, total / len(starts), max(spans - total, 0)))
    return tuple(sorted(rows, key=lambda row: (-row.total_ns, row.kernels)))


def repeats(symbols: Int64, section: Int64) -> Iterator[Repeat]:
    """The rows of at least two symbols that shorten a list most, one after the other, each of what the rows before it have left.

    symbols: int64[n]; a negative one is in no row. section: int64[n], ascending; a row stays within a section, and occurs twice in one.
    """
    slot = np.arange(len(symbols)) + section - section[0]
    unique = -1 - np.arange(slot[-1] + 1)
    written, sections, origin = unique.copy(), unique.copy(), np.zeros(len(unique), np.int64)
    written[slot] = np.where(symbols < 0, unique[slot], symbols)
    sections[slot], origin[slot] = section, np.arange(len(symbols))
    rows = list(_rows(written).values())
    queue = [(-_saved(row), i, 0) for i, row in enumerate(rows)]
    heapify(queue)
    free, taken = np.ones(len(written) + 1, np.int64), 0
    while queue:
        _, i, seen = heappop(queue)
        length, starts = rows[i]
        if seen < taken:  # others have been taken since it was counted
            sums = np.concatenate(([0], np.cumsum(free)))
            rows[i] = Repeat(length, starts[sums[starts + length] - sums[starts] == length])
        if not (np.diff(sections[rows[i].starts]) == 0).any():
            continue
        if seen < taken:
            heappush(queue, (-_saved(rows[i]), i, taken))
            continue
        yield Repeat(length, origin[starts])
        taken += 1
        free[(starts[:, None] + np.arange(length)).ravel()] = 0


def _saved(row: Repeat) -> int:
    """By how many entries the list becomes shorter where the row is written down once, and each of its occurrences is one entry."""
    return (row.length - 1) * (len(row.starts) - 1)


def _rows(symbols: Int64) -> dict[tuple[int, ...], Repeat]:
    """Every row that occurs more often than any longer row around it, by its symbols. Where occurrences overlap, as those of a row that is
    a shorter one again and again do, it is the shorter one."""
    order, common = _suffixes(symbols)
    longest: dict[tuple[int, ...], Repeat] = {}
    for length, first, last in _neighbours(common.tolist()):
        starts = np.sort(order[first : last + 1])
        length = min(length, int(np.diff(starts).min()))
        if length < 2 or (starts[0] and (symbols[starts - 1] == symbols[starts[0] - 1]).all()):
            continue
        row = tuple(symbols[starts[0] : starts[0] + length].tolist())
        if row not in longest or len(longest[row].starts) < len(starts):
            longest[row] = Repeat(length, starts)
    return longest


def _suffixes(symbols: Int64) -> tuple[Int64, Int64]:
    """The starts of all suffixes in their order, and how many symbols each has in common with the one before it."""
    size = len(symbols)
    ranks = [np.unique(symbols, return_inverse=True)[1]]
    while (width := 1 << (len(ranks) - 1)) < size and ranks[-1].max() < size - 1:
        behind = np.concatenate((ranks[-1][width:] + 1, np.zeros(width, np.int64)))
        ranks.append(np.unique(ranks[-1] * (size + 1) + behind, return_inverse=True)[1])
    order = np.argsort(ranks[-1])
    common, one, other = np.zeros(size, np.int64), order[:-1].copy(), order[1:].copy()
    for level in reversed(range(len(ranks))):
        inside = np.flatnonzero(np.maximum(one, other) < size)
        same = inside[ranks[level][one[inside]] == ranks[level][other[inside]]]
        for counted in (common[1:], one, other):
            counted[same] += 1 << level
    return order, common


def _neighbours(common: Sequence[int]) -> Iterator[_Common]:
    """The sets of suffixes that have more in common with each other than with those around them."""
    open_sets = [(0, 0)]
    for stop, length in enumerate((*common[1:], 0), start=1):
        first = stop - 1
        while length < open_sets[-1][0]:
            shared, first = open_sets.pop()
            yield _Common(shared, first, stop - 1)
        if length > open_sets[-1][0]:
            open_sets.append((length, first))
