"""What ASTRA-sim needs besides the `.et` files: system, network and memory files, and the command line to run it.

ASTRA-sim runs one communication at a time on each rank, whatever its stream, and matches the collectives of a group by
the order in which the ranks issue them. Ranks that issue the collectives of two groups in different orders would wait
for one another for ever. So dependencies are added here that chain the communication of every rank in the order in which
the replay starts it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from lumos.chakra.links import GIB, Dimension
from lumos.chakra.lower import reduced
from lumos.chakra.network import assumed_network
from lumos.diagnostics import Diagnostic
from lumos.graph.edges import distinct
from lumos.graph.lists import list_of
from lumos.graph.table import Kind
from lumos.trace.chakra_wire import NodeType
from lumos.trace.table import ABSENT

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lumos.chakra.workload import Workload
    from lumos.cost.cluster import Cluster

#: Latency of a hop where the cluster does not state one (ns): NVLink's and InfiniBand's order of magnitude, as in
#: ASTRA-sim's own examples.
HOP_NS = 500.0


def serialised(workload: Workload) -> Workload:
    """The workload with dependencies added so that the sends and collectives of a rank run one after another, by start."""
    node = workload.communication.node
    node = node[workload.type[node] != NodeType.RECV]
    rank = workload.rank_of()[node]
    follows = np.flatnonzero(rank[1:] == rank[:-1]) + 1
    dependent = list_of(workload.dep_offset)
    chained = distinct(np.concatenate((workload.dep, node[follows - 1])), np.concatenate((dependent, node[follows])), len(workload))
    offset, dep = reduced(chained)
    return replace(workload, dep_offset=offset, dep=dep)


def with_idle_rank(workload: Workload) -> Workload:
    """A workload of one rank with a second rank added that idles for a microsecond: ASTRA-sim needs at least two ranks."""
    timed = {
        "type": NodeType.COMP,
        "on_cpu": True,
        "kind": Kind.HOST,
        "name": len(workload.names),
        "queue": 1,
        "start": 0,
        "duration": 1000,
    }
    idle_node = {**timed, "release": ABSENT, "operations": ABSENT, "bytes": ABSENT}
    columns: dict[str, Any] = {}
    for name, value in idle_node.items():
        column = getattr(workload, name)
        columns[name] = np.append(column, np.array(value, column.dtype))
    return replace(
        workload,
        **columns,
        ranks=(*workload.ranks, max(workload.ranks) + 1),
        rank_offset=np.append(workload.rank_offset, len(workload) + 1),
        names=(*workload.names, "idle"),
        dep_offset=np.append(workload.dep_offset, workload.dep_offset[-1]),
        id=None,
        event=None,
    )


def network_dimensions(ranks: int, cluster: Cluster | None) -> tuple[tuple[Dimension, ...], list[Diagnostic]]:
    """The network of a job with that many ranks, and diagnostics that say what had to be assumed for it.

    Ranks that fit in one node share one switch. Ranks that fill several whole nodes get a second level of switches between
    the nodes. Otherwise the network has one level, with the bandwidth of the links between nodes.
    Raises LumosError where the cluster's file lacks the rates.
    """
    if cluster is None:
        assumed = assumed_network(ranks).links.dimensions[0]
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


def files(ranks: int, cluster: Cluster | None, *, exact_ns: bool) -> tuple[dict[str, str], list[Diagnostic]]:
    """The text of every file besides the `.et` files, by file name; and diagnostics that say what had to be assumed."""
    dims, assumptions = network_dimensions(ranks, cluster)
    memory = (cluster.accelerator.memory_bytes_per_s or 0) / 1e9 if cluster is not None else 0
    text = {
        "net.yml": _network(dims),
        "sys.json": _json(_system(len(dims), memory or assumed_network(ranks).local, exact_ns)),
        "mem.json": _json({"memory-type": "NO_MEMORY_EXPANSION"}),
        "README.md": _readme(ranks, exact_ns),
    }
    return text, assumptions


def _network(dims: tuple[Dimension, ...]) -> str:
    lists = {
        "topology": ["Switch"] * len(dims),
        "npus_count": [str(d.npus) for d in dims],
        "bandwidth": [f"{d.bandwidth:.4f}" for d in dims],
        "latency": [f"{d.latency:.1f}" for d in dims],
    }
    units = {"bandwidth": "  # GiB/s", "latency": "  # ns"}
    return "".join(f"{key}: [ {', '.join(values)} ]{units.get(key, '')}\n" for key, values in lists.items())


def _system(dims: int, memory: float, exact_ns: bool) -> Mapping[str, Any]:
    """The system file. With `exact_ns`, roofline mode turns operation counts into nanoseconds: the peak is 1 TFLOP/s and
    memory is too fast to limit anything."""
    return {
        "scheduling-policy": "LIFO",
        "endpoint-delay": 10,
        "active-chunks-per-dimension": 1,
        "preferred-dataset-splits": 4,
        **{f"{kind}-implementation": ["ring"] * dims for kind in ("all-reduce", "all-gather", "reduce-scatter", "all-to-all")},
        "collective-optimization": "localBWAware",
        "local-mem-bw": 100000 if exact_ns else round(memory),
        "boost-mode": 0,
        "roofline-enabled": int(exact_ns),
        "peak-perf": 1 if exact_ns else 900,
    }


def _json(value: Any) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode() + "\n"


def _readme(ranks: int, exact_ns: bool) -> str:
    times = (
        "Compute keeps nanoseconds as operation counts, so `sys.json` has roofline mode on; host operators are whole microseconds."
        if exact_ns
        else "Durations are whole microseconds, rounded so that they add up along every chain."
    )
    return f"""# A workload of {ranks} ranks for ASTRA-sim

Run in this folder with the congestion-unaware analytical back-end (for a single-level network also with the aware one):

    AstraSim_Analytical_Congestion_Unaware \\
      --workload-configuration=$PWD/job \\
      --system-configuration=$PWD/sys.json \\
      --network-configuration=$PWD/net.yml \\
      --remote-memory-configuration=$PWD/mem.json \\
      --comm-group-configuration=$PWD/groups.json

A good run prints one line `sys[R] finished, C cycles, ...` for each of the {ranks} ranks; a cycle is a nanosecond.
{times}
`lumos chakra check .` holds the files to the simulator's rules.
"""
