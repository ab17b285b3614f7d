"""The work of devices and the communication of a workload alone: what the CPU does becomes one delay in front of what waits for it.

A node of a device depends on the device work and communication that it waits for, also where it does so through the CPU; where the CPU lets
it start later, a host node of that length stands between, and delays that would overlap follow one another. The replayed times stay the
same. What is lost is that the CPU works on while the device is busy: a delay that it would have hidden is missing where device work becomes
shorter.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.chakra.build import permuted
from lumos.errors import UsageError
from lumos.graph.edges import distinct
from lumos.graph.lists import offsets
from lumos.graph.table import Kind
from lumos.trace.chakra.schema import NodeType
from lumos.trace.table import ABSENT

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from lumos.chakra.workload import Workload

_NAME = "host"

#: The device work that a node waits for: of each stream the last.
_Awaited = dict[int, int]


def device_only(workload: Workload) -> Workload:
    """The workload with device work, communication and the delays between them. UsageError where it has neither of the first two."""
    if workload.on_cpu.all():
        raise UsageError("no device work and no communication to write alone; write all of the job")
    end = (workload.start + workload.duration).tolist()
    ranks = [_alone(workload, end, rank) for rank in range(len(workload.ranks))]
    offset = offsets([len(nodes) for nodes, _ in ranks])
    source, start, duration, queue = np.array([node for nodes, _ in ranks for node in nodes], np.int64).T
    edges = [(low + a, low + b) for low, (_, of_rank) in zip(offset.tolist(), ranks, strict=False) for a, b in of_rank]
    pairs = np.array(edges, np.int64).reshape(-1, 2)
    dep_offset, dep = distinct(pairs[:, 0], pairs[:, 1], len(source))
    kept = source >= 0
    place = np.empty(len(workload), np.int64)
    place[source[kept]] = np.flatnonzero(kept)
    rows = workload.rows(source, type=NodeType.COMP, on_cpu=True, kind=Kind.HOST, name=len(workload.names))
    times = {"queue": queue, "start": start, "duration": duration, "id": None, "event": None}
    alone = replace(
        workload,
        **(rows | times),
        rank_offset=offset,
        names=(*workload.names, _NAME),
        dep_offset=dep_offset,
        dep=dep,
        communication=replace(workload.communication, node=place[workload.communication.node]),
        steps=(),
        timers=frozenset(),
    )
    return permuted(alone, np.lexsort((start, alone.rank_of())))  # by start, as all ranks must number their communication alike


class _Waiting(NamedTuple):
    """A node of a device (ABSENT: the end of the CPU's work), when all that it waits for has ended, and the device work among that."""

    ready: int
    node: int
    awaited: _Awaited


def _alone(workload: Workload, end: Sequence[int], rank: int) -> tuple[list[tuple[int, int, int, int]], list[tuple[int, int]]]:
    """The new nodes of one rank, each behind those that it waits for: the node that it was (ABSENT for a delay), start, duration, stream.
    And the edges between them: (node, what depends on it)."""
    nodes: list[tuple[int, int, int, int]] = []
    edges: list[tuple[int, int]] = []
    place: dict[int, int] = {}
    until, delay = 0, ABSENT  # until when the last delay lasts, and its place

    def add(source: int, start: int, duration: int, queue: int, before: Iterable[int]) -> int:
        edges.extend((b, len(nodes)) for b in before)
        nodes.append((source, start, duration, queue))
        return len(nodes) - 1

    for ready, node, awaited in sorted(_waiting(workload, end, rank), key=lambda w: w.ready):
        before = [place[b] for b in awaited.values()]
        begin = max((end[b] for b in awaited.values()), default=0)
        if ready > begin or node == ABSENT:
            if until > begin:
                before, begin = [*before, delay], until
            until, delay = ready, add(ABSENT, begin, ready - begin, 0, before)
            before = [delay]
        if node != ABSENT:
            times = int(workload.start[node]), int(workload.duration[node])
            place[node] = add(node, *times, int(workload.queue[node]), before)
    return nodes, edges


def _waiting(workload: Workload, end: Sequence[int], rank: int) -> Iterator[_Waiting]:
    low, high = (int(i) for i in workload.rank_offset[rank : rank + 2])
    bounds, deps = workload.dep_offset[low : high + 1].tolist(), workload.dep
    waits: dict[int, _Awaited] = {}  # of each node what depending on it means
    last = _Waiting(0, ABSENT, {})
    busy = 0
    for node, on_cpu, queue in zip(range(low, high), workload.on_cpu[low:high].tolist(), workload.queue[low:high].tolist(), strict=True):
        before = deps[bounds[node - low] : bounds[node - low + 1]].tolist()
        awaited = waits[before[0]] if before else {}
        for other in (waits[b] for b in before if waits[b] is not awaited):
            latest = ((q, n) for q, n in other.items() if q not in awaited or end[n] > end[awaited[q]])
            awaited = {**awaited, **dict(latest)}
        waits[node] = awaited if on_cpu else {queue: node}
        if on_cpu:
            last = max(last, _Waiting(end[node], ABSENT, awaited), key=lambda w: w.ready)
        else:
            busy = max(busy, end[node])
            yield _Waiting(max((end[b] for b in before), default=0), node, awaited)
    if last.ready > busy or busy == 0:
        yield last
