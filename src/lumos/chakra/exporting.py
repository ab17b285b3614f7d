"""Export a job's graph as a Chakra set, with the other files that a simulator needs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from lumos.chakra.astra_sim import Compute, files, roof, with_idle_rank
from lumos.chakra.device_only import device_only
from lumos.chakra.issue_order import ordered
from lumos.chakra.lower import lower
from lumos.chakra.simulated import SimulatorTimes, as_simulated, findings, of_roofline, under_roof
from lumos.chakra.system_files import network_of
from lumos.chakra.write import GROUPS_FILE, file_name, write_set
from lumos.diagnostics import Diagnostic
from lumos.errors import UsageError
from lumos.result import Shown
from lumos.trace.chakra.schema import NodeType

if TYPE_CHECKING:
    from pathlib import Path

    from lumos.chakra.work.amounts import Amounts
    from lumos.cost.cluster import Cluster
    from lumos.graph.table import Graph
    from lumos.trace.table import Origin


@dataclass(frozen=True, slots=True, repr=False)
class Exported(Shown):
    """What was written. communication: how many of the nodes are communication. groups: how many communicators there are. work: how many
    of the device's compute nodes have operations or bytes; compute: how many there are. simulated: what the set takes where a simulator
    runs it, None without the files for one."""

    folder: str
    ranks: int
    nodes: int
    communication: int
    groups: int
    files: tuple[str, ...]
    compute: int
    work: int
    simulated: SimulatorTimes | None
    diagnostics: tuple[Diagnostic, ...]


def export_graph(
    graph: Graph,
    folder: Path,
    *,
    amounts: Amounts | None = None,
    device: bool = False,
    exact_ns: bool = False,
    astra_sim: bool = False,
    roofline: bool = False,
    cluster: Cluster | None = None,
    origin: Origin | None = None,
) -> Exported:
    """Write a graph, whether measured, changed or assembled, as `job.R.et` and groups.json.

    amounts: what its tasks compute and move. device: write device work and
    communication alone, with the CPU's time as delays between them. exact_ns: keep nanoseconds (see `write`). astra_sim: write also
    sys.json, net.yml (of `cluster`), mem.json and a README, and give communication the order that it needs. roofline: let the simulator
    price compute by operations and bytes. origin: of a job that no device ran. Raises UsageError for `roofline` without `astra_sim` and a
    cluster, or with `exact_ns`; GraphError where the graph has no schedule, LumosError where the folder cannot be written.
    """
    if roofline and (cluster is None or exact_ns or not astra_sim):
        raise UsageError("--roofline prices compute on a cluster: give --astra-sim and --cluster, and not --exact-ns")
    workload = lower(graph, amounts)
    if device:
        workload = device_only(workload)
    extra: dict[str, str] = {}
    notes: list[Diagnostic] = []
    known = len(of_roofline(workload))
    if astra_sim:
        alone = len(workload.ranks) == 1
        workload = ordered(with_idle_rank(workload) if alone else workload)
        compute = Compute.ROOFLINE if roofline else Compute.EXACT if exact_ns else Compute.RECORDED
        dtype = None if amounts is None else amounts.dtype
        extra, notes = files(len(workload.ranks), cluster, compute=compute, dtype=dtype)
        if roofline:
            workload, more = under_roof(workload, roof(cluster, dtype)[0])
            notes += more
        if alone:
            notes.append(
                Diagnostic("idle-rank-added", "the job has one rank; a second, idle one was added, because ASTRA-sim runs two at least")
            )
    write_set(workload, folder, exact_ns=exact_ns, extra=extra, origin=origin)
    network = network_of(folder) if astra_sim else None
    found = None if network is None else as_simulated(workload, replace(network, roofline=roofline))
    return Exported(
        folder=str(folder),
        ranks=len(workload.ranks),
        nodes=len(workload),
        communication=len(workload.communication),
        groups=len(workload.groups),
        files=(*(file_name(r) for r in range(len(workload.ranks))), GROUPS_FILE, *extra),
        compute=int(((workload.type == NodeType.COMP) & ~workload.on_cpu).sum()),
        work=known,
        simulated=found,
        diagnostics=(*workload.diagnostics, *notes, *(findings(found, len(workload)) if astra_sim else ())),
    )
