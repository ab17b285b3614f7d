"""A layout with several ranks in place of each recorded one, all of which do what that one did.

The stages of a pipeline, of which a recording without one shows only the whole, are made of such copies: each then leaves out what the
other stages do (`stages`). Copy k of the rank at position r is at position k · (recorded ranks) + r, and has a number as its position.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from lumos.graph.table import Collectives, Graph, Occupancy, Waits

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from lumos.segment.segment import Segmentation
    from lumos.whatif.layout.measured_layout import MeasuredLayout


def multiplied(layout: MeasuredLayout, count: int) -> MeasuredLayout:
    """The layout with `count` copies of every rank."""
    segmentation = layout.segmentation
    tasks, pieces = len(segmentation.graph), len(segmentation.pieces)
    ranks = tuple(
        tuple(replace(i, piece=i.piece + k * pieces, thread_of=i.thread_of + k * pieces if i.thread_of >= 0 else -1) for i in items)
        for k in range(count)
        for items in layout.ranks
    )
    return replace(
        layout,
        segmentation=_segmentation(segmentation, count),
        ranks=ranks,
        factor=np.tile(layout.factor, count),
        low=np.tile(layout.low, count),
        high=np.tile(layout.high, count),
        modelled=frozenset(task + k * tasks for k in range(count) for task in layout.modelled),
        awaited=tuple((a + k * tasks, b + k * tasks) for k in range(count) for a, b in layout.awaited),
    )


def _segmentation(s: Segmentation, count: int) -> Segmentation:
    ranks = len(s.graph.ranks)
    return replace(
        s,
        graph=_graph(s.graph, count),
        pieces=tuple(replace(p, rank=p.rank + k * ranks) for k in range(count) for p in s.pieces),
        piece=_shifted(s.piece, count, len(s.pieces)),
        units=s.units * count,
        unit_labels=s.unit_labels * count,
        unit=np.tile(s.unit, count),
    )


def _graph(graph: Graph, count: int) -> Graph:
    n, ranks, processors = len(graph), len(graph.ranks), len(graph.processors)
    place = {rank: i for i, rank in enumerate(graph.ranks)}

    def copied(column: NDArray[Any] | None) -> Any:
        return None if column is None else np.concatenate([column] * count)

    def offsets(column: NDArray[Any]) -> Any:
        return np.concatenate([column, *(column[1:] + k * column[-1] for k in range(1, count))])

    return replace(
        graph,
        ranks=tuple(range(count * ranks)),
        processors=tuple(replace(p, rank=place[p.rank] + k * ranks) for k in range(count) for p in graph.processors),
        duration=copied(graph.duration),
        processor=_shifted(graph.processor, count, processors),
        kind=copied(graph.kind),
        name=copied(graph.name),
        event=copied(graph.event),
        pred_offset=offsets(graph.pred_offset),
        pred=_shifted(graph.pred, count, n),
        pred_kind=copied(graph.pred_kind),
        lag=copied(graph.lag),
        gap_range=copied(graph.gap_range),
        release_task=_shifted(graph.release_task, count, n),
        release_time=copied(graph.release_time),
        rendezvous_offset=offsets(graph.rendezvous_offset),
        rendezvous_task=_shifted(graph.rendezvous_task, count, n),
        queue_depth=copied(graph.queue_depth),
        waits=graph.waits and Waits(_shifted(graph.waits.task, count, n), _targets(graph.waits.target, count, processors)),
        occupancy=graph.occupancy and _occupancy(graph.occupancy, count, n),
        collectives=graph.collectives and _collectives(graph.collectives, count, n),
        measured_start=copied(graph.measured_start),
        measured_end=copied(graph.measured_end),
        unclaimed_wait_task=_shifted(graph.unclaimed_wait_task, count, n),
        unclaimed_wait_time=copied(graph.unclaimed_wait_time),
        arrivals=None,
        one_off=None,
        waiting_unknown=_shifted(graph.waiting_unknown, count, n),
        steps=tuple(replace(step, rank=place[step.rank] + k * ranks) for k in range(count) for step in graph.steps),
    )


def _occupancy(held: Occupancy, count: int, tasks: int) -> Occupancy:
    return Occupancy(_shifted(held.task, count, tasks), np.tile(held.share, count), np.tile(held.hold, count))


def _collectives(facts: Collectives, count: int, tasks: int) -> Collectives:
    return replace(
        facts,
        task=_shifted(facts.task, count, tasks),
        kind=np.tile(facts.kind, count),
        nbytes=np.tile(facts.nbytes, count),
        group=np.tile(facts.group, count),
        sequence=np.tile(facts.sequence, count),
        peer=np.tile(facts.peer, count),
        size=None if facts.size is None else np.tile(facts.size, count),
    )


def _shifted(column: NDArray[Any], count: int, by: int) -> Any:
    """The column `count` times, each but the first with indices that are greater by `by` than those before."""
    return np.concatenate([column + np.array(k * by, column.dtype) for k in range(count)])


def _targets(column: NDArray[Any], count: int, by: int) -> Any:
    """The same for indices of which -1 stands for none."""
    return np.concatenate([np.where(column >= 0, column + np.array(k * by, column.dtype), column) for k in range(count)])
