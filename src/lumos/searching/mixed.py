"""Nodes of several kinds in one job: the plan that all of them can run, at the pace of the slowest.

Every rank of a plan has an equal share of the work, and every collective and every pipeline transfer waits for its last rank. So a job
on nodes of two kinds is about as fast as on as many nodes of a kind that has the lower of each rate and the smaller memory. That is
the cluster that `slowest_of` makes. It ignores that a framework could give slower nodes fewer layers.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace as with_fields

from lumos.cost.cluster import Operation
from lumos.diagnostics import Diagnostic
from lumos.errors import LumosError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lumos.cost.cluster import Cluster
    from lumos.searching.space import Problem


def mixed_problem(problem: Problem, others: Sequence[Cluster]) -> Problem:
    """The problem on nodes of its cluster together with nodes of others. Without others it stays as it is."""
    if not others:
        return problem
    kinds = (problem.cluster, *others)
    names = ", ".join(cluster.name for cluster in kinds)
    note = Diagnostic(
        "mixed-nodes",
        f"nodes of several kinds ({names}): priced as if all had the lowest of each rate and the smallest memory among them, and the "
        "highest price and power that their files state",
    )
    return replace(problem, cluster=slowest_of(kinds, problem.precision), assumed=(*problem.assumed, note))


def slowest_of(kinds: Sequence[Cluster], precision: str) -> Cluster:
    """A cluster with the lowest rates and the smallest memory of several. Kernels are priced as on the accelerator with the lowest peak.

    precision: the type whose peak rates are compared. Raises LumosError where nodes have different numbers of devices, UsageError where an
    accelerator has no rate for the precision.
    """
    sizes = {cluster.name: cluster.node.devices for cluster in kinds}
    if len(set(sizes.values())) > 1:
        stated = ", ".join(f"{name} {devices}" for name, devices in sizes.items())
        raise LumosError(f"nodes of different sizes ({stated} devices): groups inside a node would differ; name nodes of one size")
    base = min(kinds, key=lambda cluster: cluster.accelerator.peak(precision))
    accelerators = [cluster.accelerator for cluster in kinds]
    slow_link = min(kinds, key=lambda cluster: cluster.node.link_bytes_per_s or 0.0).node
    slow_nics = min(kinds, key=lambda cluster: (cluster.node.nics or 0) * (cluster.node.nic_bytes_per_s or 0.0)).node
    slow_fabric = max(kinds, key=lambda cluster: cluster.fabric.oversubscription(cluster.devices)).fabric
    accelerator = with_fields(
        base.accelerator,
        peak_flops={dtype: min(a.peak_flops.get(dtype, rate) for a in accelerators) for dtype, rate in base.accelerator.peak_flops.items()},
        memory_bytes=_least([a.memory_bytes for a in accelerators]),
        memory_bytes_per_s=_least([a.memory_bytes_per_s for a in accelerators]),
    )
    node = with_fields(
        slow_link,
        multicast=all(cluster.node.multicast for cluster in kinds),
        nics=slow_nics.nics,
        nic_bytes_per_s=slow_nics.nic_bytes_per_s,
    )
    fabric = with_fields(
        slow_fabric,
        latency_s=max(cluster.fabric.latency_s or 0.0 for cluster in kinds) or None,
        reduction=all(cluster.fabric.reduction for cluster in kinds),
    )
    name = "+".join(cluster.name for cluster in kinds)
    return with_fields(base, name=name, accelerator=accelerator, node=node, fabric=fabric, operation=_dearest(kinds), aliases=())


def _dearest(kinds: Sequence[Cluster]) -> Operation:
    """What all kinds state of money, power and failures, each number at its worst: how many nodes of which kind there are is not known."""
    stated = [cluster.operation for cluster in kinds]
    return Operation(
        price_per_hour=_most([o.price_per_hour for o in stated]),
        power_w=_most([o.power_w for o in stated]),
        mtbf_hours=_least([o.mtbf_hours for o in stated]),
        checkpoint_s=_most([o.checkpoint_s for o in stated]),
        restart_s=_most([o.restart_s for o in stated]),
    )


def _most(values: Sequence[float | None]) -> float | None:
    """The largest value, None where one is not known."""
    known = [value for value in values if value is not None]
    return max(known) if len(known) == len(values) else None


def _least(values: Sequence[float | None]) -> Any:
    """The least value, None where one is not known."""
    known = [value for value in values if value is not None]
    return min(known) if len(known) == len(values) else None
