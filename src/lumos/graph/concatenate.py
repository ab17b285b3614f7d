"""The graphs of several ranks put together into one graph."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from lumos.graph.lists import offsets
from lumos.graph.table import ByTask, Collectives, Dependency, Graph, Waits, rows_placed, rows_together
from lumos.trace.table import ABSENT, Int32, Int64, unique

if TYPE_CHECKING:
    from collections.abc import Sequence

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
