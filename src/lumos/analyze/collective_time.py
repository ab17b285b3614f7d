"""Collectives by what they do: how long ranks waited for the last one, how long the transfer took, and at what rate.

Waiting and transfer are told apart where all members of a group are in the job; elsewhere a duration holds both. The bus
bandwidth is that of nccl-tests (PERFORMANCE.md): bytes over transfer time, times the share that must cross the links, so
that it compares with the links' rate whatever the kind and the number of ranks.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from lumos.analyze.steps import Members
from lumos.analyze.waiting import waiting
from lumos.graph.table import Collectives
from lumos.simulate.timeline import Timeline
from lumos.trace.table import ABSENT, Int64

#: Bytes that cross the links of a rank, as a multiple of (n - 1) / n of its buffer (the larger of input and output), n ranks;
#: kinds that are not listed move each byte once, whatever the ranks.
_CROSSING = {"all-reduce": 2.0, "all-gather": 1.0, "reduce-scatter": 1.0, "all-to-all": 1.0}


class CollectiveRow(NamedTuple):
    """Collectives of one kind, group, size. calls: tasks over all ranks and steps. size_bytes: the larger of a rank's input and
    output. time_ns: mean duration; waiting_ns, transfer_ns: its parts, None where peers are absent. bus_bytes_per_s: None
    where bytes, ranks or transfer are unknown."""

    kind: str
    group: str
    ranks: int | None
    size_bytes: int | None
    calls: int
    time_ns: float
    waiting_ns: float | None
    transfer_ns: float | None
    bus_bytes_per_s: float | None


def collective_times(timeline: Timeline, owners: Members) -> tuple[CollectiveRow, ...]:
    """The collectives of all steps, those that take most time first."""
    graph, facts = timeline.graph, timeline.graph.collectives
    if facts is None:
        return ()
    chosen = np.flatnonzero(owners.step[facts.task] >= 0)
    if not len(chosen):
        return ()
    size = _sizes(timeline, facts)
    keys = np.stack((facts.kind, facts.group, size, facts.nbytes))[:, chosen]
    distinct, row = np.unique(keys, axis=1, return_inverse=True)
    row, task = row.reshape(-1), facts.task[chosen]
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


def _row(kind: str, group: str, ranks: int | None, nbytes: int | None, calls: int, time: float, wait: float | None) -> CollectiveRow:
    transfer = None if wait is None else time - wait
    size = nbytes * ranks if kind == "all-gather" and nbytes is not None and ranks is not None else nbytes
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
