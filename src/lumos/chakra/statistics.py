"""Summarise a workload: nodes by type, time and bytes by operator and collective, dependencies, how alike the ranks are."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from lumos.result import Shown
from lumos.trace.chakra.schema import NodeType
from lumos.trace.table import ABSENT

if TYPE_CHECKING:
    from lumos.chakra.workload import Workload

#: The most operators that are listed.
_MOST = 20


@dataclass(frozen=True, slots=True)
class Operators:
    """All compute nodes of one name. time_ns: None where the set has no durations."""

    name: str
    nodes: int
    time_ns: int | None


@dataclass(frozen=True, slots=True)
class Transfers:
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
    counts = np.bincount(workload.type, minlength=len(NodeType))
    widths = np.diff(workload.dep_offset)
    return Stat(
        ranks=len(workload.ranks),
        nodes={kind.name.lower(): int(counts[kind]) for kind in NodeType if counts[kind]},
        total=len(workload),
        groups=len(workload.groups),
        dependencies=float(widths.mean()) if len(workload) else 0.0,
        widest=int(widths.max(initial=0)),
        symmetry=_symmetry(workload),
        operators=_operators(workload),
        communication=_communication(workload),
    )


def _symmetry(workload: Workload) -> float:
    """The share of ranks with the same sequence of nodes as rank 0."""
    alike = [_sequence(workload, r) == _sequence(workload, 0) for r in range(len(workload.ranks))]
    return sum(alike) / len(alike)


def _sequence(workload: Workload, rank: int) -> bytes:
    here = slice(int(workload.rank_offset[rank]), int(workload.rank_offset[rank + 1]))
    return workload.type[here].tobytes() + workload.name[here].tobytes()


def _operators(workload: Workload) -> tuple[Operators, ...]:
    compute = workload.type == NodeType.COMP
    name, duration = workload.name[compute], workload.duration[compute]
    nodes = np.bincount(name, minlength=len(workload.names))
    time = np.zeros(len(workload.names), np.int64)
    np.add.at(time, name, np.maximum(duration, 0))
    known = bool((duration != ABSENT).all())
    order = np.lexsort((-nodes, -time))[:_MOST]
    return tuple(Operators(workload.names[i], int(nodes[i]), int(time[i]) if known else None) for i in order if nodes[i])


def _communication(workload: Workload) -> tuple[Transfers, ...]:
    facts = workload.communication
    out = []
    for kind, _ in Counter(facts.kind.tolist()).most_common():
        rows = facts.kind == kind
        duration = workload.duration[facts.node[rows]]
        groups = facts.group[rows]
        ranks = max((len(workload.groups[g]) for g in np.unique(groups) if g >= 0), default=2)
        known = bool((duration != ABSENT).all())
        total = int(facts.size[rows].clip(0).sum())
        out.append(Transfers(facts.kinds[kind], int(rows.sum()), total, int(duration.clip(0).sum()) if known else None, ranks))
    return tuple(out)
