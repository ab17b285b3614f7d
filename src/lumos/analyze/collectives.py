"""Collectives: which rank waits for which, how long the transfer takes, and at what rate.

All members of a rendezvous transfer from the moment at which the last of them arrives. The time of a member before that is
waiting for the member that arrived last. Where ranks' clocks disagree, a measured member may end before the last arrives; all
of its time then counts as waiting. Where members of a group are absent from the job, waiting and transfer cannot be separated.

The bus bandwidth is that of nccl-tests (PERFORMANCE.md): bytes over transfer time, times the share that must cross the
links, so that it compares with the links' rate whatever the kind and the number of ranks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.analyze.loop.steps import step_times
from lumos.graph.lists import numbered
from lumos.graph.table import Collectives, Dependency
from lumos.trace.table import ABSENT, Int32, Int64
from lumos.vocabulary import CollectiveKind

if TYPE_CHECKING:
    from lumos.analyze.loop.steps import Members
    from lumos.simulation.timeline import Timeline

#: Bytes that cross the links of a rank, as a multiple of (n - 1) / n of its buffer (the larger of input and output), n ranks;
#: kinds that are not listed move each byte once, whatever the ranks.
_CROSSING = {
    CollectiveKind.ALL_REDUCE: 2.0,
    CollectiveKind.ALL_GATHER: 1.0,
    CollectiveKind.REDUCE_SCATTER: 1.0,
    CollectiveKind.ALL_TO_ALL: 1.0,
}


class Waiting(NamedTuple):
    """By task. began: int64[n] ns, when its own work began: its start, or in a rendezvous the latest arrival.
    last: int32[n], the member of its rendezvous that arrived last (the first of several at one time); of a task without a
    rendezvous, the task itself."""

    began: Int64
    last: Int32


def waiting(timeline: Timeline) -> Waiting:
    """Split every task of the timeline into waiting for its rendezvous and its own work."""
    graph = timeline.graph
    began, last = timeline.start.copy(), np.arange(len(graph), dtype=np.int32)
    sizes = np.diff(graph.rendezvous_offset)
    tasks = graph.rendezvous_task
    if not len(tasks) or Dependency.RENDEZVOUS in graph.ignored:
        return Waiting(began, last)
    first = graph.rendezvous_offset[:-1][sizes > 0]
    sizes = sizes[sizes > 0]
    arrival = timeline.start[tasks]
    latest = np.repeat(np.maximum.reduceat(arrival, first), sizes)
    came_last = np.flatnonzero(arrival == latest)
    came_last = came_last[np.searchsorted(came_last, first)]
    last[tasks] = np.repeat(tasks[came_last], sizes)
    began[tasks] = np.minimum(latest, timeline.end[tasks])
    return Waiting(began, last)


class CollectiveRow(NamedTuple):
    """Collectives of one kind, group and size. calls: tasks over all ranks and the steps that count. size_bytes: the larger of a rank's
    input and output. time_ns: mean duration; waiting_ns, transfer_ns: its parts, None where peers are absent. bus_bytes_per_s: None
    where bytes, ranks or transfer are unknown."""

    kind: CollectiveKind
    group: str
    ranks: int | None
    size_bytes: int | None
    calls: int
    time_ns: float
    waiting_ns: float | None
    transfer_ns: float | None
    bus_bytes_per_s: float | None


def collective_times(timeline: Timeline, owners: Members) -> tuple[CollectiveRow, ...]:
    """The collectives of the steps that count, those that take most time first."""
    graph, facts = timeline.graph, timeline.graph.collectives
    if facts is None:
        return ()
    chosen = np.flatnonzero(step_times(timeline, owners).tasks_counted()[facts.task])
    if not len(chosen):
        return ()
    size = _sizes(timeline, facts)
    keys = np.stack((facts.kind, facts.group, size, facts.nbytes))[:, chosen]
    row, task = numbered(*keys), facts.task[chosen]
    distinct = keys[:, np.unique(row, return_index=True)[1]]
    joined = np.zeros(len(graph), bool)
    joined[graph.rendezvous_task] = True
    began = waiting(timeline).began
    time, waited = timeline.end[task] - timeline.start[task], began[task] - timeline.start[task]
    calls, known = np.bincount(row), np.bincount(row, joined[task])
    total, wait = np.bincount(row, time), np.bincount(row, np.where(joined[task], waited, 0))
    out = []
    for i, (kind, group, ranks, nbytes) in enumerate(distinct.T.tolist()):
        whole = known[i] == calls[i]
        out.append(
            _row(
                facts.kinds[kind],
                facts.groups[group] if group >= 0 else "",
                ranks if ranks != ABSENT else None,
                nbytes if nbytes != ABSENT else None,
                int(calls[i]),
                float(total[i] / calls[i]),
                float(wait[i] / calls[i]) if whole else None,
            )
        )
    return tuple(sorted(out, key=lambda r: -r.time_ns * r.calls))


def _row(
    kind: CollectiveKind, group: str, ranks: int | None, nbytes: int | None, calls: int, time: float, wait: float | None
) -> CollectiveRow:
    transfer = None if wait is None else time - wait
    size = nbytes if nbytes is None or ranks is None else kind.buffer_bytes(nbytes, ranks)
    rate = None
    if size is not None and ranks is not None and ranks > 1 and transfer:
        rate = size / transfer * 1e9 * (_CROSSING[kind] * (ranks - 1) / ranks if kind in _CROSSING else 1.0)
    return CollectiveRow(kind, group, ranks, size, calls, time, wait, transfer, rate)


def _sizes(timeline: Timeline, facts: Collectives) -> Int64:
    """Ranks of each collective's group, int64[rows]: as recorded, else the members of its rendezvous; ABSENT where unknown."""
    graph = timeline.graph
    met = np.full(len(graph), ABSENT, np.int64)
    members = np.diff(graph.rendezvous_offset)
    met[graph.rendezvous_task] = np.repeat(members, members)
    size = met[facts.task]
    return size if facts.size is None else np.where(facts.size > 0, facts.size, size).astype(np.int64)
