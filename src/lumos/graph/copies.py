"""A graph of copies of the tasks of another: what a loop of its steps, or ranks that run its parts anew, are made of."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from lumos.graph.table import task_columns

if TYPE_CHECKING:
    from lumos.graph.edges import Predecessors
    from lumos.graph.lists import Lists
    from lumos.graph.table import ByTask, Graph
    from lumos.trace.table import Int64


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
