"""The graphs of several ranks put together into one graph."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from lumos.graph.lists import offsets
from lumos.graph.table import Collectives, Dependency, Graph, Occupancy, OneOff, Waits
from lumos.trace.table import ABSENT, Int32, Int64

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
        waits=_waits(graphs, tasks, processors),
        occupancy=_occupancy(graphs, tasks),
        collectives=_collectives(graphs, tasks),
        measured_start=joined("measured_start") if all(g.measured_start is not None for g in graphs) else None,
        measured_end=joined("measured_end") if all(g.measured_end is not None for g in graphs) else None,
        unclaimed_wait_task=shifted("unclaimed_wait_task", tasks),
        unclaimed_wait_time=joined("unclaimed_wait_time"),
        one_off=_one_off(graphs, tasks),
        steps=tuple(s for g in graphs for s in g.steps),
        diagnostics=tuple(d for g in graphs for d in g.diagnostics),
        evidence=tuple(e for g in graphs for e in g.evidence),
    )


def _renumber(index: dict[str, int], graph: Graph) -> Int32:
    """The graph's name column as indices into the shared table, to which the names that its tasks use are added."""
    used = np.unique(graph.name)
    new = np.zeros(len(graph.names), np.int32)
    for i in used:
        new[i] = index.setdefault(graph.names[i], len(index))
    return new[graph.name]


def _gap_range(graphs: Sequence[Graph]) -> Int64 | None:
    if all(g.gap_range is None for g in graphs):
        return None
    return np.concatenate([g.lag[:, [Dependency.STREAM_ORDER] * 2] if g.gap_range is None else g.gap_range for g in graphs])


def _one_off(graphs: Sequence[Graph], tasks: Int64) -> OneOff | None:
    several = [(g.one_off, np.int32(t)) for g, t in zip(graphs, tasks, strict=False) if g.one_off is not None]
    parts = [(once.task + first, once.share, once.cause) for once, first in several]
    return OneOff(*(np.concatenate(column) for column in zip(*parts, strict=True))) if parts else None


def _depths(graphs: Sequence[Graph]) -> Int32 | None:
    if all(g.queue_depth is None for g in graphs):
        return None
    return np.concatenate([np.zeros(len(g.ranks), np.int32) if g.queue_depth is None else g.queue_depth for g in graphs])


def _waits(graphs: Sequence[Graph], tasks: Int64, processors: Int64) -> Waits | None:
    parts = [(g.waits, t, p) for g, t, p in zip(graphs, tasks, processors, strict=False) if g.waits is not None]
    if not parts:
        return None
    return Waits(
        np.concatenate([w.task + t for w, t, _ in parts]).astype(np.int32),
        np.concatenate([np.where(w.target < 0, w.target, w.target + p) for w, _, p in parts]).astype(np.int32),
    )


def _occupancy(graphs: Sequence[Graph], tasks: Int64) -> Occupancy | None:
    parts = [(g.occupancy, t) for g, t in zip(graphs, tasks, strict=False) if g.occupancy is not None]
    if not parts:
        return None
    return Occupancy(
        np.concatenate([o.task + t for o, t in parts]).astype(np.int32),
        np.concatenate([o.share for o, _ in parts]),
        np.concatenate([o.hold for o, _ in parts]),
    )


def _collectives(graphs: Sequence[Graph], tasks: Int64) -> Collectives | None:
    parts = [(g.collectives, t) for g, t in zip(graphs, tasks, strict=False) if g.collectives is not None]
    if not parts:
        return None
    kinds: dict[CollectiveKind, int] = {}
    groups: dict[str, int] = {}
    kind = [np.array([kinds.setdefault(c.kinds[k], len(kinds)) for k in c.kind], np.int32) for c, _ in parts]
    for c, _ in parts:
        for name in c.groups:
            groups.setdefault(name, len(groups))
    group = [np.array([ABSENT if k < 0 else groups.setdefault(c.groups[k], len(groups)) for k in c.group], np.int32) for c, _ in parts]
    first = parts[0][0]
    rows = offsets([len(c.task) for c, _ in parts])
    return replace(
        first,
        task=np.concatenate([c.task + t for c, t in parts]).astype(np.int32),
        kind=np.concatenate(kind),
        nbytes=np.concatenate([c.nbytes for c, _ in parts]),
        group=np.concatenate(group),
        sequence=np.concatenate([c.sequence for c, _ in parts]),
        peer=np.concatenate([c.peer for c, _ in parts]),
        kinds=tuple(kinds),
        groups=tuple(groups),
        messages=tuple(
            (int(row) + i, sends, peer, ABSENT if k < 0 else groups[c.groups[k]], nbytes)
            for row, (c, _) in zip(rows, parts, strict=False)
            for i, sends, peer, k, nbytes in c.messages
        ),
        size=np.concatenate([np.full(len(c.task), ABSENT, np.int32) if c.size is None else c.size for c, _ in parts]),
    )
