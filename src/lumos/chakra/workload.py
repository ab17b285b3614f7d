"""A Chakra workload as columns: the nodes of all ranks, their dependencies and their communication.

Everything that Lumos does with Chakra passes through this value: a Graph is lowered to it, files are written from it
and read into it, a Graph is built from it, and synthetic sets are sampled as such values.

The `duration` of a node begins when the last thing that it waits for has ended. So it includes the constants (launch
latency, gaps between kernels) that a Graph holds separately and for which a Chakra file has no field. That of a
communication node begins when the last member is ready. With that, the nodes and their dependencies alone replay to the
right times.

`Amounts` are what the tasks of a job compute and move, the tensors that they read and write, and what else a set says of them.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from lumos.trace.chakra.schema import NodeType
from lumos.trace.table import ABSENT, Int64
from lumos.vocabulary import DType

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from lumos.diagnostics import Diagnostic
    from lumos.graph.table import Step
    from lumos.trace.chakra.schema import Attribute, IOInfo
    from lumos.trace.table import Int8, Int32

#: The types of nodes that request memory, and of those that transfer between ranks.
MEMORY = (NodeType.MEM_LOAD, NodeType.MEM_STORE)
COMMUNICATION = (NodeType.SEND, NodeType.RECV, NodeType.COLL)


class Details(NamedTuple):
    """What is known of a task beside its columns: its inputs and outputs, each None where unknown; the attributes that no column holds;
    and the bytes of fields that the schema lacks."""

    inputs: IOInfo | None = None
    outputs: IOInfo | None = None
    attrs: tuple[Attribute, ...] = ()
    unknown: bytes = b""


@dataclass(frozen=True, slots=True, eq=False)
class Amounts:
    """What n tasks compute and move.

    operations: int64[n], floating-point operations; bytes: int64[n], read and written in the device's memory. ABSENT is unknown.
    detail: int64[n], index into `table`, ABSENT where nothing else is known of a task. dtype: the type in which most operations are made,
    None where no operation has a known one.
    """

    operations: Int64
    bytes: Int64
    detail: Int64
    table: Sequence[Details] = ()
    dtype: DType | None = None

    @classmethod
    def of(cls, columns: Int64, table: Iterable[Details]) -> Amounts:
        """columns: int64[3, n], the three of `Amounts`. The type of an operation is that of the first typed input."""
        operations, moved, detail = columns
        details = tuple(table)
        kinds = [None if of_node.inputs is None else _first_type(of_node.inputs.types) for of_node in details]
        made: Counter[DType] = Counter()
        for node in np.flatnonzero((detail >= 0) & (operations > 1)).tolist():
            kind = kinds[detail[node]]
            made.update({kind: int(operations[node])} if kind is not None else {})
        return cls(operations, moved, detail, details, max(made, key=lambda kind: (made[kind], kind)) if made else None)

    def taken(self, task: Int64) -> Amounts:
        """The amounts of the tasks `task` (int64[m], ABSENT for one without any), in that order."""
        padded = np.pad(np.stack((self.operations, self.bytes, self.detail)), ((0, 0), (0, 1)), constant_values=ABSENT)
        operations, moved, detail = padded[:, task]  # ABSENT is -1: the column behind the last
        return replace(self, operations=operations, bytes=moved, detail=detail)


def _first_type(text: str) -> DType | None:
    """The type of the first tensor in a list such as `["Tensor(float)", "Int"]`."""
    words = (word.strip(" \"'").removeprefix("Tensor(").removesuffix(")") for word in text.strip("[]").split(","))
    return next((dtype for word in words if (dtype := DType.parse(word)) is not None), None)


def unknown(n: int) -> Amounts:
    """The amounts of n tasks of which nothing is known."""
    return Amounts(*np.full((3, n), ABSENT, np.int64))


@dataclass(frozen=True, slots=True, eq=False)
class Communication:
    """The communication nodes; row i describes node[i], and nodes ascend.

    type: Chakra's collective type, ABSENT for a send or receive. size: bytes (of a collective: input bytes per rank).
    group: index into `Workload.groups`, ABSENT for a send or receive. peer: position of the other rank of a send or
    receive. tag: pairs a send with its receive. kind: index into `kinds`, the kind before it was lowered to `type`: a
    `CollectiveKind`, or one of `collectives.EAGER`.
    """

    node: Int64
    type: Int32
    size: Int64
    group: Int32
    peer: Int32
    tag: Int32
    kind: Int32
    kinds: Sequence[str]

    def __len__(self) -> int:
        return len(self.node)

    @classmethod
    def of_rows(cls, rows: Sequence[tuple[int, ...]], kinds: Sequence[str]) -> Communication:
        """The columns of rows, ascending by node: node, type, size, group, peer, tag and kind of each."""
        table = np.array(rows, np.int64).reshape(len(rows), 7)
        kind, group, peer, tag, label = table[:, (1, 3, 4, 5, 6)].astype(np.int32).T
        return cls(table[:, 0], kind, table[:, 2], group, peer, tag, label, kinds)


#: The columns that have a row for each node.
_COLUMNS = ("type", "on_cpu", "kind", "name", "queue", "start", "duration", "release", "operations", "bytes", "id", "event", "detail")


@dataclass(frozen=True, slots=True, eq=False)
class Workload:
    """The nodes of R ranks, rank by rank: n nodes with m dependencies.

    ranks: the rank at each position, as its source numbers it. rank_offset: int64[R + 1]; the rank at position r has the
    nodes rank_offset[r]:rank_offset[r + 1], in an order that respects dependencies.
    type: uint8 Chakra node type. on_cpu: bool. kind: uint8 graph `Kind`. name: int32 index into `names`.
    queue: int64, the stream (or thread, where on_cpu) within the rank. start, duration: int64 ns; ABSENT unknown.
    release: int64 ns before which a node may not start, ABSENT none.
    operations, bytes: int64, what a node computes and moves, ABSENT unknown; they give its cost where it has no duration.
    detail: int32, index into `details`, which hold what no column does, ABSENT none; None where no node has any.
    dep_offset: int64[n + 1], dep: int64[m]: dep[dep_offset[i]:dep_offset[i + 1]] must end before node i starts; all are
    nodes of the same rank. groups: the positions of the ranks of each communicator, ascending.
    played: whether the times are the player's, by whose rules the nodes then replay. steps, steps_alone: as in `Graph`. timers: (rank
    position, queue) of threads that only wait for the clock.
    id: int64[n], the id of each node in its file; None where nodes have no ids yet.
    event: int32[n], the row of the rank's profiler file that each node came from, ABSENT none; None where unknown.
    """

    ranks: tuple[int, ...]
    rank_offset: Int64
    type: Int8
    on_cpu: NDArray[np.bool_]
    kind: Int8
    name: Int32
    names: Sequence[str]
    queue: Int64
    start: Int64
    duration: Int64
    release: Int64
    operations: Int64
    bytes: Int64
    dep_offset: Int64
    dep: Int64
    communication: Communication
    groups: tuple[tuple[int, ...], ...]
    played: bool = False
    steps: tuple[Step, ...] = ()
    steps_alone: bool = False
    timers: frozenset[tuple[int, int]] = frozenset()
    id: Int64 | None = None
    event: Int32 | None = None
    detail: Int32 | None = None
    details: Sequence[Details] = ()
    diagnostics: tuple[Diagnostic, ...] = field(default=())

    def __len__(self) -> int:
        return len(self.type)

    def rank_of(self) -> Int32:
        """The position of every node's rank, int32[n]."""
        return np.repeat(np.arange(len(self.ranks), dtype=np.int32), np.diff(self.rank_offset))

    def members(self) -> Int64:
        """How many ranks take part in each communication, two in a message."""
        return np.asarray(np.array([2, *map(len, self.groups)])[self.communication.group + 1])

    def rows(self, nodes: Int64) -> dict[str, Any]:
        """The columns of these nodes, in this order."""
        return {name: column[nodes] for name in _COLUMNS if (column := getattr(self, name)) is not None}
