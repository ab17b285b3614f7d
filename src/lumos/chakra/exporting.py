"""Export a job's graph as a Chakra set, with the other files that a simulator needs, and say what the set takes where one runs it.

A simulator runs one compute node, one host operator and one communication of a rank at a time, whatever streams and threads
the job has; and it prices communication, and in roofline mode compute, by its own files. What it takes is said beside the replay.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from lumos.chakra.astra_sim import Compute, files, network_for, ordered, with_idle_rank
from lumos.chakra.lower import lower
from lumos.chakra.play import as_run, of_roofline, play
from lumos.chakra.system_files import network_of
from lumos.chakra.write import GROUPS_FILE, file_name, write_set
from lumos.diagnostics import Diagnostic
from lumos.errors import UsageError
from lumos.result import Shown
from lumos.trace.chakra.schema import NodeType
from lumos.trace.table import ABSENT

if TYPE_CHECKING:
    from pathlib import Path

    from lumos.chakra.amounts import Amounts
    from lumos.chakra.network import Network
    from lumos.chakra.workload import Workload
    from lumos.cost.cluster import Cluster
    from lumos.graph.table import Graph
    from lumos.trace.table import Origin

#: Larger sets are not simulated at export: a node takes some 10 µs.
MOST_PLAYED = 400_000


@dataclass(frozen=True, slots=True, repr=False)
class Exported(Shown):
    """What was written. communication: how many of the nodes are communication. groups: how many communicators there are. work: how many
    of the device's compute nodes have operations or bytes; compute: how many there are. replayed_ns: when all ranks are done in the job's
    own replay. simulated_ns: the same where a simulator runs the set, None without the files for one."""

    folder: str
    ranks: int
    nodes: int
    communication: int
    groups: int
    files: tuple[str, ...]
    compute: int
    work: int
    replayed_ns: int
    simulated_ns: int | None
    diagnostics: tuple[Diagnostic, ...]


def export_graph(
    graph: Graph,
    folder: Path,
    *,
    amounts: Amounts | None = None,
    exact_ns: bool = False,
    astra_sim: bool = False,
    roofline: bool = False,
    cluster: Cluster | None = None,
    origin: Origin | None = None,
) -> Exported:
    """Write a graph, whether measured, changed or assembled, as `job.R.et` and groups.json.

    amounts: what its tasks compute and move. exact_ns: keep nanoseconds (see `write`). astra_sim: write also sys.json, net.yml (of
    `cluster`) and mem.json, and give communication the order that it needs. roofline: let the simulator price compute by operations and
    bytes. origin: of a job that no device ran. Raises UsageError for `roofline` without `astra_sim` and a cluster, or with
    `exact_ns`; GraphError where the graph has no schedule, LumosError where the folder cannot be written.
    """
    if roofline and (cluster is None or exact_ns or not astra_sim):
        raise UsageError("--roofline prices compute on a cluster: give --astra-sim and --cluster, and not --exact-ns")
    workload = lower(graph, amounts)
    extra: dict[str, str] = {}
    notes: list[Diagnostic] = []
    known = len(of_roofline(workload))
    if astra_sim:
        alone = len(workload.ranks) == 1
        workload = ordered(with_idle_rank(workload) if alone else workload)
        compute = Compute.ROOFLINE if roofline else Compute.EXACT if exact_ns else Compute.RECORDED
        dtype = None if amounts is None else amounts.dtype
        written, notes = network_for(len(workload.ranks), cluster, dtype)
        extra = files(written, compute)
        if roofline:
            workload, more = under_roof(workload, written.local)
            notes += more
        if alone:
            notes.append(
                Diagnostic("idle-rank-added", "the job has one rank; a second, idle one was added, because ASTRA-sim runs two at least")
            )
    write_set(workload, folder, exact_ns=exact_ns, extra=extra, origin=origin)
    network = network_of(folder) if astra_sim else None
    found = None if network is None else as_simulated(workload, replace(network, roofline=roofline))
    if astra_sim and found is None:
        large = len(workload) > MOST_PLAYED
        reason = f"it has more than {MOST_PLAYED:,} nodes" if large else "its ranks would wait for one another for ever"
        notes.append(Diagnostic("not-simulated", f"the set was not run as a simulator would: {reason}"))
    return Exported(
        folder=str(folder),
        ranks=len(workload.ranks),
        nodes=len(workload),
        communication=len(workload.communication),
        groups=len(workload.groups),
        files=(*(file_name(r) for r in range(len(workload.ranks))), GROUPS_FILE, *extra),
        compute=int(((workload.type == NodeType.COMP) & ~workload.on_cpu).sum()),
        work=known,
        replayed_ns=int((workload.start + workload.duration).max()),
        simulated_ns=found,
        diagnostics=(*workload.diagnostics, *notes),
    )


def as_simulated(workload: Workload, network: Network) -> int | None:
    """When all ranks of a set with the files of `network` are done, ns; None where it is too large or its ranks would hang."""
    if len(workload) > MOST_PLAYED:
        return None
    end = play(as_run(workload, network), network).end
    return None if (end == ABSENT).any() else int(end.max())


def under_roof(workload: Workload, memory: float) -> tuple[Workload, list[Diagnostic]]:
    """The workload with bytes for every compute node on a device whose work is unknown, and a diagnostic that says for how many.

    They are as many as `memory`, in GB/s, moves in the node's recorded time: on that hardware the node takes as long as it did, on
    other hardware it follows the memory bandwidth.
    """
    compute = (workload.type == NodeType.COMP) & ~workload.on_cpu
    without = compute & (workload.operations == ABSENT) & (workload.bytes == ABSENT)
    if not without.any():
        return workload, []
    moved = np.where(without, np.rint(workload.duration * memory).astype(np.int64), workload.bytes)
    share = float(workload.duration[without].sum() / max(int(workload.duration[compute].sum()), 1))
    text = (
        f"{int(without.sum())} of {int(compute.sum())} compute nodes ({share:.1%} of their time) have no known operations or bytes:"
        " written with the bytes that take their time on this cluster"
    )
    return replace(workload, bytes=moved), [Diagnostic("work-unknown", text)]
