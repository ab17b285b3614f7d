"""Collectives: latency over hops plus bytes over links, by protocol and algorithm, within a node and across the fabric.

Within a node, for protocol p (LL, LL128, Simple, from the lowest latency to the highest bandwidth) and algorithm a (ring;
in-switch reduction, "NVLS", for all-reduce where the switch multicasts),

    latency = (base + hop · hops(a)) · latency factor(p)
    wire    = bytes sent per rank (a) / link bandwidth · (overhead(p) + small-group overhead / (ranks − 1))
    time    = min over p, a of  latency + wire [+ growth · sqrt(base · wire), Simple only: filling the pipeline]

Across nodes a ring or tree joins the nodes through their NICs, while the transfers within each node overlap with it:

    network = bytes through a node's NICs / (NIC bandwidth share · efficiency) · `Fabric.oversubscription` of the tier spanned
    latency = inner latency + hops between nodes · fabric latency · factor
    time    = latency + max(wire, network) + growth · sqrt(latency · max(wire, network) · fabric latency / 5 µs)

Bytes: ring all-reduce 2(n−1)/n · S, all-gather, reduce-scatter and all-to-all (n−1)/n · S, broadcast, reduce and
send/receive S (Thakur, Rabenseifner, Gropp 2005; nccl-tests PERFORMANCE.md); in-switch all-reduce (n+1)/n · S. S is the
larger of one rank's input and output buffers, the "size" of nccl-tests. Tree hops: 2 · log2(nodes).
Broadcast and reduce pass through all devices one after the other, so the latency within a node counts once for each node.

Limits: a device takes part in one collective at a time (concurrent groups share NICs, not links or SMs); in a mesh, a group has
the rate of the links between its own ranks; the cheapest protocol is taken for each size, not NCCL's tuned choice.
"""

from __future__ import annotations

from functools import reduce
from operator import add
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.cost.coefficients import Book, Coefficients, estimate, find, outside
from lumos.cost.estimate import Bound, Estimate, Float64, ModelledTime
from lumos.errors import UsageError
from lumos.vocabulary import CollectiveKind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import ArrayLike, NDArray

    from lumos.cost.cluster import Cluster
    from lumos.diagnostics import Diagnostic

#: Kinds that have a model, and under which name the files of coefficients hold the set that is used for each.
MODELLED_KINDS: Mapping[CollectiveKind, str] = {
    CollectiveKind.ALL_REDUCE: "all_reduce",
    CollectiveKind.ALL_GATHER: "all_gather",
    CollectiveKind.REDUCE_SCATTER: "reduce_scatter",
    CollectiveKind.ALL_TO_ALL: "all_to_all",
    CollectiveKind.BROADCAST: "all_gather",
    CollectiveKind.REDUCE: "reduce_scatter",
    CollectiveKind.SEND_RECEIVE: "all_to_all",
}
#: Kinds that are fitted from measurements of their own.
FITTED_KINDS = (CollectiveKind.ALL_REDUCE, CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER, CollectiveKind.ALL_TO_ALL)
#: Kinds whose ranks send to ranks anywhere in the group, not to the next in a ring.
PAIRWISE = (CollectiveKind.ALL_TO_ALL, CollectiveKind.SEND_RECEIVE)
#: Kinds that NCCL always runs as a chain through every device (its src/graph/tuning.cc allows only the ring for them).
CHAINED = (CollectiveKind.BROADCAST, CollectiveKind.REDUCE)


class LinkCoefficients(NamedTuple):
    """Within a node, fitted per kind. Times in µs; latency_factor, overhead: of the protocols LL, LL128, Simple."""

    base_us: float
    hop_us: float
    latency_factor: tuple[float, ...]
    overhead: tuple[float, ...]
    small_group_overhead: float
    growth: float
    switch_us: float
    switch_overhead: float


class NetworkCoefficients(NamedTuple):
    """Across nodes, one set for all clusters and kinds. hop_factor: on `Fabric.latency_s`. overhead, exchange_overhead (of
    all-to-all): on the time at the NICs' rate."""

    hop_factor: float
    overhead: float
    exchange_overhead: float
    growth: float


