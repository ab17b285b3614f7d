"""Export a job's graph as a Chakra set, with the other files that a simulator needs, and say what the set takes where one runs it.

A simulator runs one compute node, one host operator and one communication of a rank at a time, whatever streams and threads
the job has; and it prices communication, and in roofline mode compute, by its own files. What it takes is said beside the replay.

The system file has the peak rate and the memory bandwidth of the cluster's accelerator, by which the simulator prices compute in roofline
mode. It is one rate for all kernels: that of the type in which the job makes most of its operations.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from lumos.chakra.lower import lower
from lumos.chakra.network import GIB, Dimension, Network, assumed_network
from lumos.chakra.play import as_run, of_roofline, play
from lumos.chakra.system_files import IMPLEMENTATIONS, network_of
from lumos.chakra.write import GROUPS_FILE, file_name, idle_rank, write_set
from lumos.diagnostics import Diagnostic
from lumos.errors import UsageError
from lumos.graph.lists import distinct, list_of
from lumos.result import Shown
from lumos.trace.chakra.schema import NodeType
from lumos.trace.table import ABSENT
from lumos.vocabulary import DType

if TYPE_CHECKING:
    from pathlib import Path

    from lumos.chakra.workload import Amounts, Workload
    from lumos.cost.cluster import Cluster
    from lumos.graph.table import Graph
    from lumos.trace.table import Origin

#: Larger sets are not simulated at export: a node takes some 10 µs.
MOST_PLAYED = 400_000
#: Latency of a hop where the cluster does not state one (ns): NVLink's and InfiniBand's order of magnitude, as in
#: ASTRA-sim's own examples.
HOP_NS = 500.0


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
    bytes. origin: of a job that no device ran. Raises UsageError for `roofline` without `astra_sim` and a cluster, GraphError where the
    graph has no schedule, LumosError where the folder cannot be written.
    """
    if roofline and (cluster is None or not astra_sim):
        raise UsageError("--roofline prices compute on a cluster: give --astra-sim and --cluster")
    workload = lower(graph, amounts)
    extra: dict[str, bytes] = {}
    notes: list[Diagnostic] = []
    known = len(of_roofline(workload))
    if astra_sim:
        workload = ordered(workload)
        written, notes = network_for(len(workload.ranks), cluster, None if amounts is None else amounts.dtype)
        extra = files(replace(written, roofline=roofline))
        if roofline:
            workload, more = under_roof(workload, written.local)
            notes += more
        if len(workload.ranks) == 1:
            extra[file_name(1)] = idle_rank()
            text = "the job has one rank; the file of a second, idle one stands beside it, because ASTRA-sim runs two at least"
            notes.append(Diagnostic("idle-rank-added", text))
    write_set(workload, folder, exact_ns=exact_ns, extra=extra, origin=origin)
    network = network_of(folder) if astra_sim else None
    simulated = None if network is None else as_simulated(workload, network)
    if astra_sim and simulated is None:
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
        simulated_ns=simulated,
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


def ordered(workload: Workload) -> Workload:
    """The workload in which each send and collective of a rank waits for the one before it in the replay.

    ASTRA-sim runs one communication at a time on each rank, and matches the collectives of a group by the order in which ranks issue them:
    in the replay every one has met its peers, so that in its order no ranks wait for one another. Receives need no turn.
    """
    facts, rank = workload.communication, workload.rank_of()
    node = facts.node[workload.type[facts.node] != NodeType.RECV]
    before, after = node[:-1], node[1:]
    same = rank[before] == rank[after]
    dependent = list_of(workload.dep_offset)
    chained = np.concatenate((workload.dep, before[same])), np.concatenate((dependent, after[same]))
    offset, dep = distinct(*chained, len(workload))
    return replace(workload, dep_offset=offset, dep=dep)


