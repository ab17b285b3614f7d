"""Graphs with the same tasks and dependencies but other durations."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from lumos.errors import LumosError, UsageError
from lumos.graph.table import Graph, Kind

if TYPE_CHECKING:
    from lumos.trace.table import Int64

Mask = NDArray[np.bool_]
#: Durations must sum to less, so that times stay within int64 (ns).
_LONGEST = 1 << 62


def scale(graph: Graph, tasks: Mask, factor: float) -> Graph:
    """The graph with the durations of `tasks` (bool[n]) multiplied. Of a joined collective only the transfer is multiplied.
    Work that becomes faster still takes a nanosecond: only a factor of 0 leaves it out.

    Where all tasks are multiplied, the release times are too: a rank or thread was released late because of work that it did
    before the recording, which would take longer just the same.
    """
    chosen = np.flatnonzero(tasks)
    with np.errstate(over="ignore"):  # a sum beyond what a float64 holds is infinite, and refused
        longer = np.rint(graph.duration[chosen] * factor)
        if factor:
            longer = np.maximum(longer, graph.duration[chosen] > 0)
        whole = longer.sum() + graph.duration.sum(dtype=float)
    if whole >= _LONGEST:
        raise UsageError(f"a factor of {factor:g} makes the job longer than a century; give a smaller one")
    changed = graph.duration.copy()
    changed[chosen] = longer
    if len(chosen) == len(graph):
        graph = replace(graph, release_time=np.rint(graph.release_time * factor).astype(np.int64))
    return with_durations(graph, changed)


def with_durations(graph: Graph, duration: Int64) -> Graph:
    """The graph with durations int64[n] ns. The time for which a kernel holds SMs scales with its duration."""
    shared = graph.occupancy
    if shared is not None and len(shared.task):
        before, after = np.maximum(graph.duration[shared.task], 1), duration[shared.task]
        hold = np.minimum(np.rint(shared.hold * (after / before)), after).astype(np.int64)
        shared = replace(shared, hold=hold)
    return replace(graph, duration=duration, occupancy=shared)


def slow_rank(graph: Graph, rank: int, factor: float) -> Graph:
    """The graph with the durations of all work of one rank, CPU and device, multiplied; collectives keep their durations.

    LumosError where the job has no such rank.
    """
    if rank not in graph.ranks:
        raise LumosError(f"--rank-slowdown: the job has no rank {rank}; it has {', '.join(map(str, graph.ranks))}")
    own = np.array([p.rank == rank for p in graph.processors], bool)[graph.processor]
    return scale(graph, own & (graph.kind != Kind.COLLECTIVE), factor)
