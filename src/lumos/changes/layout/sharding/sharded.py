"""Replicas that share their states in another way than the recorded ones did (ZeRO), as PyTorch does it.

With zero = 3 every layer's parameters are gathered before its forward and its backward pass, while the pass over the layer before still
computes, copied into place, and freed; its gradients are copied together and scattered, summed, after its backward pass in the last
microbatch, while the passes go on; what is outside the layers is gathered once, before the forward pass. The optimizer updates a rank's
part. With zero = 2 the parameters stay after the forward pass, so the backward pass gathers none (FSDP2 without `reshard_after_forward`).
With zero = 0 the gradients are copied into buckets (`replicated`), exchanged and copied back, and the optimizer updates all weights (DDP).
With zero = 1 it updates a part, and sends it to the others.

Of zero = 2 and 3 the replicas can share their states in sets of fewer than all (hybrid sharding, a mesh of two dimensions in FSDP2): the
ranks of a set are neighbours, gather and scatter among themselves, and then add up their part of the gradients with the ranks of the other
sets that have the same part, on a stream of its own, before the update.

Exchanges take the time of the model of a collective over the stated or usual link, as much longer or shorter as the recorded exchanges take
(`rates`). They take nothing from the work beside them, and the CPU as long as calling exchanges does in public traces (`placed`). The
recorded exchanges that the other stage does not have, and the copies around them, take no time any more, nor, at best, what the hooks of
FSDP2 do on the CPU where it goes; those that both have stay as measured.

Of a process that was recorded alone all exchanges are assumed. With zero = 1 or 0 those of gradients are added where the process becomes
one of several (`replicated`).
"""

from __future__ import annotations

import heapq
import re
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING

import numpy as np

from lumos.changes.layout.placed import AddedTimes, Addition, on_busiest
from lumos.changes.layout.prices import GONE, Ratio
from lumos.changes.layout.regroup import regroup
from lumos.changes.layout.replicated import GradientBuckets, gradient_bytes, times_ready
from lumos.changes.layout.sharding.exchanged import exchanged_by_rank
from lumos.changes.layout.sharding.gathers import Added, Sharing, gathers, units_of
from lumos.changes.ranges import inside
from lumos.diagnostics import Diagnostic
from lumos.errors import LumosError, UsageError
from lumos.operators.shaped import elements
from lumos.segment.rank import recordings_of
from lumos.trace.table import excluding, unique
from lumos.vocabulary import CollectiveKind

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from lumos.changes.layout.measured_layout import Assumed, GroupExchange, MeasuredLayout
    from lumos.changes.layout.placed import Placed
    from lumos.changes.layout.rates import Rates
    from lumos.changes.layout.sharding.exchanged import Exchanged
    from lumos.plan.framework import Framework
    from lumos.segment.rank import RankRecording
    from lumos.trace.table import Int64, Job

#: The ranges in which FSDP2 does what it does before and after the passes of a layer.
_HOOKS = re.compile("FSDP::")
#: What is assumed of each stage.
_EXCHANGES = {
    0: "buckets of 25 MiB (DDP)",
    1: "buckets of 25 MiB (DDP), and broadcasts of every updated parameter (ZeroRedundancyOptimizer)",
    2: "gathers of every layer for its forward pass, and scatters (FSDP2)",
    3: "gathers and scatters of every layer (FSDP2)",
}


