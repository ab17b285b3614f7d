"""The same job on other hardware or another network: measured × model(new) / model(old), kernel by kernel.

What kernels of operators with shapes take is in `reprice`. Other kernels are scaled by what bounds their class: multiplications,
convolutions and attention by peak arithmetic in the type that their name states, else in the one in which the job multiplies, the rest by
memory bandwidth. What the new machine's host does to the CPU's work is for the user to say; unless he does, it is unknown within
HOST_INTERVAL.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from lumos.analyze.task_class import bound_by_arithmetic
from lumos.changes.durations import number
from lumos.changes.layout.precision import computing
from lumos.changes.layout.prices import Ratio, exactly
from lumos.changes.layout.rescale import arithmetic_ratio, memory_ratio
from lumos.diagnostics import Diagnostic
from lumos.errors import LumosError, UsageError
from lumos.graph.table import Kind
from lumos.operators.kernels import type_by_name
from lumos.segment.rank import recordings_of
from lumos.trace.table import unique

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lumos.changes.layout.measured_layout import MeasuredLayout
    from lumos.cost.cluster import Accelerator, Cluster
    from lumos.graph.table import Graph
    from lumos.simulation.durations import Mask
    from lumos.trace.table import Job

#: Half-width of the 80 % interval of the CPU's work on another machine whose host nobody described, as a fraction: an assumption, about
#: the spread between the hosts of one generation.
HOST_INTERVAL = 0.15
#: What is said where that interval is used.
HOST_UNKNOWN = Diagnostic(
    "host-unknown",
    f"how fast the host of the new cluster is was not said: its CPU's work is taken as measured, ±{HOST_INTERVAL:.0%}, and the interval"
    " is as wide as that makes it; --host-factor F says how much longer (above 1) or shorter it takes",
)


def network(cluster: Cluster, words: Iterable[str]) -> Cluster:
    """The cluster with its links and NICs changed. words: bandwidth=x2, latency=x0.5 (comma-separated or repeated).

    Raises UsageError for a malformed word, LumosError where the cluster states no latency that could change.
    """
    factors: dict[str, float] = {}
    for word in (w for text in words for w in text.split(",")):
        key, equals, value = word.partition("=")
        if not equals or key.strip() not in ("bandwidth", "latency"):
            raise UsageError(f"--network {word!r}: write bandwidth=x2 or latency=x0.5")
        factor = number(value, f"--network {word!r}")
        if factors.setdefault(key.strip(), factor) != factor:
            raise UsageError(f"--network {key.strip()}: given twice, as x{factors[key.strip()]:g} and as x{factor:g}; give it once")
    bandwidth, latency = factors.get("bandwidth", 1.0), factors.get("latency", 1.0)
    if not bandwidth:
        raise UsageError("--network bandwidth: a factor must be more than 0")
    node, fabric = cluster.node, cluster.fabric
    if latency != 1 and node.link_latency_s is None and fabric.latency_s is None:
        raise LumosError(
            f"--network latency: the description of {cluster.name} states no latency to change; give a cluster file with"
            " node.link_latency_s or fabric.latency_s (--base-cluster FILE.toml)"
        )
    return msgspec.structs.replace(
        cluster,
        node=msgspec.structs.replace(
            node,
            link_bytes_per_s=_times(node.link_bytes_per_s, bandwidth),
            nic_bytes_per_s=_times(node.nic_bytes_per_s, bandwidth),
            link_latency_s=_times(node.link_latency_s, latency),
        ),
        fabric=msgspec.structs.replace(fabric, latency_s=_times(fabric.latency_s, latency)),
    )


def _times(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def on_accelerator(layout: MeasuredLayout, job: Job, old: Accelerator, new: Accelerator) -> MeasuredLayout:
    """The layout with the kernels that belong to no operator on `new` instead of `old`, by what bounds their class."""
    if old == new:
        return layout
    segmentation, graph = layout.segmentation, layout.segmentation.graph
    prices = layout.prices.copy()
    rest = segmentation.owners.on_device & (graph.kind != Kind.COLLECTIVE)
    for rank in recordings_of(segmentation, job):
        rest[rank.work.tasks] = False
    arithmetic = rest & bound_by_arithmetic(graph)
    prices.multiply(rest & ~arithmetic, memory_ratio(old, new))
    usual = computing(layout, job)
    for name in unique(graph.name[arithmetic]).tolist():
        ratio = arithmetic_ratio(type_by_name(graph.names[name]) or usual, old, new)
        prices.multiply(arithmetic & (graph.name == name), ratio)
    return replace(layout, prices=prices)


def check_links_matter(before: MeasuredLayout, after: MeasuredLayout) -> None:
    """Raise LumosError where other links gave no exchange another time. before, after: the layout without them and with them."""
    if not np.array_equal(before.prices.best, after.prices.best):
        return
    facts = before.segmentation.graph.collectives
    what = (
        "the recording has no exchange between ranks"
        if facts is None or not len(facts.task)
        else "no exchange of the recording takes another time, as none crosses what changes; lumos inspect says what they are"
    )
    raise LumosError(f"{after.changes[-1]}: nothing changes, since {what}")


def on_host(layout: MeasuredLayout, factor: float | None) -> MeasuredLayout:
    """The layout with the CPU's work on another host. factor: how much longer it takes; None where that is not known."""
    work = host_work(layout.segmentation.graph)
    if factor is None:
        prices = layout.prices.times(work, Ratio(1.0, 1 - HOST_INTERVAL, 1 + HOST_INTERVAL))
        return replace(layout, prices=prices, diagnostics=(*layout.diagnostics, HOST_UNKNOWN))
    return replace(layout, prices=layout.prices.times(work, exactly(factor)), changes=(*layout.changes, f"host factor = {factor:g}"))


def host_work(graph: Graph) -> Mask:
    """The CPU's own work, bool[n]: all that threads do, but for transfers."""
    work: Mask = ~graph.on_device & (graph.kind != Kind.COLLECTIVE)
    return work
