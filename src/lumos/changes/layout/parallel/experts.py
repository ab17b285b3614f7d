"""Experts on several of a job's replicas (expert parallelism).

Every rank of a group has an equal part of the experts, and sends each token to the ranks that have its experts and back, in both passes.
Ranks with the same experts sum the gradients of these alone, in a group that is smaller by the number of parts. A rank's experts get as
many tokens as before, in fewer and larger groups. Gradients of experts are exchanged apart from the others, and not copied into their
buckets. Without parts (`ep=1`) they are copied into buckets and back again, where the recording copies the others so; their copies take
the time of the memory that they move.

Of a job recorded without such an exchange it is assumed: all-to-alls of the tokens that the experts multiply, before and after them, and a
copy of these tokens in the order of their ranks around each, as torchtitan makes them. Of a recorded one, the all-to-alls are those of a
larger or smaller group. Tokens are assumed to be spread as they were: the interval reaches to a rank that gets a part more than the others
(`IMBALANCE`), for which all wait.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.changes.layout.accumulate import operator_ns
from lumos.changes.layout.activations import stream_ratio
from lumos.changes.layout.change import whole_updates
from lumos.changes.layout.measured_layout import NOTHING, Extra, rewriting
from lumos.changes.layout.placed import AddedTimes, Addition, anchors
from lumos.changes.layout.prices import Ratio, TaskPrices, exactly
from lumos.changes.layout.regroup import regroup
from lumos.changes.layout.replicated import backward_ends
from lumos.changes.layout.sharding.exchanged import exchanged_by_rank
from lumos.cost.memory_bound_model import moved
from lumos.diagnostics import Diagnostic
from lumos.errors import LumosError, UsageError
from lumos.operators.shaped import elements, grouped_product
from lumos.segment.rank import recordings_of
from lumos.vocabulary import CollectiveKind, DType

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from lumos.changes.layout.measured_layout import Instance, MeasuredLayout
    from lumos.changes.layout.placed import Placed
    from lumos.changes.layout.rates import Rates
    from lumos.changes.layout.sharding.exchanged import Exchanged
    from lumos.cost.cluster import Accelerator
    from lumos.operators.shaped import ShapedOperator
    from lumos.segment.rank import RankRecording
    from lumos.trace.table import Int64, Job

#: By how much more than its equal share of tokens the fullest rank gets, at the high end of the interval (an assumption: routers are
#: trained to spread tokens, and batches differ).
IMBALANCE = 0.15


class _Grouped(NamedTuple):
    """A multiplication by the weights of all experts of a rank. task: of the measured graph. row: of its operator. tokens: bytes of what it
    multiplies."""

    task: int
    row: int
    piece: int
    operator: ShapedOperator
    tokens: int


class _Experts(NamedTuple):
    """What a rank shows of its experts. number: how many it has. nbytes: of their gradients; others: of all other gradients of the layers;
    outside: of those outside the layers."""

    number: int
    grouped: list[_Grouped]
    nbytes: int
    others: int
    outside: int


def expert_parallel(layout: MeasuredLayout, job: Job, rates: Rates | None, count: int, wanted: Mapping[str, int]) -> MeasuredLayout:
    """The layout with experts shared by `count` ranks. wanted: the sizes of the model that were changed before.

    Raises LumosError where the recording shows no experts that are multiplied together, no replicas, or not their devices and links;
    UsageError where experts or replicas cannot be shared equally.
    """
    recorded = recordings_of(layout.segmentation, job)
    shown = [_experts(rank) for rank in recorded]
    rows, facts = _sent(layout), layout.segmentation.graph.collectives
    measured = (0 if facts is None else facts.usual_size(rows)) or 1
    if not any(experts.number for experts in shown):
        raise LumosError(
            f"--set ep: {job.traces[0].path} shows no experts whose weights are multiplied together (grouped_mm, with shapes); experts that"
            " run one after the other cannot be told from other layers"
        )
    exchanges = exchanged_by_rank(layout, job)
    replicas = _replicas(layout, exchanges)
    if count == measured:
        return replace(layout, changes=(*layout.changes, f"ep = {count} (as measured)"))
    _check(count, measured, max(experts.number for experts in shown), replicas, max(experts.stage for experts in exchanges))
    if rates is None:
        raise LumosError("--set ep: the device or its links are not known; describe them with --base-cluster FILE.toml or NAME")
    ratio, out = stream_ratio(job, wanted), layout
    for position, experts in enumerate(shown):
        fewer = partial(_with_experts, experts.number, experts.number * measured // count)
        out = rewriting(out, position, {grouped.row for grouped in experts.grouped}, fewer)
    prices = layout.prices.copy()
    for position, experts in enumerate(shown):
        prices.multiply([grouped.task for grouped in experts.grouped], Ratio(1.0, 1.0, 1 + IMBALANCE))
        _fewer_weights(prices, layout, position, experts, measured / count)
        if measured == 1:
            _uncopied(prices, recorded[position], exchanges[position].copies, count)
        out = _own_gradients(out, exchanges[position].gradients, experts, (measured, count, replicas))
    resent = rows[facts.ranks[rows] == measured] if facts is not None else rows
    out = regroup(out, resent.tolist(), lambda before: (before.of(ranks=count),))
    prices.multiply(facts.task[resent].tolist() if facts is not None else [], Ratio(1.0, 1.0, 1 + IMBALANCE))
    ranks = list(layout.ranks)
    for rank in recorded if count == 1 else ():
        if len(exchanges[rank.position].copies):
            ranks[rank.position] = _copied_again(layout, rank, measured, rates.accelerator)
    changes = (*layout.changes, f"ep = {count} (measured: {measured})")
    out = replace(out, prices=prices, ranks=tuple(ranks), changes=changes)
    if measured > 1:
        return out
    sites = {site.task: site for experts in shown for site in _sites(experts, ratio)}
    sent = max(site.nbytes for site in sites.values())
    text = (
        f"ep = {count}: the recording has all experts on every rank and shows no exchange of tokens; assumed are all-to-alls of"
        f" {sent / 1e6:,.1f} MB before and after the experts of every layer, with a copy around each, over the links of"
        f" {rates.cluster.name}, and tokens that are spread as they were"
    )
    times = {nbytes: _times(nbytes, count, rates) for nbytes in {site.nbytes for site in sites.values()}}
    assumed = partial(_assumed, sites, times, count)
    return replace(out, assumed=(*out.assumed, assumed), diagnostics=(*out.diagnostics, Diagnostic("experts-assumed", text)))


def _check(count: int, measured: int, experts: int, replicas: int, stage: int) -> None:
    """Raise where the experts cannot be shared by `count` ranks."""
    if experts * measured % count:
        raise UsageError(f"--set ep={count}: {experts * measured} experts cannot be shared equally")
    if replicas < 2 or replicas % count:
        raise UsageError(
            f"--set ep={count}: experts are shared by ranks that are replicas otherwise, of which the recording has {max(replicas, 1)}; ask"
            " for a divisor of that, or record more of them"
        )
    if stage > 1:
        raise LumosError(
            f"--set ep={count}: the replicas share their parameters (zero = {stage}), and the trace does not show which gathers are those"
            " of experts; ask lumos predict"
        )
    if measured == replicas:
        raise LumosError(
            f"--set ep={count}: every recorded rank has experts of its own, so none shows how replicas of experts exchange their gradients;"
            " ask lumos predict"
        )


def _experts(rank: RankRecording) -> _Experts:
    """What a rank shows of its experts."""
    segmentation, multiplications = rank.segmentation, []
    for task, row, o in rank.work.in_order(grouped_product):
        dtype = DType.parse(next((d for d in o.dtypes if d), "")) or DType.BF16
        piece = int(segmentation.piece[task])
        if segmentation.pieces[piece].label.layer >= 0:
            multiplications.append(_Grouped(task, row, piece, o, elements(o.shapes[0]) * dtype.bytes))
    count = next((g.operator.shapes[1][0] for g in multiplications if len(g.operator.shapes[1]) == 3), 0)
    of_layers = rank.gradients
    total, inside = (sum(g.width * elements(g.shape) for g in of_layers if g.layer >= least) for least in (-1, 0))
    of_experts = sum(g.width * elements(g.shape) for g in of_layers if g.layer >= 0 and len(g.shape) == 3)
    return _Experts(count, multiplications, of_experts, inside - of_experts, total - inside)


def _sent(layout: MeasuredLayout) -> Int64:
    """The rows of the graph's facts that exchange tokens between all ranks of a group, in the layers."""
    facts, segmentation = layout.segmentation.graph.collectives, layout.segmentation
    if facts is None or facts.size is None:
        return np.empty(0, np.int64)
    in_layer = segmentation.layer[facts.task] >= 0
    exchanges = facts.of_kind(CollectiveKind.ALL_TO_ALL)
    return np.flatnonzero(in_layer & exchanges & (facts.size > 1))