def sharded(
    layout: MeasuredLayout, job: Job, shaped: Job, rates: Rates | None, wanted: Mapping[str, int], replicas: int | None = None,
    framework: Framework | None = None,
) -> MeasuredLayout:  # fmt: skip
    """The layout of replicas with another stage of ZeRO, 0 to 3, or in other sets of them that share their states. wanted: `zero`
    and `shard`, where they change, and what else does. shaped: the traces with the shapes of the changed job. replicas: of how many the
    prices of the layout are, or of how many a process that was recorded alone becomes one; None for as many as were recorded.
    framework: with which the job is written, where somebody said.

    What is added has its place among the instances of the layout, so every change of these comes before.

    Raises LumosError where the recording has no replicas, where it does not show their weights, and where device or links are not known,
    and UsageError where the sets cannot be had.
    """
    exchanges = exchanged_by_rank(layout, job)
    measured, apart = max(f.stage for f in exchanges), max(f.apart for f in exchanges)
    stage = wanted.get("zero", measured)
    asked = f"zero={stage}" if "zero" in wanted else f"shard={wanted['shard']}"
    recorded = max(f.replicas for f in exchanges)
    replicas = recorded if replicas is None else replicas
    _check_replicas(replicas, exchanges, asked)
    old = Sharing(1 if measured < 2 else max(f.shards for f in exchanges), max(f.sets for f in exchanges), apart)
    if old.sets == 1 and measured >= 2:
        old = old._replace(shards=replicas)  # with the prices of as many
    new = _wanted_sets(wanted, stage, replicas, old)
    changes = [f"zero = {stage} (measured: {measured})"] if "zero" in wanted else []
    changes += [f"dp = {wanted['dp']} (measured: 1)"] if recorded < 2 and "dp" in wanted and stage >= 2 else []
    changes += [f"shard = {new.shards} (measured: {old.shards})"] if "shard" in wanted else []
    if stage == measured and new == old:
        return replace(layout, changes=(*layout.changes, *changes))
    if rates is None:
        raise LumosError(f"--set {asked}: the device or its links are not known; describe them with --base-cluster FILE.toml or NAME")
    prices = layout.prices.copy()
    parameters = [parameters_of(layout, rank) for rank in recordings_of(layout.segmentation, shaped)]
    if stage == 1 or max(measured, stage) >= 2:
        _check_parameters(job, parameters, asked)
    graph, totals = layout.segmentation.graph, list[dict[int, AddedTimes]]()
    hooks = np.flatnonzero(inside(graph, job, _HOOKS.match) & ~graph.on_device) if stage < 2 <= measured else np.empty(0, np.int64)
    for position, (exchanged, own) in enumerate(zip(exchanges, parameters, strict=True)):
        gone = _gone(exchanged, measured, stage)
        prices.multiply(_whole_units(layout, position, unique(gone, exchanged.sums) if new.sets == 1 else gone), GONE)
        prices.multiply(hooks[graph.position_of_task[hooks] == position], Ratio(0.0, 0.0, 1.0))
        parts = largest_part(own, replicas), 1 / replicas
        share = _share(measured, old, parts), _share(stage, new, parts)
        prices.multiply(exchanged.updates, Ratio(share[1][0] / share[0][0], *sorted(b / a for a, b in zip(*share, strict=True))))
        totals.append({})
        if min(measured, stage) >= 2 and new != old:
            layout, totals[-1] = _in_other_sets(layout, exchanged, old, new, rates)
    times_of_parts = [sending(own, replicas, rates, framework) for own in parameters]
    shown = "is of one process" if recorded < 2 else f"shows zero = {measured}" + (f" in sets of {old.shards}" if old.sets > 1 else "")
    sets = f" in sets of {new.shards}, which add up their gradients" if new.sets > 1 else ""
    text = (
        f"{asked.replace('=', ' = ')}: the recording {shown}; assumed are {_EXCHANGES[stage]} between {replicas} replicas{sets}, over the"
        f" links of {rates.cluster.name}, beside the passes"
    )
    return replace(
        layout,
        prices=prices,
        assumed=(
            *layout.assumed,
            *_exchanges_of_passes(layout, (job, shaped), exchanges, (replicas, new), rates, (measured, stage)),
            *([partial(sent, [f.updates for f in exchanges], times_of_parts)] if stage == 1 else []),
            *([partial(_added_up, totals, [f.updates_of_parts for f in exchanges], new)] if any(totals) else []),
        ),
        changes=(*layout.changes, *changes),
        diagnostics=(*layout.diagnostics, Diagnostic("sharding-assumed", text)),
    )


def _check_replicas(replicas: int, exchanges: Sequence[Exchanged], asked: str) -> None:
    """Raise LumosError where there are no replicas that could share their states."""
    if replicas < 2 and any(f.of_unknown_size for f in exchanges):
        raise LumosError(
            f"--set {asked}: the recording does not say how many ranks its exchanges of gradients join, so it is unknown which of"
            " them share their parameters; record with a current PyTorch, which writes the group of every collective"
        )
    if replicas < 2:
        raise LumosError(
            f"--set {asked}: the recording shows no replicas that exchange gradients or gather parameters in their passes; record two"
            " of them or more, with record_shapes=True, or say of how many one process becomes one, with --set dp=N"
        )


def _check_parameters(job: Job, parameters: Sequence[Sequence[int]], asked: str) -> None:
    """Raise LumosError where a rank does not show its parameters, which are given by rank."""
    for trace, own in zip(job.traces, parameters, strict=True):
        if not own:
            raise LumosError(
                f"--set {asked}: {trace.path} does not show the shapes of the weights, so it is not known how many bytes its replicas"
                " would exchange; record with record_shapes=True"
            )


