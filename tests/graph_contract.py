"""Checks that a graph keeps what `Graph` promises, so that code that reads a graph need not know which builder made it.

Every builder is held to it (`tests.checked_builders`). Whether a graph has a schedule is not checked here:
only a simulation shows that.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from lumos.errors import GraphError
from lumos.graph.lists import list_of
from lumos.graph.table import Collectives, Dependency, Graph, Kind
from lumos.trace.table import ABSENT
from lumos.vocabulary import CollectiveKind

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: No task lasts longer: eleven days in ns. Times in other units, or in ns where µs are wanted, exceed it.
LONGEST_NS = 10**15
#: No rank's input to a collective is larger: a petabyte.
_MOST_BYTES = 2**50

#: A column, the type of its entries and how many it must have.
_Column = tuple[NDArray[np.generic], type[np.generic], int]


def check_graph(graph: Graph) -> None:
    """Raise GraphError with the first thing in which a graph is not as `Graph` and `Collectives` describe it."""
    n, ranks = len(graph), len(graph.ranks)
    columns: dict[str, _Column] = {
        "duration": (graph.duration, np.int64, n),
        "processor": (graph.processor, np.int32, n),
        "kind": (graph.kind, np.uint8, n),
        "name": (graph.name, np.int32, n),
        "event": (graph.event, np.int32, n),
        "pred_offset": (graph.pred_offset, np.int64, n + 1),
        "pred_kind": (graph.pred_kind, np.uint8, len(graph.pred)),
        "pred": (graph.pred, np.int32, len(graph.pred)),
        "lag": (graph.lag, np.int64, ranks),
        "release_task": (graph.release_task, np.int32, len(graph.release_time)),
        "release_time": (graph.release_time, np.int64, len(graph.release_time)),
        "rendezvous_task": (graph.rendezvous_task, np.int32, len(graph.rendezvous_task)),
        "rendezvous_offset": (graph.rendezvous_offset, np.int64, len(graph.rendezvous_offset)),
        "unclaimed_wait_task": (graph.unclaimed_wait_task, np.int32, len(graph.unclaimed_wait_time)),
        "waiting_unknown": (graph.waiting_unknown, np.int32, len(graph.waiting_unknown)),
    }
    if graph.one_off is not None:
        columns["one_off"] = (graph.one_off.task, np.int32, len(graph.one_off.share))
        columns["one_off.cause"] = (graph.one_off.cause, np.int8, len(graph.one_off.task))
    for name, measured in (("measured_start", graph.measured_start), ("measured_end", graph.measured_end)):
        if measured is not None:
            columns[name] = (measured, np.int64, n)
    _check_columns("graph", columns)
    _require(graph.lag.shape == (ranks, len(Dependency)), f"lag is of shape {graph.lag.shape}, not (ranks, kinds of dependency)")
    _require(len(set(graph.ranks)) == ranks, "a rank is named twice")
    _require({p.rank for p in graph.processors} <= set(graph.ranks), "a processor is of a rank that the graph lacks")
    _check_indices("processor", graph.processor, len(graph.processors))
    _check_indices("name", graph.name, len(graph.names))
    _check_indices("kind", graph.kind, len(Kind))
    _check_indices("pred", graph.pred, n)
    _check_indices("pred_kind", graph.pred_kind, len(Dependency))
    for name in ("release_task", "rendezvous_task", "unclaimed_wait_task", "waiting_unknown"):
        _check_indices(name, columns[name][0], n)
    if graph.one_off is not None:
        _check_indices("one_off", graph.one_off.task, n)
        _require(bool(((graph.one_off.share >= 0) & (graph.one_off.share <= 1)).all()), "a share of one-off time is not between 0 and 1")
    _check_offsets("pred_offset", graph.pred_offset, len(graph.pred))
    _check_offsets("rendezvous_offset", graph.rendezvous_offset, len(graph.rendezvous_task))
    _require(bool(((graph.duration >= 0) & (graph.duration <= LONGEST_NS)).all()), "a duration is negative, or longer than eleven days")
    if graph.measured_start is not None and graph.measured_end is not None:
        _require(bool((graph.measured_start <= graph.measured_end).all()), "a task was measured to end before it starts")
    _require({step.rank for step in graph.steps} <= set(graph.ranks), "a step is of a rank that the graph lacks")
    _check_meetings(graph)
    if graph.collectives is not None:
        _check_collectives(graph, graph.collectives)
        _check_agreement(graph, graph.collectives)


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise GraphError(f"the graph breaks its contract: {otherwise}")


def _check_columns(table: str, columns: Mapping[str, _Column]) -> None:
    for name, (column, dtype, length) in columns.items():
        _require(column.dtype == dtype, f"{table}.{name} is {column.dtype}, not {np.dtype(dtype)}")
        _require(len(column) == length, f"{table}.{name} has {len(column)} entries, not {length}")


def _check_indices(name: str, column: np.ndarray, count: int, least: int = 0) -> None:
    """Every entry is an index into a table of `count` rows, or ABSENT where `least` is ABSENT."""
    _require(not len(column) or bool(column.min() >= least and column.max() < count), f"{name} points outside its table of {count}")


def _check_offsets(name: str, offset: np.ndarray, length: int) -> None:
    _require(bool(len(offset) and offset[0] == 0 and offset[-1] == length and (np.diff(offset) >= 0).all()), f"{name} is no CSR offset")


def _check_meetings(graph: Graph) -> None:
    """The tasks of a rendezvous are of distinct ranks, and no task is in two of them."""
    _require(len(np.unique(graph.rendezvous_task)) == len(graph.rendezvous_task), "a task is in two rendezvous")
    meeting = list_of(graph.rendezvous_offset)
    pairs = np.stack((meeting, graph.rank_of_task[graph.rendezvous_task]))
    _require(np.unique(pairs, axis=1).shape[1] == len(meeting), "two tasks of one rank are in one rendezvous")


def _check_collectives(graph: Graph, facts: Collectives) -> None:
    rows = len(facts.task)
    columns: dict[str, _Column] = {
        "task": (facts.task, np.int32, rows),
        "kind": (facts.kind, np.int32, rows),
        "nbytes": (facts.nbytes, np.int64, rows),
        "group": (facts.group, np.int32, rows),
        "sequence": (facts.sequence, np.int64, rows),
        "peer": (facts.peer, np.int32, rows),
    }
    if facts.size is not None:
        columns["size"] = (facts.size, np.int32, rows)
    _check_columns("collectives", columns)
    _require(all(isinstance(kind, CollectiveKind) for kind in facts.kinds), "a kind of collective is none of the vocabulary")
    _check_indices("collectives.task", facts.task, len(graph))
    _check_indices("collectives.kind", facts.kind, len(facts.kinds))
    _check_indices("collectives.group", facts.group, len(facts.groups), ABSENT)
    _require(len(np.unique(facts.task)) == rows, "a task has the facts of two collectives")
    _require(bool((graph.kind[facts.task] == Kind.COLLECTIVE).all()), "a task with the facts of a collective is none")
    _require(
        bool(((facts.nbytes >= ABSENT) & (facts.nbytes <= _MOST_BYTES)).all()), "a collective's bytes are negative or beyond a petabyte"
    )
    if facts.size is not None:
        _require(bool(((facts.size == ABSENT) | (facts.size > 0)).all()), "a group has no ranks")
    sided = np.array([kind in (CollectiveKind.SEND, CollectiveKind.RECEIVE) for kind in facts.kinds], bool)[facts.kind]
    _require(bool((sided | (facts.peer == ABSENT)).all()), "a collective that is neither a send nor a receive names a peer")
    _require(bool((facts.peer >= ABSENT).all()), "a peer is no rank")
    _require(bool((facts.peer != graph.rank_of_task[facts.task]).all()), "a rank sends to itself")


def _check_agreement(graph: Graph, facts: Collectives) -> None:
    """The tasks of a rendezvous are of one kind, or all sends and receives; where the kind requires it, of equal bytes."""
    row_of = np.full(len(graph), ABSENT, np.int64)
    row_of[facts.task] = np.arange(len(facts.task))
    kinds, sizes = facts.kind.tolist(), facts.nbytes.tolist()
    met = row_of[graph.rendezvous_task].tolist()
    for low, high in pairwise(graph.rendezvous_offset.tolist()):
        rows: Sequence[int] = [row for row in met[low:high] if row != ABSENT]
        what = {facts.kinds[kinds[row]] for row in rows}
        nbytes = {sizes[row] for row in rows}
        message = all(kind.is_transfer for kind in what)
        _require(len(what) <= 1 or message, f"{' and '.join(sorted(what))} meet")
        _require(len(nbytes) <= 1 or not all(kind.is_even for kind in what), f"{' and '.join(sorted(what))} of different bytes meet")
