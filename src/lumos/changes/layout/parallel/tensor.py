"""Another number of tensor-parallel ranks: each rank's part of the layers, and their exchanges.

The group that exchanges the residual stream inside the layers is the tensor-parallel one. Each rank then holds as many of the heads and
as much of the feed-forward width as its part of the new group; the residual stream, and what every rank does to all of it, stay; where the
ranks gather and scatter the stream (sequence parallelism), they share that work, too. New ranks do the same work as the recorded ones. A
job that was recorded without such ranks shows no exchange; where its layers would exchange is in `split`.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from lumos.changes.layout.activations import exchanged, in_embedding, measured_ranks, of_head, of_stream, shared_keys
from lumos.changes.layout.measured_layout import rewriting
from lumos.changes.layout.parallel.split import Ways, split_over_ranks
from lumos.changes.layout.prices import GONE, Ratio
from lumos.changes.layout.reprice import changed_tasks
from lumos.changes.layout.resize import to_sizes, unchanged_work, unknown_size
from lumos.errors import LumosError
from lumos.operators.shaped import elements
from lumos.segment.rank import recordings_of
from lumos.trace.table import unique
from lumos.vocabulary import CollectiveKind

if TYPE_CHECKING:
    from lumos.changes.layout.measured_layout import MeasuredLayout
    from lumos.changes.layout.rates import Rates
    from lumos.cost.cluster import Cluster
    from lumos.operators.shaped import ShapedOperator
    from lumos.segment.sizes import Sizes
    from lumos.trace.table import Int64, Job, Trace


def tensor_parallel(
    layout: MeasuredLayout,
    job: Job,
    count: int,
    cluster: Cluster | None,
    ratio: float = 1.0,
    rates: Rates | None = None,
    ways: Ways = Ways(),
) -> MeasuredLayout:
    """The layout with `count` tensor-parallel ranks. cluster: where the job ran; None if that is not known. ratio: by which other changes
    made the residual stream larger. rates: what exchanges and copies take that the recording does not have; None if that is not known.
    ways: in which ranks share layers that none shared.

    Raises LumosError where heads or feed-forward width cannot be shared by `count`, and where the links are not known.
    """
    rows = of_stream(layout, job)
    alone = not measured_ranks(layout, rows)
    measured = measured_ranks(layout, rows) or 1
    described = (f"tp = {count} (measured: {measured})",)
    if cluster is None and count != measured:
        raise LumosError("--set tp: the links between the ranks are not known; describe them with --base-cluster FILE.toml or NAME")
    embedding = in_embedding(layout, rows)

    def share(old: Sizes, trace: Trace) -> Sizes:
        return _shared(old, measured, count, embedding, trace)

    if count == measured:
        return replace(layout, changes=(*layout.changes, *described))
    gathers = _gathers(layout, rows)
    shared = to_sizes(layout, job, share, ("heads",), described, of_weights=not alone)
    shared = replace(shared, shared=layout.shared * count / measured)
    if alone and cluster is not None:
        if ways.shares_sequences:
            shared = _rest_shared(layout, shared, job, (1, count), outside=False)
        return split_over_ranks(layout, shared, job, count, cluster, ratio, rates, ways)
    if gathers:
        shared = _rest_shared(layout, shared, job, (measured, count), outside=embedding)
    return _rejoined(layout, exchanged(shared, job, {}, {measured: count}), job, (measured, count))


def _gathers(layout: MeasuredLayout, rows: Int64) -> bool:
    """Whether the ranks gather and scatter the residual stream (sequence parallelism), and so share all work of the layers."""
    facts = layout.segmentation.graph.collectives
    return facts is not None and any(facts.kinds[k] is CollectiveKind.REDUCE_SCATTER for k in set(facts.kind[rows].tolist()))


def _rest_shared(before: MeasuredLayout, after: MeasuredLayout, job: Job, ranks: tuple[int, int], *, outside: bool) -> MeasuredLayout:
    """The layout in which the work of the layers that no size describes takes as much less time as more ranks share it, but for what works
    on the whole stream; its interval reaches to no change. ranks: how many there were, and how many there are to be. outside: whether the
    work of embedding and head does, too."""
    prices, segmentation = after.prices.copy(), after.segmentation
    chosen = (segmentation.layer >= 0) | outside
    repriced = np.flatnonzero(after.prices.best != before.prices.best)
    for rank in recordings_of(segmentation, job):
        whole = rank.work.of(partial(_is_whole, ranks[0], rank.sizes))
        left = unchanged_work(rank, unique(repriced, whole, changed_tasks(before, after, rank)))
        prices.multiply(left[chosen[left]], Ratio(ranks[0] / ranks[1], 1.0, 1.0))
    return replace(after, prices=prices)


def _rejoined(before: MeasuredLayout, after: MeasuredLayout, job: Job, ranks: tuple[int, int]) -> MeasuredLayout:
    """The layout in which what ranks gather of the stream and of a head's results is joined to the whole, as before, and each takes its
    part of the gradient of the latter; one rank alone does neither. ranks: how many there were, and how many there are to be."""
    measured, count = ranks
    prices, has_head = after.prices.copy(), len(of_head(before, job)) > 0
    for rank in recordings_of(before.segmentation, job):
        old, work = rank.sizes, rank.work
        prices.multiply(work.tasks[work.like(partial(_is_joined, measured, old)) & (count == 1)], GONE)
        if not has_head:
            continue
        part = old.micro_batch * old.seq, old.vocab
        joins, takes = (work.like(partial(_is_of_parts, *operator, *part)) for operator in (("aten::cat", measured), ("aten::clone", 1)))
        after = rewriting(after, rank.position, work.rows[joins].tolist(), partial(_of_vocabulary, old.vocab))
        prices.multiply(work.tasks[(joins | takes) & (count == 1)], GONE)
    return replace(after, prices=prices)


def _is_whole(ranks: int, sizes: Sizes, o: ShapedOperator) -> bool:
    """Whether an operator works on the whole stream of a microbatch, not on a rank's part of it."""
    return _is_joined(ranks, sizes, o) or sizes.micro_batch * sizes.seq * sizes.hidden in map(elements, o.shapes)


