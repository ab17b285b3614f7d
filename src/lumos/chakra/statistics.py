"""Summarise a workload: nodes by type, time and bytes by operator and collective, dependencies, how alike the ranks are."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.graph.lists import grouped
from lumos.result import Shown
from lumos.trace.chakra.schema import NodeType
from lumos.trace.table import ABSENT

if TYPE_CHECKING:
    from lumos.chakra.workload import Workload
    from lumos.trace.table import Int64

#: The most operators that are listed.
_MOST = 20


class Operators(NamedTuple):
    """All compute nodes of one name. time_ns: None where the set has no durations."""

    name: str
    nodes: int
    time_ns: int | None


class Transfers(NamedTuple):
    """All communication of one kind. ranks: the size of its largest group."""

    kind: str
    nodes: int
    size_bytes: int
    time_ns: int | None
    ranks: int


@dataclass(frozen=True, slots=True, repr=False)
class Stat(Shown):
    """nodes: how many, by type. dependencies: mean per node. widest: most dependencies of one node. symmetry: the share of
    ranks whose sequence of node types and names equals that of rank 0."""

    ranks: int
    nodes: dict[str, int]
    total: int
    groups: int
    dependencies: float
    widest: int
    symmetry: float
    operators: tuple[Operators, ...]
    communication: tuple[Transfers, ...]


def stat_workload(workload: Workload) -> Stat:
    """The summary of a workload; operators by time, then by count."""
    widths, facts = np.diff(workload.dep_offset), workload.communication
    sequences = [workload.type[a:b].tobytes() + workload.name[a:b].tobytes() for a, b in pairwise(workload.rank_offset.tolist())]
    compute = np.flatnonzero(workload.type == NodeType.COMP)
    bounds, order = grouped(workload.name[compute], len(workload.names))
    named = ((name, compute[order[a:b]]) for name, (a, b) in zip(workload.names, pairwise(bounds.tolist()), strict=True) if a < b)
    operators = [Operators(name, *_of(workload, nodes)) for name, nodes in named]
    members = np.array([2, *map(len, workload.groups)])[facts.group + 1]
    transfers = []
    for kind in np.unique(facts.kind):
        rows = facts.kind == kind
        nodes, time = _of(workload, facts.node[rows])
        transfers.append(Transfers(facts.kinds[kind], nodes, int(facts.size[rows].clip(0).sum()), time, int(members[rows].max())))
    return Stat(
        ranks=len(workload.ranks),
        nodes={kind.name.lower(): n for kind in NodeType if (n := int((workload.type == kind).sum()))},
        total=len(workload),
        groups=len(workload.groups),
        dependencies=float(widths.mean()) if len(workload) else 0.0,
        widest=int(widths.max(initial=0)),
        symmetry=sequences.count(sequences[0]) / len(sequences),
        operators=tuple(sorted(operators, key=lambda each: (-(each.time_ns or 0), -each.nodes))[:_MOST]),
        communication=tuple(sorted(transfers, key=lambda each: -each.nodes)),
    )


def _of(workload: Workload, nodes: Int64) -> tuple[int, int | None]:
    """How many nodes these are, and the sum of their durations; None where one is unknown."""
    lasted = workload.duration[nodes]
    return len(nodes), int(lasted.sum()) if (lasted != ABSENT).all() else None
