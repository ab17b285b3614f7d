"""Export a job's graph as a Chakra set, with the other files that a simulator needs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lumos.chakra.astra_sim import files, serialised, with_idle_rank
from lumos.chakra.coarse import coarse as blocks
from lumos.chakra.lower import lower
from lumos.chakra.write import GROUPS_FILE, file_name, write_set
from lumos.diagnostics import Diagnostic
from lumos.result import Shown

if TYPE_CHECKING:
    from pathlib import Path

    from lumos.cost.cluster import Cluster
    from lumos.graph.table import Graph


@dataclass(frozen=True, slots=True, repr=False)
class Exported(Shown):
    """What was written. communication: how many of the nodes are communication. groups: how many communicators there are."""

    folder: str
    ranks: int
    nodes: int
    communication: int
    groups: int
    files: tuple[str, ...]
    diagnostics: tuple[Diagnostic, ...]


def export_graph(
    graph: Graph, folder: Path, *, exact_ns: bool = False, coarse: bool = False, astra_sim: bool = False, cluster: Cluster | None = None
) -> Exported:
    """Write a graph, whether measured, changed or assembled, as `job.R.et` and groups.json.

    exact_ns: keep nanoseconds (see `write`). coarse: write blocks between communication instead of kernels. astra_sim:
    write also sys.json, net.yml (of `cluster`), mem.json and a README, and chain the communication of each rank.
    Raises GraphError where the graph has no schedule, LumosError where the folder cannot be written.
    """
    workload = lower(graph)
    if coarse:
        workload = blocks(workload)
    extra: dict[str, str] = {}
    assumptions: list[Diagnostic] = []
    if astra_sim:
        alone = len(workload.ranks) == 1
        workload = serialised(with_idle_rank(workload) if alone else workload)
        extra, assumptions = files(len(workload.ranks), cluster, exact_ns=exact_ns)
        if alone:
            assumptions.append(
                Diagnostic("idle-rank-added", "the job has one rank; a second, idle one was added, because ASTRA-sim runs two at least")
            )
    write_set(workload, folder, exact_ns=exact_ns, extra=extra)
    return Exported(
        folder=str(folder),
        ranks=len(workload.ranks),
        nodes=len(workload),
        communication=len(workload.communication),
        groups=len(workload.groups),
        files=(*(file_name(r) for r in range(len(workload.ranks))), GROUPS_FILE, *extra),
        diagnostics=(*workload.diagnostics, *assumptions),
    )
