"""Graphs whose order on every processor is fixed: all dependencies as edges, and sweeps in topological order.

`freeze` gives every thread and stream its tasks in ascending id and turns what is known only at run time into edges:
- the snapshot of a waiting return holds the stream tasks whose launch has a lower id than the task before the return on
  its thread; a device task without a launch goes with the one before it on its stream;
- launch number i of a rank (by id) waits for the device tasks of launch i - depth. With several streams launches need
  not complete in order, so the live loop can let a launch go a little earlier or later than this.
Occupancy has no frozen form: it is left out and `Frozen.exact` is False.

A sweep costs a few ns a task, so a frozen graph is what a change of durations alone is tried on. Where a change could
reorder work, use `simulate`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lumos import _engine
from lumos.errors import GraphError
from lumos.graph.table import Dependency, Graph
from lumos.simulate.deadlock import no_schedule
from lumos.simulate.tables import durations_of, non_negative, tables
from lumos.simulate.timeline import Timeline
from lumos.trace.table import Int8, Int32, Int64


@dataclass(frozen=True, slots=True, eq=False)
class Frozen:
    """`graph` with every dependency as an edge.

    order: int32[n], the tasks in a topological order, the members of a rendezvous side by side. What follows is by
    position in it: the task at position i is order[i].
    rank: int32[n], position in `graph.ranks`.
    pred_offset: int64[n + 1], pred: int32[m] (task ids), pred_kind: uint8[m]: the predecessors as in Graph, now with
    the orders of threads and streams, waits and queue depth, and without what `graph.ignored` names.
    special_at, special_size: positions in `order` of released tasks (size 1) and of rendezvous.
    slot: int32[n], pred_slot: int32[m]: which of `slots` places holds the ends of a task while successors still read it.
    exact: False where the graph has occupancy, which sweeps leave out.
    """

    graph: Graph
    order: Int32
    rank: Int32
    pred_offset: Int64
    pred: Int32
    pred_kind: Int8
    special_at: Int64
    special_size: Int32
    slot: Int32
    pred_slot: Int32
    slots: int
    exact: bool
    _tables: _engine.Tables

    def __len__(self) -> int:
        return len(self.order)


def freeze(graph: Graph) -> Frozen:
    """Fix the order on every processor (ascending id). GraphError where the graph is malformed or then has a cycle."""
    view = tables(graph)
    order, rank, pred_offset, pred, pred_kind, special_at, special_size, slot, pred_slot, slots, stuck = _engine.freeze(view)
    if stuck[0]:
        raise no_schedule(graph, stuck)
    shared = graph.occupancy is not None and len(graph.occupancy.task) > 0 and Dependency.OCCUPANCY not in graph.ignored
    return Frozen(graph, order, rank, pred_offset, pred, pred_kind, special_at, special_size, slot, pred_slot, slots, not shared, view)


def sweep(frozen: Frozen, durations: Int64 | None = None) -> Timeline:
    """The timeline of a frozen graph with its own durations, or with `durations` (int64[n] ns)."""
    duration = durations_of(frozen.graph, durations)
    start, end = np.empty(len(frozen), np.int64), np.empty(len(frozen), np.int64)
    _engine.sweep(frozen._tables, *_columns(frozen), np.ascontiguousarray(duration), start, end)
    return Timeline(frozen.graph, start, end, "replayed")


def sweep_many(frozen: Frozen, durations: Int64, *, ends: bool = False) -> Int64:
    """Sweep k configurations together: durations int64[k, n] ns.

    Returns int64[k], the makespans (latest end - earliest start, ns), or with `ends` int64[k, n], the end of every task.
    Eight configurations run side by side, so k in multiples of eight is best.
    """
    n = len(frozen)
    if not isinstance(durations, np.ndarray) or durations.dtype != np.int64 or durations.ndim != 2 or durations.shape[1] != n:
        raise GraphError(f"durations must be int64[k, {n}], one row per configuration of the {n} tasks")
    rows = np.ascontiguousarray(non_negative(durations))
    makespan = np.empty(len(rows), np.int64)
    out = np.empty((len(rows), n) if ends else 0, np.int64)
    _engine.sweep_many(
        frozen._tables, *_columns(frozen), frozen.slot, frozen.pred_slot, frozen.slots, rows.reshape(-1), makespan, out.reshape(-1)
    )
    return out if ends else makespan


def sweep_scaled(frozen: Frozen, group: NDArray[np.uint16], factors: NDArray[np.float64], mark: Int8) -> Int64:
    """Sweep k configurations of the graph's own durations: that of task t is multiplied by factors[c, group[t]] in
    configuration c and rounded (the exact product, half to even). No row of durations is made for any of them.

    group: uint16[n]; factors: float64[k, groups], 0 or more; mark: uint8[n]. Returns int64[k, 3], ns: the earliest start and
    the latest end of the tasks marked 1, and the latest end of those marked 2. GraphError where a duration would exceed
    2^51 ns (26 days).
    """
    n, base = len(frozen), np.ascontiguousarray(frozen.graph.duration)
    if group.shape != (n,) or mark.shape != (n,) or factors.ndim != 2 or (n and int(group.max()) >= factors.shape[1]):
        raise GraphError(f"group must be uint16[{n}], mark uint8[{n}] and factors float64[k, groups], one column per group")
    if not np.isfinite(factors).all() or (factors < 0).any() or (n and float(base.max()) * factors.max(initial=0) >= 1 << 51):
        raise GraphError("factors must be 0 or more, and no task may last longer than 26 days")
    spans = np.empty((len(factors), 3), np.int64)
    _engine.sweep_scaled(
        frozen._tables,
        *_columns(frozen),
        frozen.slot,
        frozen.pred_slot,
        frozen.slots,
        base,
        np.ascontiguousarray(group, np.uint16),
        np.ascontiguousarray(factors, float).reshape(-1),
        np.ascontiguousarray(mark, np.uint8),
        spans.reshape(-1),
    )
    return spans


def _columns(frozen: Frozen) -> tuple[Int32, Int32, Int64, Int32, Int8, Int64, Int32]:
    return frozen.order, frozen.rank, frozen.pred_offset, frozen.pred, frozen.pred_kind, frozen.special_at, frozen.special_size