def _is_joined(ranks: int, sizes: Sizes, o: ShapedOperator) -> bool:
    """Whether an operator joins the ranks' parts of the stream of a microbatch."""
    part = sizes.micro_batch * sizes.seq * sizes.hidden / ranks
    return o.name == "aten::cat" and [elements(s) for s in o.shapes if s] == [part] * ranks


def _of_vocabulary(vocab: int, _: ShapedOperator, o: ShapedOperator) -> ShapedOperator:
    """An operator whose inputs end in as much of the vocabulary as recorded."""
    return o._replace(shapes=tuple((*s[:-1], vocab) if s else s for s in o.shapes))


def _is_of_parts(name: str, parts: int, tokens: int, vocab: int, o: ShapedOperator) -> bool:
    """Whether an operator of that name works on so many ranks' results of a head."""
    inputs = [(s[-1], elements(s)) for s in o.shapes if s]
    return o.name == name and len(inputs) == parts and set(inputs) == {(vocab, tokens * vocab)}


def _shared(old: Sizes, measured: int, count: int, vocabulary: bool, trace: Trace) -> Sizes:
    """The sizes of one rank's part among `count`. Raises LumosError where a size is unknown or cannot be shared."""
    new = {}
    for key in shared_keys(vocabulary=vocabulary):
        whole = getattr(old, key) * measured
        if not whole and key in ("heads", "ffn"):
            raise LumosError(f"--set tp: tensor-parallel ranks share the {key} of a model, but {unknown_size(key, trace)}")
        if whole % count and key != "kv_heads":
            raise LumosError(f"--set tp={count}: the {whole} {key} of the model cannot be shared equally by {count} ranks")
        new[key] = max(whole // count, 1) if whole else 0
    return old._replace(**new)
