"""Graphs whose order on every processor is fixed: all dependencies are edges, and sweeps run in topological order.

`freeze` orders the tasks of every thread and stream by ascending id and turns the dependencies that are known only while
simulating into edges:
- a waiting return waits for the stream tasks whose launch has a lower id than the task before the return on its thread; a
  device task without a launch counts as launched with the one before it on its stream;
- launch number i of a rank (by id) waits for the device tasks of launch i - depth. With several streams, launches need
  not complete in order, so in the event loop a launch may proceed a little earlier or later than this.
Occupancy has no frozen form: it is left out, and `Frozen.exact` is then False.

A sweep costs a few ns per task, so frozen graphs serve to try changes of durations. Where a change could reorder work, use
`simulate`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from lumos import _engine
from lumos.errors import GraphError
from lumos.graph.table import Dependency, Graph
from lumos.simulation.deadlock import no_schedule
from lumos.simulation.tables import durations_of, non_negative, tables
from lumos.simulation.timeline import replayed

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from lumos.simulation.timeline import Timeline
    from lumos.trace.table import Int32, Int64


@dataclass(frozen=True, slots=True, eq=False)
class Frozen:
    """`graph` with every dependency as an edge.

    edges: the native form, on which sweeps and searches for causes run. Its columns are read-only. order: int32[n], the tasks in
    a topological order, with the members of a rendezvous next to each other. pred_offset: int64[n + 1], pred: int32[m] (task
    ids), pred_kind: uint8[m]: the predecessors as in Graph, by position in the order; they include the orders of threads and
    streams, waits and queue depth, and exclude the kinds in `graph.ignored`.
    exact: False where the graph has occupancy, which sweeps leave out.
    """

    graph: Graph
    edges: _engine.FrozenGraph
    exact: bool

    def __len__(self) -> int:
        return len(self.graph)


def freeze(graph: Graph) -> Frozen:
    """Fix the order on every processor (ascending id). Raises GraphError where the graph is malformed or has a cycle then."""
    edges = _engine.freeze(tables(graph))
    if edges.cycle:
        raise no_schedule(graph, edges.cycle)
    shared = graph.occupancy is not None and len(graph.occupancy.task) > 0 and Dependency.OCCUPANCY not in graph.ignored
    return Frozen(graph, edges, not shared)


def sweep(frozen: Frozen, durations: Int64 | None = None) -> Timeline:
    """The timeline of a frozen graph with its own durations, or with `durations` (int64[n] ns)."""
    duration = durations_of(frozen.graph, durations)
    start, end = np.empty(len(frozen), np.int64), np.empty(len(frozen), np.int64)
    frozen.edges.sweep(np.ascontiguousarray(duration), start, end)
    return replayed(frozen.graph, start, end)


def sweep_many(frozen: Frozen, durations: Int64, *, ends: bool = False) -> Int64:
    """Sweep k configurations together: durations int64[k, n] ns.

    Returns the makespans (latest end - earliest start, ns), int64[k], or with `ends` the end of every task, int64[k, n].
    Eight configurations are computed at a time, so multiples of eight are fastest.
    """
    n = len(frozen)
    if not isinstance(durations, np.ndarray) or durations.dtype != np.int64 or durations.ndim != 2 or durations.shape[1] != n:
        raise GraphError(f"durations must be int64[k, {n}], one row per configuration of the {n} tasks")
    rows = np.ascontiguousarray(non_negative(durations))
    if frozen.graph.left_out is not None:
        rows = np.where(frozen.graph.left_out, 0, rows)
    makespan = np.empty(len(rows), np.int64)
    out = np.empty((len(rows) if ends else 0, n), np.int64)
    frozen.edges.sweep_many(rows, makespan, out)
    return out if ends else makespan


def sweep_groups(frozen: Frozen, durations: Int64, source: Int32, group: Int32, groups: int) -> tuple[Int64, Int64]:
    """The earliest start and the latest end of the tasks of each group, int64[groups] ns, where the task at each position in the order
    takes durations[source] (int32[n]) and is of a group (int32[n], -1 for none). Without tasks the largest int64, and the smallest."""
    first, last = np.empty((2, groups), np.int64)
    frozen.edges.sweep_groups(non_negative(durations), source, group, first, last)
    return first, last


def sweep_scaled(
    frozen: Frozen, scaled: NDArray[np.uint16], factors: NDArray[np.float64], group: Int32, groups: int
) -> tuple[Int64, Int64]:
    """The same for k configurations, int64[k, groups] each, that scale the graph's own durations: in configuration c the duration of task t
    is multiplied by factors[c, scaled[t]] and rounded half to even (from the exact product). No array of k x n durations is allocated.

    scaled: uint16[n]; factors: float64[k, kinds], 0 or more. Raises GraphError where a duration would exceed 2^51 ns (26 days).
    """
    n, base = len(frozen), durations_of(frozen.graph, None)
    if scaled.shape != (n,) or group.shape != (n,) or factors.ndim != 2 or (n and int(scaled.max()) >= factors.shape[1]):
        raise GraphError(f"scaled must be uint16[{n}], group int32[{n}] and factors float64[k, kinds], one column per kind")
    if not np.isfinite(factors).all() or (factors < 0).any() or (n and float(base.max()) * factors.max(initial=0) >= 1 << 51):
        raise GraphError("factors must be 0 or more, and no task may last longer than 26 days")
    first, last = np.empty((2, len(factors), groups), np.int64)
    frozen.edges.sweep_scaled(np.ascontiguousarray(scaled, np.uint16), np.ascontiguousarray(factors, float), group, first, last)
    return first, last
