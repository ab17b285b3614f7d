"""A graph without some of its tasks: what waited for one of them waits for the work before it.

A task that goes leaves with all that held it up: its launch, the events that its stream waited for, the device work that its return
awaited, the ranks that it met, its share of the SMs. What waited for it now waits for the last task before it on its thread or stream that
stays, as in a run in which that work was never issued.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.graph.lists import list_of, offsets
from lumos.graph.table import Collectives, Graph, Occupancy, OneOff, Waits

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from lumos.trace.table import Int64


class Left(NamedTuple):
    """What is left of a graph of n tasks. kept: int64[m], of each task of `graph` its number before, ascending."""

    graph: Graph
    kept: Int64


def left_of(graph: Graph, gone: NDArray[np.bool_]) -> Left:
    """The graph without the tasks `gone`, bool[n]. A launch call of device work that stays must stay, too; nothing holds this to it."""
    kept = np.flatnonzero(~gone)
    new = np.cumsum(~gone) - 1
    order = np.argsort(graph.processor, kind="stable")
    after, source = list_of(graph.pred_offset), _nearest(graph, gone, order)[graph.pred]
    stays = ~gone[after] & (source >= 0)
    after, kind, source = after[stays], graph.pred_kind[stays], source[stays]
    released = _nearest(graph, gone, order[::-1])[graph.release_task]
    sets = list_of(graph.rendezvous_offset)
    meets = ~gone[graph.rendezvous_task]
    sizes = np.bincount(sets[meets], minlength=len(graph.rendezvous_offset) - 1)
    meets &= sizes[sets] > 1
    unclaimed = ~gone[graph.unclaimed_wait_task]
    out = replace(
        graph,
        duration=graph.duration[kept],
        processor=graph.processor[kept],
        kind=graph.kind[kept],
        name=graph.name[kept],
        event=graph.event[kept],
        pred_offset=offsets(np.bincount(new[after], minlength=len(kept))),
        pred=new[source].astype(np.int32),
        pred_kind=kind,
        release_task=new[released[released >= 0]].astype(np.int32),
        release_time=graph.release_time[released >= 0],
        rendezvous_offset=offsets(sizes[sizes > 1]),
        rendezvous_task=new[graph.rendezvous_task[meets]].astype(np.int32),
        waits=_waits(graph.waits, gone, new),
        occupancy=_occupancy(graph.occupancy, gone, new),
        collectives=_collectives(graph.collectives, gone, new),
        measured_start=None if graph.measured_start is None else graph.measured_start[kept],
        measured_end=None if graph.measured_end is None else graph.measured_end[kept],
        unclaimed_wait_task=new[graph.unclaimed_wait_task[unclaimed]].astype(np.int32),
        unclaimed_wait_time=graph.unclaimed_wait_time[unclaimed],
        one_off=_one_off(graph.one_off, gone, new),
        waiting_unknown=new[graph.waiting_unknown[~gone[graph.waiting_unknown]]].astype(np.int32),
        left_out=None,
    )
    return Left(out, kept)


def waits_elsewhere(graph: Graph) -> NDArray[np.bool_]:
    """The tasks that wait for more than their turn on their thread or stream: for tasks elsewhere, queued work or ranks, bool[n]."""
    awaits: NDArray[np.bool_] = np.diff(graph.pred_offset) > 0
    awaits[graph.rendezvous_task] = True
    if graph.waits is not None:
        awaits[graph.waits.task] = True
    return awaits


def _nearest(graph: Graph, gone: NDArray[np.bool_], order: Int64) -> Int64:
    """For each task itself where it stays, else the nearest one on its processor that does, in the direction from which `order` comes; -1
    where there is none. order: all tasks by processor, and of each ascending or descending."""
    processor = graph.processor[order]
    place = np.arange(len(order))
    latest = np.maximum.accumulate(np.where(gone[order], -1, place))
    first = np.maximum.accumulate(np.where(np.diff(processor, prepend=-1) != 0, place, 0))
    out = np.empty(len(order), np.int64)
    out[order] = np.where(latest >= first, order[np.maximum(latest, 0)], -1)
    return out


def _waits(waits: Waits | None, gone: NDArray[np.bool_], new: Int64) -> Waits | None:
    if waits is None:
        return None
    stays = ~gone[waits.task]
    return Waits(new[waits.task[stays]].astype(np.int32), waits.target[stays])


def _occupancy(shared: Occupancy | None, gone: NDArray[np.bool_], new: Int64) -> Occupancy | None:
    if shared is None:
        return None
    stays = ~gone[shared.task]
    return Occupancy(new[shared.task[stays]].astype(np.int32), shared.share[stays], shared.hold[stays])


def _collectives(facts: Collectives | None, gone: NDArray[np.bool_], new: Int64) -> Collectives | None:
    if facts is None:
        return None
    stays = ~gone[facts.task]
    columns = {name: getattr(facts, name)[stays] for name in ("kind", "nbytes", "group", "sequence", "peer")}
    size = None if facts.size is None else facts.size[stays]
    return replace(facts, task=new[facts.task[stays]].astype(np.int32), size=size, **columns)


def _one_off(once: OneOff | None, gone: NDArray[np.bool_], new: Int64) -> OneOff | None:
    if once is None:
        return None
    stays = ~gone[once.task]
    return OneOff(new[once.task[stays]].astype(np.int32), once.share[stays], once.cause[stays])