def _replicas(layout: MeasuredLayout, exchanges: Sequence[Exchanged]) -> int:
    """How many replicas the job has, but for its experts: the size of the largest group that exchanges gradients."""
    facts = layout.segmentation.graph.collectives
    if facts is None or facts.size is None:
        return 1
    rows = facts.rows_of(*(exchanged.gradients for exchanged in exchanges))
    return int(facts.size[rows].max(initial=1))


def _with_experts(before: int, after: int, _: ShapedOperator, o: ShapedOperator) -> ShapedOperator:
    """A grouped multiplication, whose inputs have a part for each of `before` experts, for `after` experts."""
    parts = [len(s) in (1, 3) and s[0] == before for s in o.shapes]
    return o._replace(shapes=tuple((after, *s[1:]) if part else s for s, part in zip(o.shapes, parts, strict=True)))


def _fewer_weights(prices: TaskPrices, layout: MeasuredLayout, position: int, experts: _Experts, part: float) -> None:
    """Let the optimizer update `part` times as many weights of experts, in place."""
    rest, tasks = experts.others + experts.outside, whole_updates(layout, position)
    if experts.nbytes:
        prices.multiply(tasks, exactly((experts.nbytes * part + rest) / (experts.nbytes + rest)))


def _uncopied(prices: TaskPrices, rank: RankRecording, copies: Int64, count: int) -> None:
    """Let no gradient of experts be copied into a bucket and back, in place, since they are exchanged apart; at the high end, the part that
    is left. copies: the kernels that copy gradients."""
    sizes = {elements(g.shape) for g in rank.gradients if g.layer >= 0 and len(g.shape) == 3}
    of_experts = rank.work.of(lambda o: any(elements(s) in sizes for s in o.shapes if s))
    prices.multiply(of_experts[np.isin(of_experts, copies)], Ratio(0.0, 0.0, 1 / count))


