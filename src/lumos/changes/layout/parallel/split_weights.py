"""What follows from a rank's part of the weights, where ranks come to share the layers (`split`): the optimizer's work, what replicas
exchange of weights and gradients with the copies around it, and what autograd adds to a gradient.

Every matrix of the layers is shared, and the tables of embedding and head where the ranks share the vocabulary. Plans differ in the latter,
so the interval reaches from all weights in parts to those of the layers alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from lumos.changes.layout.prices import Ratio, TaskPrices, exactly
from lumos.changes.layout.regroup import recorded_exchange, regrouping
from lumos.changes.layout.rescale import operator_rows
from lumos.changes.layout.sharding.exchanged import within_rows
from lumos.graph.table import Kind
from lumos.segment.dimensions import shapes_of
from lumos.segment.weights import GATHERED, gradients, weights
from lumos.vocabulary import Phase

if TYPE_CHECKING:

    from lumos.changes.layout.measured_layout import MeasuredLayout
    from lumos.changes.layout.sharding.exchanged import Exchanged
    from lumos.cost.cluster import Cluster
    from lumos.trace.table import Int64, Trace


def share_weights(
    prices: TaskPrices,
    before: MeasuredLayout,
    exchanged: Exchanged,
    position: int,
    trace: Trace,
    ranks: int,
    cluster: Cluster,
    *,
    outside: bool,
) -> None:
    """Let the work on all weights of a rank be that on its part of them, in place.

    exchanged: what the replicas of the rank exchange by. outside: whether ranks share the
    weights outside the layers.
    """
    segmentation = before.segmentation
    by_layer = weights(segmentation, position, trace)
    inner, outer = sum(n for layer, n in by_layer.items() if layer >= 0), by_layer.get(-1, 0)
    whole = (inner / ranks + outer) / (inner + outer) if inner else 1.0
    share = Ratio(1 / ranks if outside else whole, 1 / ranks, whole)
    mine = (segmentation.owners.rank == position) & (segmentation.phase == Phase.OPTIMIZER)
    updates = np.flatnonzero(mine & np.isin(segmentation.graph.kind, (Kind.KERNEL, Kind.MEMCPY, Kind.MEMSET)))
    prices.start_again(before.prices, np.union1d(updates, exchanged.copies), share)
    _share_exchanges(prices, before, exchanged, (share, ranks), cluster)
    inside, tables = _accumulated(before, position, trace)
    prices.start_again(before.prices, inside, exactly(1 / ranks))
    prices.start_again(before.prices, tables, Ratio(1 / ranks if outside else 1.0, 1 / ranks, 1.0))


def _share_exchanges(prices: TaskPrices, before: MeasuredLayout, exchanged: Exchanged, part: tuple[Ratio, int], cluster: Cluster) -> None:
    """Let replicas exchange a rank's part of weights and gradients, in place. part: how large it is, and among how many ranks."""
    facts = before.segmentation.graph.collectives
    if facts is None or facts.size is None:
        return
    tasks = np.concatenate((exchanged.gathers, exchanged.gradients, exchanged.updated))
    regrouped, (share, ranks) = regrouping(cluster), part
    for row in np.flatnonzero(np.isin(facts.task, tasks) & (facts.nbytes > 0) & (facts.size > 1)).tolist():
        whole = recorded_exchange(facts, row, int(facts.size[row]))
        ratio = Ratio(*(regrouped(whole, whole.of(times, apart=ranks)).best for times in share[:3]))
        prices.start_again(before.prices, facts.task[row : row + 1].astype(np.int64), ratio)


def _accumulated(layout: MeasuredLayout, position: int, trace: Trace) -> tuple[Int64, Int64]:
    """The tasks of a rank in which autograd adds the gradients of matrices to those that are there: of the layers', and of others."""
    segmentation, shapes = layout.segmentation, shapes_of(trace)
    matrices = {gradient.shape for gradient in gradients(segmentation, position, trace) if len(gradient.shape) == 2}
    tasks, rows = operator_rows(segmentation, position, trace)
    adds = [bool(found := {s for s in o.shapes if s}) and found <= matrices for o in shapes.operators]
    chosen = (shapes.of_row[rows] >= 0) & np.array(adds or [False], bool)[shapes.of_row[rows]]
    tasks = tasks[chosen & within_rows(trace, rows, GATHERED)]
    in_layer = segmentation.layer[tasks] >= 0
    return tasks[in_layer], tasks[~in_layer]
