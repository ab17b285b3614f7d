"""Graphs made of others: those of several ranks put together, copies of the tasks of one, and one without some of its tasks.

Of copies a loop of steps is made, or ranks that run parts of a job anew. Where a change takes a task out of every step, what waited for it
waits for the work before it. A task that goes leaves with all that held it up: its launch, the device work that its return awaited, the
ranks that it met, its share of the SMs. An event that its stream waited for before it holds up the next work of the stream that stays. What
waited for it now waits for the last task before it on its thread or stream that stays, as in a run in which that work was never issued. The
tasks that are left out keep their numbers: they stand on a thread of their own, take no time and wait for nothing.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from lumos.graph.lists import list_of, offsets
from lumos.graph.table import ByTask, Collectives, Dependency, Graph, Kind, Processor, Waits, rows_placed, rows_together, task_columns
from lumos.trace.table import ABSENT, Int32, Int64, unique

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from lumos.graph.lists import Lists, Predecessors
    from lumos.vocabulary import CollectiveKind

def concatenate(graphs: Sequence[Graph]) -> Graph:
    """One graph of all ranks, each unchanged: no rank waits for another yet. The table of names is shared."""
    if len(graphs) == 1:
        return graphs[0]
    tasks = offsets([len(g) for g in graphs])
    edges = offsets([len(g.pred) for g in graphs])
    processors = offsets([len(g.processors) for g in graphs])
    index: dict[str, int] = {}
    names = [_renumber(index, g) for g in graphs]

    def shifted(column: str, by: Int64) -> Int32:
        return np.concatenate([getattr(g, column) + np.int32(b) for g, b in zip(graphs, by, strict=False)]).astype(np.int32)

    def joined(column: str) -> Any:
        return np.concatenate([getattr(g, column) for g in graphs])

    def table(parts: Sequence[ByTask | None]) -> ByTask | None:
        return rows_together([rows_placed(part, np.arange(len(g)) + first) for part, g, first in zip(parts, graphs, tasks, strict=False)])

    return Graph(
        ranks=tuple(r for g in graphs for r in g.ranks),
        processors=tuple(p for g in graphs for p in g.processors),
        names=tuple(index),
        duration=joined("duration"),
        processor=shifted("processor", processors),
        kind=joined("kind"),
        name=np.concatenate(names),
        event=joined("event"),
        pred_offset=np.concatenate([[0], *(g.pred_offset[1:] + e for g, e in zip(graphs, edges, strict=False))]).astype(np.int64),
        pred=shifted("pred", tasks),
        pred_kind=joined("pred_kind"),
        lag=joined("lag"),
        gap_range=_gap_range(graphs),
        release_task=shifted("release_task", tasks),
        release_time=joined("release_time"),
        queue_depth=_depths(graphs),
        waits=table([_shifted(processors, g.waits, i) for i, g in enumerate(graphs)]),
        occupancy=table([g.occupancy for g in graphs]),
        collectives=_collectives(graphs, tasks),
        measured_start=joined("measured_start") if all(g.measured_start is not None for g in graphs) else None,
        measured_end=joined("measured_end") if all(g.measured_end is not None for g in graphs) else None,
        unclaimed_wait_task=shifted("unclaimed_wait_task", tasks),
        unclaimed_wait_time=joined("unclaimed_wait_time"),
        one_off=table([g.one_off for g in graphs]),
        steps=tuple(s for g in graphs for s in g.steps),
        diagnostics=tuple(d for g in graphs for d in g.diagnostics),
        evidence=tuple(e for g in graphs for e in g.evidence),
    )


def _renumber(index: dict[str, int], graph: Graph) -> Int32:
    """The graph's name column as indices into the shared table, to which the names that its tasks use are added."""
    used = unique(graph.name)
    new = np.zeros(len(graph.names), np.int32)
    for i in used:
        new[i] = index.setdefault(graph.names[i], len(index))
    return new[graph.name]