def _wanted_sets(wanted: Mapping[str, int], stage: int, replicas: int, old: Sharing) -> Sharing:
    """How the replicas are to share their states. Raises UsageError where they cannot."""
    if stage < 2:
        if "shard" in wanted:
            raise UsageError(f"--set shard={wanted['shard']}: with zero = {stage} no parameters are shared; ask for zero=3 as well")
        return Sharing(1, 1, old.apart)
    shards = wanted.get("shard", old.shards if old.sets > 1 else replicas)
    if replicas % shards or shards < 2:
        raise UsageError(f"--set shard={shards}: must divide the {replicas} replicas, and be 2 or more (zero=0 shares nothing)")
    return Sharing(shards, replicas // shards, old.apart)


def _share(stage: int, sharing: Sharing, parts: tuple[float, float]) -> tuple[float, float]:
    """The share of all parameters that a rank updates, and what it is where all have equally many. parts: both of one of all replicas."""
    if stage == 1:
        return parts
    return (1 / sharing.shards, 1 / sharing.shards) if stage >= 2 else (1.0, 1.0)


def _in_other_sets(
    layout: MeasuredLayout, exchanged: Exchanged, old: Sharing, new: Sharing, rates: Rates
) -> tuple[MeasuredLayout, dict[int, AddedTimes]]:
    """The layout in which what a rank gathers and scatters is exchanged in other sets, and what adding up each of its scattered gradients
    takes, by the task that scatters them; nothing where the recording has these sums already, which become others."""
    facts = layout.segmentation.graph.collectives
    assert facts is not None
    within = excluding(np.concatenate((exchanged.gathers, exchanged.gradients)), exchanged.sums)
    shared, summed = (facts.rows_of(tasks).tolist() for tasks in (within, exchanged.sums))

    def of_sets(before: GroupExchange) -> tuple[GroupExchange, ...]:
        return (before.of(old.shards / new.shards, new.sets)._replace(stride=new.apart * new.shards),)

    layout = regroup(regroup(layout, shared, lambda before: (before.of(ranks=new.shards),)), summed, of_sets)
    total = cache(lambda nbytes: new.total(nbytes, rates))
    out: dict[int, AddedTimes] = {}
    for row in shared if not summed else ():
        now = layout.exchanges[row].readings[0][0]
        time = total(round(now.nbytes)) if now.kind is CollectiveKind.REDUCE_SCATTER else None
        out.update({int(facts.task[row]): time} if time is not None else {})
    return layout, out


def _added_up(totals: Sequence[dict[int, AddedTimes]], updates: Sequence[Int64], sharing: Sharing, placed: Placed) -> Iterator[Addition]:
    """The sums of every step's scattered gradients over all sets, for the last of which the update waits. totals: what each takes by the
    recorded task that scatters them, by position of the rank."""
    step = placed.owners.step
    for rank, (times, of_rank) in enumerate(zip(totals, updates, strict=True)):
        scatters = np.flatnonzero(np.isin(placed.source, list(times)))
        updating = np.flatnonzero(np.isin(placed.source, of_rank))
        for task, following in zip(scatters.tolist(), [*scatters[1:].tolist(), -1], strict=True):
            ends = following < 0 or step[following] != step[task]
            waiting = tuple(updating[step[updating] == step[task]][:1].tolist()) if ends else ()
            time = times[int(placed.source[task])]
            yield sharing.add_total(rank, time, task, waiting, int(placed.instance[task]))


def _gone(exchanged: Exchanged, measured: int, stage: int) -> Int64:
    """The recorded tasks of a rank that the other stage does not have."""
    if min(measured, stage) >= 2:  # both gather and scatter
        return unique(exchanged.again, exchanged.unpacked) if stage == 2 else np.empty(0, np.int64)
    if max(measured, stage) < 2:  # both exchange whole gradients
        return exchanged.updated
    return np.concatenate((exchanged.gathers, exchanged.gradients, exchanged.copies, exchanged.updated))


def _whole_units(layout: MeasuredLayout, position: int, gone: Int64) -> Int64:
    """The tasks `gone`, and all others of the operators of a rank that launch nothing else: the calls on the CPU, and the time between."""
    segmentation = layout.segmentation
    mine, unit = segmentation.owners.of_rank(position), segmentation.unit
    stays = excluding(mine[segmentation.owners.on_device[mine]], gone)
    units = excluding(unit[gone], unit[stays])
    return unique(gone, mine[np.isin(unit[mine], units[units >= 0])])


def _exchanges_of_passes(
    layout: MeasuredLayout, jobs: tuple[Job, Job], exchanges: tuple[Exchanged, ...], groups: tuple[int, Sharing], rates: Rates,
    stages: tuple[int, int],
) -> tuple[Assumed, ...]:  # fmt: skip
    """What makes the exchanges beside the passes that the recording does not have. jobs: as recorded, and with the shapes of the changed
    job. groups: the replicas, and how they share states. stages: measured and wanted."""
    measured, stage = stages
    replicas, sharing = groups
    added = Added(forward=measured < 2 <= stage, backward=measured < 3 == stage, scatters=measured < 2 <= stage)
    if stage < 2 <= measured:
        time = partial(rates.exchange, CollectiveKind.ALL_REDUCE, replicas, apart=sharing.apart)
        exchanging = [frozenset(layout.segmentation.piece[exchanged.gradients].tolist()) for exchanged in exchanges]
        return (GradientBuckets(layout, jobs[0], jobs[1], rates.accelerator, time, exchanging).exchanged,)
    return (partial(gathers, layout, units_of(layout, jobs[1], sharing, rates), sharing, added),) if any(added) else ()


# ---------------------------------------------------------------- updates of parts
# The part of a replica is made of whole parameters, as PyTorch's `ZeroRedundancyOptimizer` shares them: the largest first, each to the
# replica that has least so far. So a large embedding can make the parts unequal; the interval reaches to equal parts, as where parameters
# are cut. After the update every parameter is broadcast, one after the other, and what comes next waits for the last. Megatron's
# distributed optimizer gathers them all at once: the low end of the interval where nobody says which of the two the job does.


def parameters_of(layout: MeasuredLayout, rank: RankRecording) -> list[int]:
    """The bytes of every parameter of a rank; of all of a layer together where the trace shows no more. rank: with the shapes that the
    changed job has."""
    times = times_ready(layout, rank.position)
    sizes = [(g.layer, g.width * elements(g.shape)) for g in rank.gradients] or list(gradient_bytes(rank).items())
    return [nbytes for layer, nbytes in sizes if nbytes for _ in range(times[layer])]


def largest_part(parameters: Sequence[int], replicas: int) -> float:
    """The share of all parameters that the replica with most of them updates."""
    parts = [0] * replicas
    for nbytes in sorted(parameters, reverse=True):
        heapq.heapreplace(parts, parts[0] + nbytes)
    return max(parts) / sum(parts) if sum(parts) else 1.0


def sending(parameters: Sequence[int], replicas: int, rates: Rates, framework: Framework | None) -> AddedTimes:
    """What it takes to send all updated parameters to all replicas. framework: of the job, where somebody said."""
    at_once = rates.exchange(CollectiveKind.ALL_GATHER, replicas, sum(parameters))
    if framework is not None and not framework.dtensor:
        return at_once
    broadcasts = [rates.exchange(CollectiveKind.BROADCAST, replicas, nbytes) for nbytes in parameters]
    best, low, high = (sum(getattr(broadcast, end) for broadcast in broadcasts) for end in AddedTimes._fields)
    return AddedTimes(best, min(at_once.low, best) if framework is None else low, high)


def sent(updates: Sequence[Int64], times: Sequence[AddedTimes], placed: Placed) -> Iterator[Addition]:
    """The exchange of updated parameters in every step of every rank, between its last update and what comes next on that stream.

    updates: the optimizer's tasks in the recording, and times: what the exchange takes, by position of the rank.
    """
    ends = [_ends(placed, tasks) for tasks in updates]
    for rank, (of_rank, time) in enumerate(zip(ends, times, strict=True)):
        for last, following in of_rank:
            name, instance = "broadcast of parameters (assumed)", int(placed.instance[last])
            yield Addition(name, rank, "assumed broadcast", time, (last,), following, instance, group=len(updates))


def _ends(placed: Placed, updates: Int64) -> list[tuple[int, tuple[int, ...]]]:
    """The last update of every step on the stream that has most of them, and the task behind it there, if there is one."""
    tasks, out = on_busiest(placed.graph, np.flatnonzero(np.isin(placed.source, updates))), list[tuple[int, tuple[int, ...]]]()
    if not len(tasks):
        return out
    all_of_stream = np.flatnonzero(placed.graph.processor == placed.graph.processor[tasks[0]])
    for step in unique(placed.owners.step[tasks]).tolist():
        last = int(tasks[placed.owners.step[tasks] == step][-1])
        behind = all_of_stream[np.searchsorted(all_of_stream, last, "right") :][:1]
        if step >= 0:
            out.append((last, tuple(behind.tolist())))
    return out