LINK_PRIOR = LinkCoefficients(6.0, 0.8, (1.0, 1.2, 2.0), (4.0, 1.8, 1.3), 0.3, 0.5, 12.0, 1.4)
NETWORK_PRIOR = NetworkCoefficients(2.0, 1.08, 1.3, 0.4)
#: Latency of an RDMA hop with NCCL. A fabric with a higher one (through the host, or by a software transport) takes longer to fill.
RDMA_HOP_S = 5e-6


class GroupLinks(NamedTuple):
    """How a group's ranks are placed. ranks, per_node, nodes: arrays of one shape; the other fields are the cluster's numbers."""

    ranks: Float64
    per_node: Float64
    nodes: Float64
    link: Float64  # bytes/s of one device towards its peers in the group
    step_s: float  # least time of a hop within the node
    multicast: bool
    nic: Float64  # bytes/s of the NICs that the group may use in one node; inf within a node
    hop_s: float  # fabric latency
    reduction: bool  # switches of the fabric reduce


class Laid(NamedTuple):
    """How a group lies in its cluster: ranks of it in one node, groups of a node that use its NICs at the same time, and devices between
    its first and last rank."""

    per_node: int
    concurrent: int
    span: int


def laid(ranks: int, stride: int, devices: int) -> Laid:
    """How a group of every `stride`-th rank lies in nodes of so many devices that are filled one after the other."""
    per_node = max(1, min(ranks, devices // stride)) if stride < devices else 1
    return Laid(per_node, max(1, devices // per_node) if ranks > per_node else 1, ranks * stride)


def collective(
    kind: str,
    ranks: ArrayLike,
    size_bytes: ArrayLike,
    cluster: Cluster,
    *,
    per_node: ArrayLike | None = None,
    concurrent: ArrayLike = 1,
    span: ArrayLike | None = None,
    book: Book | None = None,
) -> Estimate:
    """Time of a collective over a group of devices, from the last rank's arrival to the end.

    kind: all_reduce, all_gather, reduce_scatter, … ranks: devices of the group, on cluster: a `Cluster` or its name. size_bytes: the larger
    of one rank's input and output (all-gather: the gathered result; reduce-scatter: the input). per_node: ranks of the group in one node
    (default: as many as fit). concurrent: groups of a node that use its NICs at the same time. span: devices between the group's first and
    last rank, which decide the tier of the fabric (default: ranks · devices per node / per_node). A group of one rank costs nothing. book:
    as of `lumos.cost.gemm`. Raises UsageError for an unknown kind, a negative size or more ranks than the cluster has, LumosError where the
    cluster lacks a number.
    """
    known = modelled_kind(kind)
    ranks, size_bytes = np.asarray(ranks, float), np.asarray(size_bytes, float)
    if np.any(ranks < 1) or np.any(size_bytes < 0) or np.any(np.asarray(concurrent) < 1):
        raise UsageError("collective: ranks and concurrent groups must be 1 or more and bytes 0 or more")
    devices = cluster.node.devices
    inside = np.minimum(ranks, devices if per_node is None else np.asarray(per_node, float))
    if np.any((inside > devices) | (inside < 1)):
        raise UsageError(f"collective: per_node must lie between 1 and the node's {devices} devices")
    whole = np.where(ranks <= inside, ranks, np.ceil(ranks / inside) * devices) if span is None else np.asarray(span, float)
    count, within, beside, spanned, size = np.broadcast_arrays(ranks, inside, np.asarray(concurrent, float), whole, size_bytes)
    group = span_group(cluster, count, within, beside, spanned, known not in PAIRWISE)
    links, notes = find("collective", cluster.accelerator, (MODELLED_KINDS[known],), book)
    inner, outer = links.read_as(LinkCoefficients), group.nodes > 1
    parts = []
    if not np.all(outer):
        parts.append(_of_those(~outer, size, group, link_seconds(known, size, group, inner), links, notes))
    if np.any(outer):
        network, more = find("network", cluster.accelerator, ("network",), book)
        across = network_seconds(known, size, group, inner, network.read_as(NetworkCoefficients))
        notes += tuple(d for d in more if d.code != "generic-coefficients")
        parts.append(_of_those(outer, size, group, across, network, notes))
    return reduce(add, parts)


def _of_those(
    chosen: NDArray[np.bool_], size: Float64, group: GroupLinks, modelled: ModelledTime, fitted: Coefficients, notes: tuple[Diagnostic, ...]
) -> Estimate:
    """The estimate of the `chosen` groups, with the ratio, interval and range of their own coefficients; the others take no time."""
    work = chosen & (group.ranks > 1) & (size > 0)
    beyond = outside(fitted.seen, ranks=group.ranks, size_bytes=size, nodes=group.nodes)
    return estimate(np.where(work, modelled.seconds, 0.0), np.where(work, modelled.roofline, 0.0), modelled.bound, beyond, fitted, notes)


def modelled_kind(word: str) -> CollectiveKind:
    """The modelled kind that a word names; a send or a receive is the whole transfer. Raises UsageError that lists the valid ones."""
    kind = CollectiveKind.of_word(word)
    if kind.is_transfer:
        return CollectiveKind.SEND_RECEIVE
    if kind not in MODELLED_KINDS:
        raise UsageError(f"collective {word!r} is not known; valid: {', '.join(MODELLED_KINDS)}")
    return kind


def span_group(cluster: Cluster, ranks: Float64, per_node: Float64, concurrent: Float64, span: Float64, ring: bool = False) -> GroupLinks:
    """The group with its share of the cluster's links and NICs. ring: data pass from each rank to the next, not between any two."""
    node, fabric = cluster.node, cluster.fabric
    cluster.check_size(int(np.max(ranks, initial=1)))
    nodes = np.ceil(ranks / per_node)
    link = nic = np.full(ranks.shape, np.inf)
    hop, reduction = 0.0, False
    if np.any(per_node > 1):
        rate = float(node.require("link_bytes_per_s", cluster.name))
        share = (per_node - 1) / max(node.devices - 1, 1) if node.topology == "mesh" else 1.0
        link = np.where(per_node > 1, rate * share, np.inf)
    if np.any(nodes > 1):
        if fabric.topology == "none":
            raise UsageError(f"collective: {int(ranks.max())} ranks need several nodes, but cluster {cluster.name!r} describes no fabric")
        one = float(node.require("nic_bytes_per_s", cluster.name))
        total = node.nic_total(cluster.name)
        near = np.maximum(per_node * (total / one / node.devices), 1.0) * one
        share_of = np.vectorize(lambda devices, ring: fabric.oversubscription(int(devices), int(ring)), otypes=[float])
        nic = np.minimum(np.minimum(near, total), total / concurrent) / share_of(span, ranks if ring else 1)
        hop, reduction = float(fabric.require("latency_s", cluster.name)), fabric.reduction
    return GroupLinks(ranks, per_node, nodes, link, node.link_latency_s or 0.0, node.multicast, nic, hop, reduction)


def _sent(kind: CollectiveKind, ranks: Float64) -> Float64:
    """Bytes a rank sends in the ring (or pairwise) algorithm, as a multiple of the size."""
    if kind is CollectiveKind.ALL_REDUCE:
        return 2 * (ranks - 1) / ranks
    if kind in (CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER, CollectiveKind.ALL_TO_ALL):
        return (ranks - 1) / ranks
    return np.ones_like(ranks)


def _hops(kind: CollectiveKind, ranks: Float64) -> Float64:
    if kind is CollectiveKind.ALL_REDUCE:
        return 2 * (ranks - 1)
    return np.ones_like(ranks) if kind is CollectiveKind.SEND_RECEIVE else ranks - 1


def link_seconds(kind: CollectiveKind, size: Float64, group: GroupLinks, c: LinkCoefficients) -> ModelledTime:
    """The time within one node."""
    options, ideal = _inner(kind, size, group, c)
    seconds, latency, wire = _cheapest([_Option(latency + wire, latency, wire) for latency, wire in options])
    return ModelledTime(seconds, np.where(latency > wire, Bound.LATENCY, Bound.LINK), ideal)


class _Option(NamedTuple):
    """Seconds of one protocol and algorithm: in total, before the first byte arrives, and moving bytes."""

    total: Float64
    latency: Float64
    moving: Float64


def _cheapest(options: list[_Option]) -> _Option:
    """The option with the least total, entry by entry."""
    total, latency, moving = options[0]
    for other in options[1:]:
        better = other[0] < total
        total, latency, moving = (np.where(better, b, a) for a, b in zip((total, latency, moving), other, strict=True))
    return _Option(total, latency, moving)


def _inner(kind: CollectiveKind, size: Float64, group: GroupLinks, c: LinkCoefficients) -> tuple[list[tuple[Float64, Float64]], Float64]:
    """(latency, wire) seconds of every protocol and algorithm over the group's devices in one node, and the roofline."""
    ranks = group.per_node
    peers = np.maximum(ranks - 1, 1)
    alone = ranks <= 1
    ideal = np.where(alone, 0.0, size * _sent(kind, ranks) / group.link)
    steps = np.where(alone, 0.0, c.base_us * 1e-6 + np.maximum(c.hop_us * 1e-6, group.step_s) * _hops(kind, ranks))

    def filled(wire: Float64) -> Float64:
        return wire + c.growth * np.sqrt(c.base_us * 1e-6 * wire)

    overheads = [overhead + c.small_group_overhead / peers for overhead in c.overhead]
    options = [(steps * factor, ideal * overhead) for factor, overhead in zip(c.latency_factor, overheads, strict=True)]
    options[-1] = (options[-1][0], filled(options[-1][1]))
    if kind is CollectiveKind.ALL_REDUCE and group.multicast:
        through = np.where(alone, 0.0, size * (ranks + 1) / ranks / group.link)
        options.append((np.where(alone, 0.0, c.switch_us * 1e-6), filled(through * c.switch_overhead)))
        ideal = np.minimum(ideal, through)
    return options, ideal


def network_seconds(
    kind: CollectiveKind, size: Float64, group: GroupLinks, inner: LinkCoefficients, c: NetworkCoefficients
) -> ModelledTime:
    """The time of groups over several nodes."""
    options, ideal = _inner(kind, size, group, inner)
    peak = _through_node(kind, size, group) / group.nic
    network = peak * (c.exchange_overhead if kind is CollectiveKind.ALL_TO_ALL else c.overhead)
    tree = 2 * np.ceil(np.log2(np.maximum(group.nodes, 2)))
    ring = _hops(kind, group.nodes)
    hops = np.minimum(tree, ring) if kind is CollectiveKind.ALL_REDUCE else ring
    between = hops * group.hop_s * c.hop_factor
    through = group.nodes if kind in CHAINED else 1.0
    joined = []
    for inside, wire in options:
        latency, moving = np.maximum(inside, inner.base_us * 1e-6) * through + between, np.maximum(wire, network)
        filling = c.growth * np.sqrt(latency * moving * group.hop_s / RDMA_HOP_S)
        joined.append(_Option(latency + moving + filling, latency, moving))
    seconds, latency, moving = _cheapest(joined)
    bound = np.where(latency > moving, Bound.LATENCY, np.where(network >= moving, Bound.FABRIC, Bound.LINK))
    return ModelledTime(seconds, bound, np.maximum(peak, ideal))


def _through_node(kind: CollectiveKind, size: Float64, group: GroupLinks) -> Float64:
    """Bytes that leave (and enter) one node."""
    if kind is CollectiveKind.ALL_TO_ALL:
        return size * group.per_node * (group.ranks - group.per_node) / group.ranks
    if kind is CollectiveKind.ALL_REDUCE and group.reduction:
        return size
    return size * _sent(kind, group.ranks)