def _gap_range(graphs: Sequence[Graph]) -> Int64 | None:
    if all(g.gap_range is None for g in graphs):
        return None
    return np.concatenate([g.lag[:, [Dependency.STREAM_ORDER] * 2] if g.gap_range is None else g.gap_range for g in graphs])


def _depths(graphs: Sequence[Graph]) -> Int32 | None:
    if all(g.queue_depth is None for g in graphs):
        return None
    return np.concatenate([np.zeros(len(g.ranks), np.int32) if g.queue_depth is None else g.queue_depth for g in graphs])


def _shifted(processors: Int64, waits: Waits | None, position: int) -> Waits | None:
    """The waits of the graph at a position, by the numbers that processors have in the whole."""
    if waits is None:
        return None
    return replace(waits, target=np.where(waits.target < 0, waits.target, waits.target + processors[position]).astype(np.int32))


def _collectives(graphs: Sequence[Graph], tasks: Int64) -> Collectives | None:
    """The collectives of all graphs, whose kinds and groups are numbered anew."""
    parts = [rows_placed(g.collectives, np.arange(len(g)) + t) for g, t in zip(graphs, tasks, strict=False)]
    facts = [part for part in parts if part is not None]
    kinds: dict[CollectiveKind, int] = {}
    groups: dict[str, int] = {}
    several: list[Collectives] = []
    messages: list[tuple[int, bool, int, int, int]] = []
    for part in facts:
        kind = np.array([kinds.setdefault(part.kinds[k], len(kinds)) for k in part.kind], np.int32)
        number = np.array([*(groups.setdefault(name, len(groups)) for name in part.groups), ABSENT], np.int32)
        first = sum(len(before.task) for before in several)
        messages += [(first + row, sends, peer, int(number[group]), nbytes) for row, sends, peer, group, nbytes in part.messages]
        size = np.full(len(part.task), ABSENT, np.int32) if part.size is None else part.size
        several.append(replace(part, kind=kind, group=number[part.group], size=size))
    whole = rows_together(several)
    return None if whole is None else replace(whole, kinds=tuple(kinds), groups=tuple(groups), messages=tuple(messages))


def task_copies(graph: Graph, source: Int64, predecessors: Predecessors, rendezvous: Lists) -> Graph:
    """The graph of the copies, with these dependencies and rendezvous. It was not measured: it has no marked steps and no times of a
    trace. source: int64[n], the task of which each is a copy."""
    unknown = np.zeros(len(graph), bool)
    unknown[graph.waiting_unknown] = True
    return replace(
        graph,
        duration=graph.duration[source],
        processor=graph.processor[source],
        kind=graph.kind[source],
        name=graph.name[source],
        event=graph.event[source],
        pred_offset=predecessors.offset,
        pred=predecessors.task,
        pred_kind=predecessors.kind,
        release_task=np.empty(0, np.int32),
        release_time=np.empty(0, np.int64),
        rendezvous_offset=rendezvous.offset,
        rendezvous_task=rendezvous.flat.astype(np.int32),
        waits=rows_copied(graph.waits, source),
        occupancy=rows_copied(graph.occupancy, source),
        collectives=rows_copied(graph.collectives, source),
        measured_start=None,
        measured_end=None,
        unclaimed_wait_task=np.empty(0, np.int32),
        unclaimed_wait_time=np.empty(0, np.int64),
        one_off=None,
        waiting_unknown=np.flatnonzero(unknown[source]).astype(np.int32),
        steps=(),
        left_out=None if graph.left_out is None else graph.left_out[source],
    )


def rows_copied(table: ByTask | None, source: Int64) -> ByTask | None:
    """The rows of a table by task for the copies, in their order."""
    if table is None:
        return None
    order = np.argsort(table.task, kind="stable")
    listed = np.append(table.task[order], -1)
    at = np.searchsorted(listed[:-1], source)
    new = np.flatnonzero(listed[at] == source)
    row = order[at[new]]
    columns: dict[str, Any] = {name: column[row] for name, column in task_columns(table)}
    return replace(table, **{**columns, "task": new.astype(np.int32)})


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