def network_for(ranks: int, cluster: Cluster | None, dtype: DType | None) -> tuple[Network, list[Diagnostic]]:
    """The network of a job with that many ranks, and what its accelerators reach; and diagnostics that say what had to be assumed.

    dtype: the type in which the job makes most of its operations; bf16 where unknown. fp32 counts as tf32 where the device has
    that, because matrix products and convolutions may use it and the peak is the most that the device can do. Raises LumosError where the
    cluster's file lacks the rates of links.
    """
    if cluster is None:
        out = assumed_network(ranks)
        rates = f"{out.dimensions[0].bandwidth:g} GiB/s and {out.dimensions[0].latency:g} ns"
        text = f"no cluster was named: the network files say {rates}; name one with --cluster"
        return out, [Diagnostic("network-assumed", text)]
    dimensions, assumptions = _dimensions(ranks, cluster)
    out = Network(dimensions)
    peaks = cluster.accelerator.peak_flops
    wanted = [DType.TF32, DType.FP32] if dtype is DType.FP32 else [dtype or DType.BF16, DType.BF16, DType.FP16, DType.FP32]
    rate = next((peaks[d] for d in wanted if d in peaks), None)
    memory = cluster.accelerator.memory_bytes_per_s
    missing = [name for name, value in (("peak rate", rate), ("memory bandwidth", memory)) if not value]
    if missing:
        text = f"{cluster.name} has no {' and no '.join(missing)}: sys.json says {out.peak:g} TFLOP/s or {out.local:g} GB/s there"
        assumptions.append(Diagnostic("roof-assumed", text))
    return replace(out, peak=rate / 1e12 if rate else out.peak, local=memory / 1e9 if memory else out.local), assumptions


def _dimensions(ranks: int, cluster: Cluster) -> tuple[tuple[Dimension, ...], list[Diagnostic]]:
    """Ranks that fit in one node share one switch. Ranks that fill several whole nodes get a second level of switches between the nodes.
    Otherwise the network has one level, with the bandwidth of the links between nodes, and a diagnostic says so."""
    node = cluster.node
    link = float(node.require("link_bytes_per_s", cluster.name)) / 1e9 / GIB
    hop = 1e9 * node.link_latency_s if node.link_latency_s else HOP_NS
    if ranks <= node.devices:
        return (Dimension(max(ranks, 2), link, hop),), []
    between = node.nic_total(cluster.name) / node.devices / cluster.fabric.oversubscription(ranks) / 1e9 / GIB
    wire = 1e9 * cluster.fabric.latency_s if cluster.fabric.latency_s else HOP_NS
    if ranks % node.devices:
        assumption = Diagnostic(
            "nodes-not-full", f"{ranks} ranks do not fill nodes of {node.devices}: the network has one level, at the NICs' rate"
        )
        return (Dimension(ranks, between, wire),), [assumption]
    return (Dimension(node.devices, link, hop), Dimension(ranks // node.devices, between, wire)), []


def files(network: Network) -> dict[str, bytes]:
    """Every file besides the `.et` files, by file name."""
    dims = network.dimensions
    lines = {
        "topology: [ {} ]\n": ["Switch"] * len(dims),
        "npus_count: [ {} ]\n": [str(d.npus) for d in dims],
        "bandwidth: [ {} ]  # GiB/s\n": [f"{d.bandwidth:.4f}" for d in dims],
        "latency: [ {} ]  # ns\n": [f"{d.latency:.1f}" for d in dims],
    }
    system = {
        "scheduling-policy": "LIFO",
        "endpoint-delay": 10,
        "active-chunks-per-dimension": 1,
        "preferred-dataset-splits": 4,
        **{key: ["ring"] * len(dims) for key in IMPLEMENTATIONS.values()},
        "collective-optimization": "localBWAware",
        "local-mem-bw": round(network.local),
        "boost-mode": 0,
        "roofline-enabled": int(network.roofline),
        "peak-perf": round(network.peak),
    }
    network_file = "".join(line.format(", ".join(values)) for line, values in lines.items())
    objects = {"sys.json": system, "mem.json": {"memory-type": "NO_MEMORY_EXPANSION"}}
    written = {name: msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n" for name, value in objects.items()}
    return {"net.yml": network_file.encode(), **written}
