"""Replicas that share their states in another way than the recorded ones did (ZeRO), as PyTorch does it.

With zero = 3 every layer's parameters are gathered before its forward and its backward pass, while the pass over the layer before still
computes, copied into place, and freed; its gradients are copied together and scattered, summed, after its backward pass in the last
microbatch, while the passes go on; what is outside the layers is gathered once, before the forward pass. The optimizer updates a rank's
part. With zero = 2 the parameters stay after the forward pass, so the backward pass gathers none (FSDP2 without `reshard_after_forward`).
With zero = 0 the gradients are copied into buckets (`replicated`), exchanged and copied back, and the optimizer updates all weights (DDP).
With zero = 1 it updates a part, and sends it to the others (`updates`).

Exchanges take the time of the model of a collective over the stated or usual link, as much longer or shorter as the recorded exchanges
take (`rates`). They take nothing from the work beside them, and the CPU
as long as calling exchanges does in public traces (`placed`). The recorded exchanges that the other stage does not have, and the copies
around them, take no time any more; those that both have stay as they were measured.

Of a process that was recorded alone all exchanges are assumed. With zero = 1 or 0 those of gradients are added where the process becomes
one of several (`replicated`).
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.changes.layout.placed import AddedTimes, Addition, added_work
from lumos.changes.layout.prices import Ratio, TaskPrices
from lumos.changes.layout.replicated import buckets_of, ready_bytes
from lumos.changes.layout.sharding.exchanged import exchanged_by_rank
from lumos.changes.layout.sharding.gathers import Added, gathers, units_of
from lumos.changes.layout.sharding.updates import largest_part, parameters_of, sending, sent
from lumos.diagnostics import Diagnostic
from lumos.errors import LumosError
from lumos.segment.weights import gradients
from lumos.vocabulary import CollectiveKind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lumos.changes.layout.measured_layout import Assumed, MeasuredLayout
    from lumos.changes.layout.placed import Placed
    from lumos.changes.layout.rates import Rates
    from lumos.changes.layout.replicated import Bucket
    from lumos.changes.layout.sharding.exchanged import Exchanged
    from lumos.trace.table import Int64, Job

#: What is assumed of each stage.
_EXCHANGES = {
    0: "buckets of 25 MiB (DDP)",
    1: "buckets of 25 MiB (DDP), and broadcasts of every updated parameter (ZeroRedundancyOptimizer)",
    2: "gathers of every layer for its forward pass, and scatters (FSDP2)",
    3: "gathers and scatters of every layer (FSDP2)",
}


def sharded(layout: MeasuredLayout, job: Job, shaped: Job, rates: Rates | None, stage: int, copies: int = 1) -> MeasuredLayout:
    """The layout of replicas with a stage of ZeRO, 0 to 3, in place of the recorded one. shaped: the traces with the shapes of the changed
    job. copies: of how many replicas a process that was recorded alone becomes one.

    What is added has its place among the instances of the layout, so every change of these comes before.

    Raises LumosError where the recording has no replicas, where it does not show their weights, and where device or links are not known.
    """
    found = exchanged_by_rank(layout, job)
    replicas = max(copies, *(f.replicas for f in found))
    if replicas < 2:
        if any(f.of_unknown_size for f in found):
            raise LumosError(
                f"--set zero={stage}: the recording does not say how many ranks its exchanges of gradients join, so it is unknown which of"
                " them share their parameters; record with a current PyTorch, which writes the group of every collective"
            )
        raise LumosError(
            f"--set zero={stage}: the recording shows no replicas that exchange gradients or gather parameters in their passes; record two"
            " of them or more, with record_shapes=True, or say of how many one process becomes one, with --set dp=N"
        )
    measured = max(f.stage for f in found)
    change = f"zero = {stage} (measured: {measured})"
    if stage == measured:
        return replace(layout, changes=(*layout.changes, change))
    if rates is None:
        raise LumosError(f"--set zero={stage}: the device or its links are not known; describe them with --base-cluster FILE.toml or NAME")
    prices = layout.prices.copy()
    parameters = [parameters_of(layout, trace, position) for position, trace in enumerate(shaped.traces)]
    for trace, own in zip(job.traces, parameters, strict=True):
        if not own and (stage == 1 or max(measured, stage) >= 2):
            raise LumosError(
                f"--set zero={stage}: {trace.path} does not show the shapes of the weights, so it is not known how many bytes its replicas"
                " would exchange; record with record_shapes=True"
            )
    for position, (each, own) in enumerate(zip(found, parameters, strict=True)):
        prices.leave_out(_whole_units(layout, position, _gone(each, measured, stage)))
        _share(prices, each.updates, (measured, stage), largest_part(own, replicas), replicas)
    shown = "is of one process" if copies > 1 else f"shows zero = {measured}"
    text = (
        f"zero = {stage}: the recording {shown}; assumed are {_EXCHANGES[stage]} between {replicas} replicas over the links"
        f" of {rates.cluster.name}, beside the passes"
    )
    return replace(
        layout,
        prices=prices,
        assumed=(
            *layout.assumed,
            *_exchanges_of_passes(layout, shaped, found, replicas, rates, measured, stage),
            *([partial(sent, [f.updates for f in found], [sending(own, replicas, rates) for own in parameters])] if stage == 1 else []),
        ),
        changes=(*layout.changes, change),
        diagnostics=(*layout.diagnostics, Diagnostic("sharding-assumed", text)),
    )


def _gone(found: Exchanged, measured: int, stage: int) -> Int64:
    """The recorded tasks of a rank that the other stage does not have."""
    if min(measured, stage) >= 2:  # both gather and scatter
        return np.union1d(found.again, found.unpacked) if stage == 2 else np.empty(0, np.int64)
    if max(measured, stage) < 2:  # both exchange whole gradients
        return found.updated
    return np.concatenate((found.gathers, found.gradients, found.copies, found.updated))


def _whole_units(layout: MeasuredLayout, position: int, gone: Int64) -> Int64:
    """The tasks `gone`, and all others of the operators of a rank that launch nothing else: the calls on the CPU, and the time between."""
    segmentation = layout.segmentation
    mine, unit = segmentation.owners.of_rank(position), segmentation.unit
    stays = np.setdiff1d(mine[segmentation.owners.on_device[mine]], gone)
    units = np.setdiff1d(unit[gone], unit[stays])
    return np.union1d(gone, mine[np.isin(unit[mine], units[units >= 0])])


def _share(prices: TaskPrices, updates: Int64, stages: tuple[int, int], part: float, replicas: int) -> None:
    """Let the updates of a rank take their share of the time, in place. stages: measured and wanted. part: that of the largest part where
    parameters are not cut."""
    best, equal = ({0: 1.0, 1: each, 2: 1 / replicas, 3: 1 / replicas} for each in (part, 1 / replicas))
    measured, wanted = stages
    ratios = best[wanted] / best[measured], equal[wanted] / equal[measured]
    prices.multiply(updates, Ratio(ratios[0], min(ratios), max(ratios)))


def _exchanges_of_passes(
    layout: MeasuredLayout, job: Job, found: tuple[Exchanged, ...], replicas: int, rates: Rates, measured: int, stage: int
) -> tuple[Assumed, ...]:
    """What makes the exchanges beside the passes that the recording does not have."""
    if max(measured, stage) < 2 or (measured, stage) == (3, 2):
        return ()
    if stage < 2:
        return (partial(_reduces, layout, _bucketed(layout, job, found, replicas, rates)),)
    added = Added(forward=measured < 2, backward=stage == 3, scatters=measured < 2)
    return (partial(gathers, layout, units_of(layout, job, replicas, rates), added),)


class _Exchange(NamedTuple):
    """A bucket, what its exchange takes, what copying it takes, once, and how many gradients are copied, each by a call of its own."""

    bucket: Bucket
    time: AddedTimes
    copy: AddedTimes
    copies: int


def _bucketed(
    layout: MeasuredLayout, job: Job, found: tuple[Exchanged, ...], replicas: int, rates: Rates
) -> list[list[_Exchange]]:
    """The exchanges of DDP, by position of the rank, in every backward pass that exchanged gradients."""
    out = []
    for position, trace in enumerate(job.traces):
        ready, tensors = ready_bytes(layout, trace, position), len(gradients(layout.segmentation, position, trace))
        share = tensors / max(sum(ready.values()), 1)
        exchanging = frozenset(layout.segmentation.piece[found[position].gradients].tolist())
        out.append(
            [
                _Exchange(
                    bucket,
                    rates.exchange(CollectiveKind.ALL_REDUCE, replicas, bucket.nbytes),
                    rates.copy(bucket.nbytes),
                    max(round(bucket.nbytes * share), 1),
                )
                for bucket in buckets_of(layout, ready, position, exchanging)
            ]
        )
    return out


def _reduces(layout: MeasuredLayout, found: list[list[_Exchange]], placed: Placed) -> Iterator[Addition]:
    """The exchanges of DDP in every step, each between two copies of its bucket, of which the second are after the backward pass."""
    count = 0
    for rank, of_rank in enumerate(found):
        of_step: list[tuple[int, _Exchange]] = []
        for each in of_rank:
            filling = tuple(added_work(placed, each.bucket.after)[-1:].tolist())
            following = tuple(added_work(placed, each.bucket.after + 1)[:1].tolist())
            if not filling or not following:
                continue
            lanes = "assumed copies", "assumed exchange"
            name = "copy of gradients (assumed)"
            yield Addition(name, rank, lanes[0], each.copy, filling, following, each.bucket.after, calls=each.copies)
            yield Addition(
                "all_reduce of gradients (assumed)", rank, lanes[1], each.time, filling, (), each.bucket.after, (count,), len(layout.ranks)
            )
            of_step.append((count + 1, each))
            count += 2
            if each.bucket.last:
                for exchange, other in of_step:
                    name = "copy of reduced gradients (assumed)"
                    yield Addition(name, rank, lanes[0], other.copy, filling, following, each.bucket.after, (exchange,), calls=other.copies)
                    count += 1
                of_step = []
