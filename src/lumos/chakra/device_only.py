"""The work of devices and the communication of a workload alone: what the CPU does becomes one delay in front of what waits for it.

A node of a device depends on the device work and communication that it waits for, also where it does so through the CPU. Where
the CPU lets it start later than these, a host node of that length stands between; delays that would overlap follow one another.
The replayed times stay the same. What is lost is that the CPU works on while the device is busy: where device work becomes
shorter than it was, a delay that the CPU would have hidden no longer shows, and of work launched long ahead no delay is left at all.
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
from lumos.trace.table import ABSENT, Int64

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from lumos.chakra.workload import Communication, Workload

_NAME = "host"

#: The device work that a node waits for: of each stream the last.
_Awaited = dict[int, int]


def device_only(workload: Workload) -> Workload:
    """The workload with device work, communication and the delays between them. UsageError where it has neither of the first two."""
    if workload.on_cpu.all():
        raise UsageError("no device work and no communication to write alone; write all of the job")
    ranks = [_Rank(workload, rank) for rank in range(len(workload.ranks))]
    offset = offsets([len(r.nodes) for r in ranks])
    source, start, duration, queue = np.array([node for r in ranks for node in r.nodes], np.int64).T
    edges = [(low + a, low + b) for low, r in zip(offset.tolist(), ranks, strict=False) for a, b in r.edges]
    pairs = np.array(edges, np.int64).reshape(-1, 2)
    dep_offset, dep = distinct(pairs[:, 0], pairs[:, 1], len(source))
    kept = source >= 0
    old = np.maximum(source, 0)
    none = np.full(len(source), ABSENT, np.int64)
    alone = replace(
        workload,
        rank_offset=offset,
        type=np.where(kept, workload.type[old], NodeType.COMP).astype(np.uint8),
        on_cpu=~kept,
        kind=np.where(kept, workload.kind[old], Kind.HOST).astype(np.uint8),
        name=np.where(kept, workload.name[old], len(workload.names)).astype(np.int32),
        names=(*workload.names, _NAME),
        queue=queue,
        start=start,
        duration=duration,
        release=np.where(kept, workload.release[old], none),
        operations=np.where(kept, workload.operations[old], none),
        bytes=np.where(kept, workload.bytes[old], none),
        dep_offset=dep_offset,
        dep=dep,
        communication=_moved(workload.communication, source),
        steps=(),
        timers=frozenset(),
        id=None,
        event=None,
        detail=None if workload.detail is None else np.where(kept, workload.detail[old], ABSENT).astype(np.int32),
    )
    return permuted(alone, np.lexsort((start, alone.rank_of())))  # by start, as all ranks must number their communication alike


class _Waiting(NamedTuple):
    """A node of a device (ABSENT: the end of the CPU's work), when all that it waits for has ended, and the device work among that."""

    ready: int
    node: int
    awaited: _Awaited


class _Rank:
    """The new nodes of one rank, each behind those that it waits for: the node that it was (ABSENT for a delay), start, duration, stream.
    edges: (node, what depends on it)."""

    def __init__(self, workload: Workload, rank: int) -> None:
        self.workload = workload
        self.end = (workload.start + workload.duration).tolist()
        self.nodes: list[tuple[int, int, int, int]] = []
        self.edges: list[tuple[int, int]] = []
        self.place: dict[int, int] = {}
        self.delayed = (0, ABSENT)  # until when the last delay lasts, and its place
        for waiting in sorted(self._waiting(rank), key=lambda w: w.ready):
            self._keep(waiting)

    def _waiting(self, rank: int) -> Iterator[_Waiting]:
        workload = self.workload
        low, high = (int(i) for i in workload.rank_offset[rank : rank + 2])
        bounds, deps = workload.dep_offset[low : high + 1].tolist(), workload.dep
        waits: dict[int, _Awaited] = {}
        last = _Waiting(0, ABSENT, {})
        busy = 0
        for node, on_cpu in zip(range(low, high), workload.on_cpu[low:high].tolist(), strict=True):
            before = deps[bounds[node - low] : bounds[node - low + 1]].tolist()
            awaited = self._awaited(before, waits)
            if on_cpu:
                waits[node] = awaited
                last = max(last, _Waiting(self.end[node], ABSENT, awaited), key=lambda w: w.ready)
            else:
                busy = max(busy, self.end[node])
                yield _Waiting(max((self.end[b] for b in before), default=0), node, awaited)
        if last.ready > busy or busy == 0:
            yield last

    def _awaited(self, before: Iterable[int], waits: Mapping[int, _Awaited]) -> _Awaited:
        """The device work that dependencies stand for; those of one host node are shared, not copied."""
        sets = [waits.get(b, {int(self.workload.queue[b]): b}) for b in before]
        if len(sets) == 1 or all(found is sets[0] for found in sets[1:]):
            return sets[0] if sets else {}
        out: _Awaited = {}
        for found in sets:
            for queue, node in found.items():
                if queue not in out or self.end[node] > self.end[out[queue]]:
                    out[queue] = node
        return out

    def _keep(self, waiting: _Waiting) -> None:
        """Add a node behind the delay that the CPU adds to what it waits for."""
        ready, node, awaited = waiting
        workload = self.workload
        before = [self.place[b] for b in awaited.values()]
        begin = max((self.end[b] for b in awaited.values()), default=0)
        if ready > begin or node == ABSENT:
            until, delay = self.delayed
            if until > begin:
                before, begin = [*before, delay], until
            place = self._add(ABSENT, begin, ready - begin, 0, before)
            self.delayed = (ready, place)
            before = [place]
        if node != ABSENT:
            times = int(workload.start[node]), int(workload.duration[node])
            self.place[node] = self._add(node, *times, int(workload.queue[node]), before)

    def _add(self, source: int, start: int, duration: int, queue: int, before: Iterable[int]) -> int:
        place = len(self.nodes)
        self.nodes.append((source, start, duration, queue))
        self.edges += ((b, place) for b in before)
        return place


def _moved(facts: Communication, source: Int64) -> Communication:
    """The facts of the communication nodes, at the nodes' new numbers; source: the old number of each new node."""
    place = {node: i for i, node in enumerate(source.tolist()) if node >= 0}
    return replace(facts, node=np.array([place[node] for node in facts.node.tolist()], np.int64))
