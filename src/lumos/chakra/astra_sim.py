"""What ASTRA-sim needs besides the `.et` files: system, network and memory files, and a second rank.

The system file has the peak rate and the memory bandwidth of the cluster's accelerator, by which the simulator prices
compute in roofline mode. It is one rate for all kernels: that of the type in which the job makes most of its operations.
"""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from lumos.chakra.network import GIB, Dimension, Network, assumed_network
from lumos.diagnostics import Diagnostic
from lumos.graph.edges import distinct
from lumos.graph.lists import list_of
from lumos.graph.table import Kind
from lumos.trace.chakra.schema import NodeType
from lumos.trace.table import ABSENT
from lumos.vocabulary import DType

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lumos.chakra.workload import Workload
    from lumos.cost.cluster import Cluster

#: Latency of a hop where the cluster does not state one (ns): NVLink's and InfiniBand's order of magnitude, as in
#: ASTRA-sim's own examples.
HOP_NS = 500.0


def with_idle_rank(workload: Workload) -> Workload:
    """A workload of one rank with a second rank added that idles for a microsecond: ASTRA-sim needs at least two ranks."""
    idle = {"type": NodeType.COMP, "on_cpu": True, "kind": Kind.HOST, "name": len(workload.names), "queue": 1, "start": 0, "duration": 1000}
    rows = workload.rows(np.append(np.arange(len(workload)), ABSENT), **idle)
    return replace(
        workload,
        **(rows | {"id": None, "event": None}),
        ranks=(*workload.ranks, max(workload.ranks) + 1),
        rank_offset=np.append(workload.rank_offset, len(workload) + 1),
        names=(*workload.names, "idle"),
        dep_offset=np.append(workload.dep_offset, workload.dep_offset[-1]),
    )


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


def network_dimensions(ranks: int, cluster: Cluster | None) -> tuple[tuple[Dimension, ...], list[Diagnostic]]:
    """The network of a job with that many ranks, and diagnostics that say what had to be assumed for it.

    Ranks that fit in one node share one switch. Ranks that fill several whole nodes get a second level of switches between
    the nodes. Otherwise the network has one level, with the bandwidth of the links between nodes.
    Raises LumosError where the cluster's file lacks the rates.
    """
    if cluster is None:
        assumed = assumed_network(ranks).dimensions[0]
        assumption = Diagnostic(
            "network-assumed",
            f"no cluster was named: the network files say {assumed.bandwidth:g} GiB/s and {assumed.latency:g} ns; name one with --cluster",
        )
        return (assumed,), [assumption]
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


class Compute(StrEnum):
    """Where the simulator's times of compute come from."""

    RECORDED = "recorded"  # the nodes' durations, whole microseconds
    EXACT = "exact"  # nanoseconds, as operation counts at a rate of 1 TFLOP/s
    ROOFLINE = "roofline"  # operations and bytes against the rates of the system file


def network_for(ranks: int, cluster: Cluster | None, dtype: DType | None) -> tuple[Network, list[Diagnostic]]:
    """The network of a job with that many ranks, and what its accelerators reach; and diagnostics that say what had to be assumed.

    dtype: the type in which the job makes most of its operations; bf16 where unknown. fp32 counts as tf32 where the device has
    that, because matrix products and convolutions may use it and the peak is the most that the device can do.
    """
    dimensions, assumptions = network_dimensions(ranks, cluster)
    out = Network(dimensions)
    if cluster is None:
        return out, assumptions
    peaks = cluster.accelerator.peak_flops
    wanted = [DType.TF32, DType.FP32] if dtype is DType.FP32 else [dtype or DType.BF16, DType.BF16, DType.FP16, DType.FP32]
    rate = next((peaks[d] for d in wanted if d in peaks), None)
    memory = cluster.accelerator.memory_bytes_per_s
    missing = [name for name, value in (("peak rate", rate), ("memory bandwidth", memory)) if not value]
    if missing:
        text = f"{cluster.name} has no {' and no '.join(missing)}: sys.json says {out.peak:g} TFLOP/s or {out.local:g} GB/s there"
        assumptions.append(Diagnostic("roof-assumed", text))
    return replace(out, peak=rate / 1e12 if rate else out.peak, local=memory / 1e9 if memory else out.local), assumptions


def files(network: Network, compute: Compute) -> dict[str, str]:
    """The text of every file besides the `.et` files, by file name."""
    dims = network.dimensions
    lists = {
        "topology": ["Switch"] * len(dims),
        "npus_count": [str(d.npus) for d in dims],
        "bandwidth": [f"{d.bandwidth:.4f}" for d in dims],
        "latency": [f"{d.latency:.1f}" for d in dims],
    }
    units = {"bandwidth": "  # GiB/s", "latency": "  # ns"}
    return {
        "net.yml": "".join(f"{key}: [ {', '.join(values)} ]{units.get(key, '')}\n" for key, values in lists.items()),
        "sys.json": _json(_system(network, compute)),
        "mem.json": _json({"memory-type": "NO_MEMORY_EXPANSION"}),
    }


def _system(network: Network, compute: Compute) -> Mapping[str, Any]:
    """The system file. To keep nanoseconds, roofline mode turns operation counts into them: the peak is 1 TFLOP/s and memory is
    too fast to limit anything."""
    peak, local = (1, 100_000) if compute is Compute.EXACT else (round(network.peak), round(network.local))
    kinds = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all")
    return {
        "scheduling-policy": "LIFO",
        "endpoint-delay": 10,
        "active-chunks-per-dimension": 1,
        "preferred-dataset-splits": 4,
        **{f"{kind}-implementation": ["ring"] * len(network.dimensions) for kind in kinds},
        "collective-optimization": "localBWAware",
        "local-mem-bw": local,
        "boost-mode": 0,
        "roofline-enabled": int(compute is not Compute.RECORDED),
        "peak-perf": peak,
    }


def _json(value: Any) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode() + "\n"
