"""A graph without the tasks that a change takes out of every step: what waited for one of them waits for the work before it.

A task that goes leaves with all that held it up: its launch, the device work that its return awaited, the ranks that it met, its share of
the SMs. An event that its stream waited for before it holds up the next work of the stream that stays. What waited for it now waits for the
last task before it on its thread or stream that stays, as in a run in which that work was never issued. The tasks that are left out keep
their numbers: they stand on a thread of their own, take no time and wait for nothing.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from lumos.graph.lists import list_of, offsets
from lumos.graph.table import Dependency, Graph, Kind, Processor, rows_placed

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from lumos.trace.table import Int64


def without_left_out(graph: Graph) -> Graph:
    """The graph in which nothing waits for what it leaves out; the same graph where that is nothing. A launch call of device work that
    stays must stay, too; nothing holds this to it."""
    gone = graph.left_out
    if gone is None:
        return graph
    order = np.argsort(graph.processor, kind="stable")
    next_left = nearest_left(graph, order[::-1])
    after, source = list_of(graph.pred_offset).astype(np.int64), nearest_left(graph, order)[graph.pred]
    of_stream = graph.pred_kind == Dependency.STREAM_WAIT
    after[of_stream] = next_left[after[of_stream]]
    stays = np.flatnonzero((after >= 0) & ~gone[after] & (source >= 0))
    stays = stays[np.argsort(after[stays], kind="stable")]
    released = next_left[graph.release_task]
    sets = list_of(graph.rendezvous_offset)
    meets = ~gone[graph.rendezvous_task]
    sizes = np.bincount(sets[meets], minlength=len(graph.rendezvous_offset) - 1)
    meets &= sizes[sets] > 1
    new_number = np.where(gone, -1, np.arange(len(graph)))
    return replace(
        graph,
        processors=(*graph.processors, Processor(graph.ranks[0], False, "(left out)")),
        duration=np.where(gone, 0, graph.duration),
        processor=np.where(gone, len(graph.processors), graph.processor).astype(np.int32),
        kind=np.where(gone, Kind.HOST, graph.kind).astype(np.uint8),
        pred_offset=offsets(np.bincount(after[stays], minlength=len(graph))),
        pred=source[stays].astype(np.int32),
        pred_kind=graph.pred_kind[stays],
        release_task=released[released >= 0].astype(np.int32),
        release_time=graph.release_time[released >= 0],
        rendezvous_offset=offsets(sizes[sizes > 1]),
        rendezvous_task=graph.rendezvous_task[meets],
        waits=rows_placed(graph.waits, new_number),
        occupancy=rows_placed(graph.occupancy, new_number),
        left_out=None,
    )


def waits_elsewhere(graph: Graph) -> NDArray[np.bool_]:
    """The tasks that wait for more than their turn on their thread or stream: for tasks elsewhere, queued work or ranks, bool[n]."""
    awaits: NDArray[np.bool_] = np.diff(graph.pred_offset) > 0
    awaits[graph.rendezvous_task] = True
    if graph.waits is not None:
        awaits[graph.waits.task] = True
    return awaits


def nearest_left(graph: Graph, order: Int64) -> Int64:
    """For each task itself where it stays, else the nearest one on its processor that does, in the direction from which `order` comes; -1
    where there is none. order: all tasks by processor, and of each ascending or descending."""
    processor = graph.processor[order]
    position = np.arange(len(order))
    latest = position if graph.left_out is None else np.maximum.accumulate(np.where(graph.left_out[order], -1, position))
    first = np.maximum.accumulate(np.where(np.diff(processor, prepend=-1) != 0, position, 0))
    out = np.empty(len(order), np.int64)
    out[order] = np.where(latest >= first, order[np.maximum(latest, 0)], -1)
    return out
