"""The network that a table of runs states in free text, and the cluster of a row with that network and the row's nodes.

A text has clauses ("NVLink in node; 4 OmniPath links per node"). Clauses about the links inside a node, about storage and about
management say nothing of the network between nodes. In the others a number of links and the rate of each are looked for. A rate is stated
in Gb/s (bits) or GB/s (bytes), or follows from the generation of the network, which fixes the rate of one port.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from lumos.cost.cluster import Cluster, load_cluster
from lumos.diagnostics import Diagnostic

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Gb/s of one port by generation: InfiniBand roadmap of the InfiniBand Trade Association (four lanes), Intel Omni-Path 100 series, and
#: the data sheets of NVIDIA's adapters.
PORT_GBIT = {
    r"omni-?path|\bopa\b": 100, r"\bfdr": 56, r"\bedr": 100, r"\bhdr": 200, r"\bndr": 400, r"\bxdr": 800,
    r"connectx-?7|\bcx-?7\b": 400, r"connectx-?8|\bcx-?8\b": 800,
}  # fmt: skip
#: The rate of the fastest port: a higher one is what several reach together.
_FASTEST_PORT = max(PORT_GBIT.values()) * 1.25e8
#: Words that tell that a clause is about the network between nodes.
_NETWORK = re.compile(
    r"infiniband|\bib\b|ethernet|gbe\b|roce|rdma|\befa\b|bluefield|bf-?3|node|network|nic\b|per (?:gpu|device)|" + "|".join(PORT_GBIT),
    re.IGNORECASE,
)
#: Clauses about links inside a node, and about networks that carry no gradients.
_INSIDE = re.compile(r"nvlink|nvswitch|xgmi|infinity fabric|pcie|\bhbm|\d\s*tb/s", re.IGNORECASE)
_ASIDE = re.compile(r"^\s*(storage|management)\s*:|\bfor ns\b", re.IGNORECASE)
#: A rate: the large B of GB/s means bytes.
_RATE = re.compile(r"(\d+(?:\.\d+)?)\s*(?:G(B)/[Ss](?:ec)?\b|G(?:b|bit|B|E|bE)?(?:ps|it/s|/[Ss](?:ec)?)?\b)")
#: A generation of InfiniBand with the rate of its port, in Gb/s: HDR100 is half of HDR.
_GENERATION = re.compile(r"\b[fehnx]dr[ -]?(\d{2,3})\b", re.IGNORECASE)
_COUNT = re.compile(r"(?<![\w.])(\d+)\s*(?:[x×]\s*\w|(?=connectx|cx-?\d))", re.IGNORECASE)
_LINKS = re.compile(r"(?<![\w.])(\d+)\s+[a-z][\w\s-]{0,24}?(?:links?|nics?|ports?|hcas?|adapters?|rails?)\b", re.IGNORECASE)


class StatedNetwork(NamedTuple):
    """NICs of a node, and the rate of one of them. sure: the text says how many there are, or what they reach together."""

    nics: int
    bytes_per_s: float
    sure: bool = True


def stated_network(text: str, devices: int, nics: int) -> StatedNetwork | None:
    """The network that a text such as "4x100Gb RoCE" or "1600 Gbps node-node" states; None if it states no rate.

    devices: of a node. nics: how many links a node has if the text does not say (`StatedNetwork.sure` is then False).
    """
    stated = [network for clause in _clauses(text) if (network := _network(clause, devices, nics)) is not None]
    return max(stated, key=lambda n: (n.sure, n.nics * n.bytes_per_s), default=None)


def _clauses(text: str) -> Iterator[str]:
    """The clauses about networks that carry gradients."""
    for clause in re.split(r"[|;,+]|\band\b", text):
        if clause.strip() and not _ASIDE.search(clause) and not _INSIDE.search(clause):
            yield clause


def _network(clause: str, devices: int, nics: int) -> StatedNetwork | None:
    rate = _bytes_per_s(clause)
    if rate is None or not _NETWORK.search(clause):
        return None
    count = _COUNT.search(clause) or _LINKS.search(clause)
    multiple = devices if re.search(r"per (?:gpu|device)|/gpu", clause, re.IGNORECASE) else 1
    if count or multiple > 1:
        return StatedNetwork(multiple * max(1, int(count.group(1)) if count else 1), rate)
    if rate > _FASTEST_PORT or re.search(r"node|inter|network", clause, re.IGNORECASE):  # what all links of a node reach together
        return StatedNetwork(devices, rate / devices)
    return StatedNetwork(nics, rate, sure=False)


def _bytes_per_s(clause: str) -> float | None:
    """The rate that a clause states or that its generation has, in bytes/s."""
    if generation := _GENERATION.search(clause):
        return float(generation.group(1)) * 1.25e8
    if rate := _RATE.search(clause):
        return float(rate.group(1)) * (1e9 if rate.group(2) else 1.25e8)
    return next((gbit * 1.25e8 for word, gbit in PORT_GBIT.items() if re.search(word, clause, re.IGNORECASE)), None)


def row_cluster(name: str, per_node: int | None, interconnect: str, devices: int, notes: list[Diagnostic]) -> Cluster:
    """The cluster of an accelerator's name, with nodes of `per_node` devices and the stated network. devices: of the job, to which
    the network does not matter if one node holds them."""
    cluster = load_cluster(name)
    if per_node is not None and per_node != cluster.node.devices:
        cluster = _resized(cluster, per_node, notes)
    node = cluster.node
    host = node.tray or node.devices  # what a text calls a node: of a rack, one of its trays
    hosts = node.devices // host
    network = stated_network(interconnect, host, (node.nics or node.devices) // hosts)
    if network is None:
        if devices > node.devices and interconnect.strip():
            message = f"interconnect {interconnect!r} states no rate between nodes that is understood; {_stated(cluster)} is assumed"
            notes.append(Diagnostic("network-not-understood", message))
        return cluster
    nics = network.nics if network.nics >= node.devices else hosts * network.nics
    cluster = msgspec.structs.replace(cluster, node=msgspec.structs.replace(node, nics=nics, nic_bytes_per_s=network.bytes_per_s))
    of_rack = f", of which each of {hosts} trays has {network.nics}" if nics > network.nics else ""
    if network.sure:
        notes.append(Diagnostic("row-network", f"interconnect {interconnect!r} is read as {_stated(cluster)}{of_rack}"))
    elif devices > node.devices:
        message = f"interconnect {interconnect!r} states a rate but not how many links a node has; {_stated(cluster)}{of_rack} is assumed"
        notes.append(Diagnostic("network-links", message))
    return cluster


def _resized(cluster: Cluster, per_node: int, notes: list[Diagnostic]) -> Cluster:
    """The cluster with other nodes. The trays of a rack are one domain of links all the same."""
    node = cluster.node
    if node.tray is not None and per_node == node.tray:
        message = f"{per_node} devices a node are a tray of {cluster.name}; the links of its {node.devices} devices form one domain"
        notes.append(Diagnostic("row-tray", message))
        return cluster
    return msgspec.structs.replace(cluster, node=node.resized(per_node))


def _stated(cluster: Cluster) -> str:
    node = cluster.node
    if node.nics is None or node.nic_bytes_per_s is None:
        return f"the network of {cluster.name}"
    return f"{node.nics} x {node.nic_bytes_per_s * 8e-9:g} Gb/s a node"