def _copied_again(layout: MeasuredLayout, rank: RankRecording, measured: int, accelerator: Accelerator) -> tuple[Instance, ...]:
    """What a rank runs, with the gradients of its experts copied into buckets where they are ready, and back behind the backward pass.
    measured: of how many parts of the experts the recorded rank has one; now it has all."""
    operator, by_layer = round(operator_ns(rank)), defaultdict[int, Extra](Extra)
    for gradient in rank.gradients:
        if gradient.layer >= 0 and len(gradient.shape) == 3:
            nbytes = gradient.width * elements(gradient.shape) * measured
            by_layer[gradient.layer] += Extra(operator, int(moved(2 * nbytes, accelerator, "pointwise").time))
    items, first = list(layout.ranks[rank.position]), sum(map(len, layout.ranks[: rank.position]))
    for step in backward_ends(layout, rank.position):
        for instance, layers in step.ready.items():
            extra = sum((by_layer.get(layer, NOTHING) for layer in layers.elements()), NOTHING)
            for at in (instance - first, step.end - first):
                items[at] = replace(items[at], extra=items[at].extra + extra)
    return tuple(items)


def _own_gradients(layout: MeasuredLayout, exchanges: Int64, experts: _Experts, sizes: tuple[int, int, int]) -> MeasuredLayout:
    """The layout in which the gradients of experts are exchanged among the ranks that have the same. exchanges: those of a rank's
    gradients, as tasks. sizes: of the groups that share experts, as measured and now, and how many replicas there are."""
    facts, (measured, count, replicas) = layout.segmentation.graph.collectives, sizes
    if facts is None or not experts.nbytes:
        return layout
    share, mine = experts.nbytes / (experts.nbytes + experts.others), np.isin(facts.task, exchanges)
    if measured == 1:
        rows = np.flatnonzero(mine & (layout.segmentation.layer[facts.task] >= 0) & (facts.ranks == replicas)).tolist()
        return regroup(layout, rows, lambda before: (before.of(1 - share), before.of(share / count, replicas // count, count)))
    rows = np.flatnonzero(mine & (facts.ranks == replicas // measured) & (facts.ranks != replicas)).tolist()
    return regroup(layout, rows, lambda before: (before.of(measured / count, replicas // count),))


class _Site(NamedTuple):
    """A task before or after which tokens are exchanged, and how many bytes."""

    task: int
    before: bool
    nbytes: int


def _sites(experts: _Experts, ratio: float) -> Iterator[_Site]:
    """Before the first and after the last multiplication of the experts in every pass of a layer."""
    by_piece: dict[int, list[_Grouped]] = {}
    for multiplication in experts.grouped:
        by_piece.setdefault(multiplication.piece, []).append(multiplication)
    for of_piece in by_piece.values():
        tokens = next((g.tokens for g in of_piece if len(g.operator.shapes[1]) == 3), 0)
        yield _Site(of_piece[0].task, True, round(tokens * ratio))
        yield _Site(of_piece[-1].task, False, round(tokens * ratio))


def _times(nbytes: int, ranks: int, rates: Rates) -> tuple[AddedTimes, AddedTimes]:
    """What an exchange of tokens takes, and the copy beside it."""
    exchange = rates.exchange(CollectiveKind.ALL_TO_ALL, ranks, nbytes)
    copied = rates.copy(nbytes).best
    return AddedTimes(exchange.best, exchange.low, round(exchange.high * (1 + IMBALANCE))), AddedTimes(copied, 0, 2 * copied)


def _assumed(
    sites: Mapping[int, _Site], times: Mapping[int, tuple[AddedTimes, AddedTimes]], ranks: int, placed: Placed
) -> Iterator[Addition]:
    """The exchanges and copies around every copy of the experts' multiplications. times: of both, by the bytes that are exchanged."""
    for at in anchors(placed, sites):
        site, lane = sites[at.recorded], "assumed exchange of tokens"
        exchange, copied = times[site.nbytes]
        yield at.addition("copy of tokens (assumed)", lane, copied, first=site.before, kernels=4, exchanges=0)
        yield at.addition("all_to_all of tokens (assumed)", lane, exchange, first=site.before)._replace(group=ranks)
