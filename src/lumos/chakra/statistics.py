"""Summarise a workload: nodes by type, communication by kind, dependencies, how alike ranks are. Operators are a breakdown's."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.result import Shown
from lumos.trace.chakra.schema import NodeType
from lumos.trace.table import ABSENT, unique

if TYPE_CHECKING:
    from lumos.chakra.workload import Workload


class Transfers(NamedTuple):
    """All communication of one kind. time_ns: None where the set has no durations. ranks: the size of its largest group."""

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
    communication: tuple[Transfers, ...]


def stat_workload(workload: Workload) -> Stat:
    """The summary of a workload."""
    widths, facts = np.diff(workload.dep_offset), workload.communication
    sequences = [workload.type[a:b].tobytes() + workload.name[a:b].tobytes() for a, b in pairwise(workload.rank_offset.tolist())]
    members, transfers = workload.members(), []
    for kind in unique(facts.kind):
        rows = facts.kind == kind
        lasted = workload.duration[facts.node[rows]]
        time = int(lasted.sum()) if (lasted != ABSENT).all() else None
        transfers.append(Transfers(facts.kinds[kind], len(lasted), int(facts.size[rows].clip(0).sum()), time, int(members[rows].max())))
    return Stat(
        ranks=len(workload.ranks),
        nodes={kind.name.lower(): n for kind in NodeType if (n := int((workload.type == kind).sum()))},
        total=len(workload),
        groups=len(workload.groups),
        dependencies=float(widths.mean()) if len(workload) else 0.0,
        widest=int(widths.max(initial=0)),
        symmetry=sequences.count(sequences[0]) / len(sequences),
        communication=tuple(sorted(transfers, key=lambda transfer: -transfer.nodes)),
    )
