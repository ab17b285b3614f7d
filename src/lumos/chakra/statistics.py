"""Summarise a workload: nodes by type, time and bytes by operator and collective, dependencies, how alike the ranks are."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from lumos.result import Shown
from lumos.trace.chakra.schema import NodeType
from lumos.trace.table import ABSENT

if TYPE_CHECKING:
    from lumos.chakra.workload import Workload
    from lumos.trace.table import Int64

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
    bounds = pairwise(workload.rank_offset.tolist())
    sequences = [workload.type[low:high].tobytes() + workload.name[low:high].tobytes() for low, high in bounds]
    return Stat(
        ranks=len(workload.ranks),
        nodes={kind.name.lower(): int(counts[kind]) for kind in NodeType if counts[kind]},
        total=len(workload),
        groups=len(workload.groups),
        dependencies=float(widths.mean()) if len(workload) else 0.0,
        widest=int(widths.max(initial=0)),
        symmetry=sequences.count(sequences[0]) / len(sequences),
        operators=_operators(workload),
        communication=_communication(workload),
    )


def _time(duration: Int64) -> int | None:
    """The sum of durations, None where one is unknown."""
    return int(duration.sum()) if (duration != ABSENT).all() else None


def _operators(workload: Workload) -> tuple[Operators, ...]:
    compute = workload.type == NodeType.COMP
    name, duration = workload.name[compute], workload.duration[compute]
    nodes = np.bincount(name, minlength=len(workload.names))
    time = np.bincount(name, np.maximum(duration, 0), minlength=len(workload.names)).astype(np.int64)
    known = _time(duration) is not None
    order = np.lexsort((-nodes, -time))[:_MOST]
    return tuple(Operators(workload.names[i], int(nodes[i]), int(time[i]) if known else None) for i in order if nodes[i])


def _communication(workload: Workload) -> tuple[Transfers, ...]:
    facts, out = workload.communication, []
    members = np.array([2, *map(len, workload.groups)])[facts.group + 1]
    for kind, count in Counter(facts.kind.tolist()).most_common():
        rows = facts.kind == kind
        time = _time(workload.duration[facts.node[rows]])
        out.append(Transfers(facts.kinds[kind], count, int(facts.size[rows].clip(0).sum()), time, int(members[rows].max())))
    return tuple(out)
