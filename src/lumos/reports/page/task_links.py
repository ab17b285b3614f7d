"""What each task of a drawing waited for, in the columns that the browser reads.

The dependencies are those of the frozen graph (`simulation.freeze`), so that waits which are known only while simulating are there too.
Left out are the orders of threads and streams, which the lanes show themselves. The return of a blocking call takes no time and is not
drawn: what it waited for counts for the task behind it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from lumos.analyze.collectives import waiting
from lumos.graph.lists import numbered, offsets, places
from lumos.graph.table import Dependency, Kind
from lumos.reports.page.html import column, differences

if TYPE_CHECKING:
    from lumos.simulation.freeze import Frozen
    from lumos.simulation.timeline import Timeline
    from lumos.trace.table import Int8, Int64

#: The orders that a lane shows by itself.
_ORDERS = (Dependency.THREAD_ORDER, Dependency.STREAM_ORDER)
#: How many returns may follow each other between two tasks that are drawn.
_MOST_RETURNS = 3


class TaskLinks(NamedTuple):
    """One dependency an entry, int64[m] or uint8[m]: piece `after` of a drawing waited for piece `before`, and by which `Dependency`."""

    after: Int64
    before: Int64
    kind: Int8


def task_links(timeline: Timeline, frozen: Frozen, task: Int64) -> TaskLinks:
    """The dependencies between the pieces of a drawing, by `after`.

    task: int64[p], the task of each piece. Of a task in two pieces, waiting and transfer, the later piece waits and is waited for. What
    waited for a task that is not drawn has no entry.
    """
    graph = timeline.graph
    piece = np.full(len(graph), -1, np.int64)
    piece[task] = np.arange(len(task))
    shown = np.flatnonzero(piece >= 0)
    after, before, kind = _predecessors(frozen, shown)
    for _ in range(_MOST_RETURNS):
        hidden = (piece[before] < 0) & (graph.kind[before] == Kind.RETURN)
        if not hidden.any():
            break
        through, source, how = _predecessors(frozen, before[hidden])
        back = after[hidden][through]
        after, before, kind = (np.concatenate((a[~hidden], b)) for a, b in ((after, back), (before, source), (kind, how)))
    last = waiting(timeline).last[shown]
    met = np.flatnonzero(last != shown)
    after, before = np.concatenate((after, met)), np.concatenate((before, last[met]))
    kind = np.concatenate((kind, np.full(len(met), Dependency.RENDEZVOUS, np.uint8)))
    after, before = piece[shown[after]], piece[before]
    keep = (before >= 0) & (before != after) & ~np.isin(kind, _ORDERS)
    after, before, kind = after[keep], before[keep], kind[keep]
    first = np.unique(numbered(after, before, kind), return_index=True)[1]
    return TaskLinks(after[first], before[first], kind[first])


def _predecessors(frozen: Frozen, tasks: Int64) -> tuple[Int64, Int64, Int8]:
    """Of every dependency of the tasks: which of them it belongs to (its position in `tasks`), the task that it waits for, the kind."""
    edges = frozen.edges
    position = np.empty(len(frozen), np.int64)
    position[edges.order] = np.arange(len(frozen))
    first = edges.pred_offset[position[tasks]]
    size = edges.pred_offset[position[tasks] + 1] - first
    flat = places(first, size)
    return np.repeat(np.arange(len(tasks)), size), edges.pred[flat].astype(np.int64), edges.pred_kind[flat]


def link_columns(links: TaskLinks, pieces: int) -> dict[str, Any]:
    """The links as columns: list i of `offset` holds what piece i waited for, as how many pieces before i these are."""
    offset = differences(offsets(np.bincount(links.after, minlength=pieces)))
    return {"offset": offset, "back": column(links.after - links.before), "kind": column(links.kind)}


#: What a dependency is called in the browser, by its number.
LINK_WORDS = tuple(kind.word for kind in Dependency)
