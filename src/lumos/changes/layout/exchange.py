"""The exchanges of a job with another number of replicas.

What a measured collective takes in another group is in `regroup`. The collectives of a single process move nothing: the whole transfer
comes from the model, over the link that the user states.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from lumos.changes.layout.activations import measured_ranks, of_stream
from lumos.changes.layout.change import pipeline_stages
from lumos.changes.layout.prices import Ratio, exactly
from lumos.changes.layout.regroup import regroup
from lumos.changes.layout.sharding.exchanged import COPIES, exchanged_by_rank, updates_of_parts
from lumos.changes.ranges import inside
from lumos.errors import LumosError, UsageError
from lumos.graph.table import Collectives, Kind
from lumos.trace.table import ABSENT, Int32, Int64, Job
from lumos.vocabulary import CollectiveKind, Phase

if TYPE_CHECKING:
    from lumos.changes.layout.measured_layout import MeasuredLayout
    from lumos.cost.cluster import Cluster

#: Why replicas of a process on a CPU cannot be timed, and what to do.
NO_LINK = (
    "--set dp: the trace is of one process, whose collectives move nothing, so it does not show what an exchange costs;"
    " describe the link between them with --base-cluster FILE.toml, a cluster file with the node's link_bytes_per_s and"
    " link_latency_s (docs/whatif.md), or record two processes"
)


def replicas(
    layout: MeasuredLayout, job: Job, count: int | None, cluster: Cluster | None, sharing: tuple[int, int] = (1, 1)
) -> MeasuredLayout:
    """The layout with `count` data-parallel replicas, or as many as there are for None; new replicas do the same work as the measured ones.

    sharing: how many ranks of a replica share its sequences, as measured and as they are to (`context`): they exchange gradients too.

    Collectives over the whole job are taken for the data-parallel ones; where stages or tensor-parallel ranks share the layers, those of
    other groups of as many ranks as the job has replicas then. Where replicas share their parameters, each updates a part, as large as
    there are few; where they do so in sets, there are as many more or fewer sets. A job of one process shows when gradients are exchanged
    and how many bytes, but not how long that takes: `cluster` then describes the link between the processes. Raises LumosError
    where a link is needed and `cluster` is None, and where the trace does not show which collectives exchange gradients.
    """
    graph = layout.segmentation.graph
    if count is not None and count < 1:
        raise UsageError(f"--set dp={count}: must be at least 1")
    facts = graph.collectives
    if facts is None or not len(facts.task):
        raise LumosError(
            "--set dp: the trace has no collectives, so it does not show when gradients are exchanged; record under DistributedDataParallel"
        )
    stream, world = of_stream(layout, job), recorded_replicas(layout, job)
    chosen = _exchanges(layout, facts, world)
    if 0 < measured_ranks(layout, stream) < _of_stage(layout, job):
        chosen = chosen[~np.isin(facts.group[chosen], facts.group[stream])]
    wanted = count or world // sharing[0]
    described = (f"dp = {wanted} (measured: {world // sharing[0]})",) if count is not None else ()
    count = wanted * sharing[1]
    if count == world:
        return replace(layout, changes=(*layout.changes, *(f"dp = {wanted} (as measured)" for _ in described)))
    if world == 1 < _of_stage(layout, job):
        raise LumosError(
            f"--set dp: the {_of_stage(layout, job)} ranks of a stage share the layers, so they are one replica: the trace does not show"
            " when replicas would exchange gradients; record two replicas, or give the script (--before and --after)"
        )
    shared = exchanged_by_rank(layout, job)
    sets = max(exchanged.sets for exchanged in shared)
    summed = facts.rows_of(*(exchanged.sums for exchanged in shared))
    if not len(chosen) + len(summed):
        raise LumosError(f"--set dp: no collective of the {world} replicas with a known size in the trace")
    if sets > 1 and count * sets % world:
        raise UsageError(f"--set dp={wanted}: must be a multiple of the {world // sets} replicas that share their states in each set")
    if cluster is None:
        raise LumosError(NO_LINK)
    # the exchanged buffer stays as large; each rank then has another part of it
    layout = regroup(layout, chosen.tolist(), lambda exchange: (exchange.of(ranks=count),), unknown=world)
    layout = regroup(layout, summed.tolist(), lambda exchange: (exchange.of(ranks=count * sets // world),))
    prices = layout.prices.times(updates_of_parts(layout, job), exactly(world / count if sets == 1 else 1.0))
    wrapping = np.flatnonzero(inside(graph, job, COPIES.match)) if count == 1 else chosen[:0]
    prices = prices.times(wrapping, Ratio(0.0, 0.0, 1.0))  # a script seldom wraps a model that has no replicas
    return replace(
        layout,
        prices=prices,
        open=layout.open.union(wrapping.tolist()),
        awaited=(*layout.awaited, *_waits(layout, facts.task[chosen])),
        changes=(*layout.changes, *described),
    )


def recorded_replicas(layout: MeasuredLayout, job: Job) -> int:
    """How many ranks of a stage have other sequences, or other parts of them."""
    world, ranks = _of_stage(layout, job), measured_ranks(layout, of_stream(layout, job))
    return world // ranks if 0 < ranks <= world else world


def _of_stage(layout: MeasuredLayout, job: Job) -> int:
    """How many ranks a stage of the recorded job has."""
    worlds = {t.world_size for t in job.traces if t.world_size}
    return (worlds.pop() if len(worlds) == 1 else len(job.traces)) // pipeline_stages(layout.segmentation.graph, job)


def _exchanges(layout: MeasuredLayout, facts: Collectives, world: int) -> Int64:
    """Indices of the collectives over all ranks, of known kind and bytes, in the passes and the optimizer of a step."""
    size = np.where(facts.ranks == ABSENT, world, facts.ranks)
    known = np.array([kind is not CollectiveKind.UNKNOWN and not kind.is_transfer for kind in facts.kinds], bool)[facts.kind]
    exchanging = np.isin(layout.segmentation.phase[facts.task], (Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER))
    return np.flatnonzero((size == world) & known & exchanging & (facts.nbytes > 0))


def _waits(layout: MeasuredLayout, tasks: Int32) -> tuple[tuple[int, int], ...]:
    """Dependencies of the exchanges that a CPU thread (gloo's) carries out during the backward pass, as (collective, task that must
    not begin before it ends). A measured exchange can be too short for the trace to show them.

    The next exchange of the rank waits, since both share one link, and so does the first task of the optimizer that began after
    the exchange ended.
    """
    segmentation, graph, owners = layout.segmentation, layout.segmentation.graph, layout.segmentation.owners
    start, end = graph.measured_start, graph.measured_end
    if start is None or end is None:
        return ()
    phase, rank = segmentation.phase, graph.position_of_task
    host = tasks[~owners.on_device[tasks] & (phase[tasks] == Phase.BACKWARD)]
    updating = np.flatnonzero((phase == Phase.OPTIMIZER) & ~owners.on_device & (graph.kind != Kind.COLLECTIVE))
    updating = updating[np.argsort(start[updating], kind="stable")]
    host = host[np.lexsort((start[host], owners.step[host], rank[host]))]
    follows = (np.diff(rank[host]) == 0) & (np.diff(owners.step[host]) == 0)
    out = list(zip(host[:-1][follows].tolist(), host[1:][follows].tolist(), strict=True))
    for task in host.tolist():
        later = updating[np.searchsorted(start[updating], end[task], "left") :]
        same = np.flatnonzero((rank[later] == rank[task]) & (owners.step[later] == owners.step[task]))
        if len(same):
            out.append((task, int(later[same[0]])))
    return tuple(out)
