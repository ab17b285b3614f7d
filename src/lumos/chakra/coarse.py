"""Blocks instead of kernels: a workload of large jobs with what happens between communication as single nodes.

Per rank one line of compute. It is cut where a communication is issued and where compute waits for one; a block lasts
from the one cut to the other. So the replayed times stay, and so does what the communication overlaps with; what is
lost is which kernels and threads a block is made of, and concurrency of compute with compute.
"""

from __future__ import annotations

from dataclasses import replace
from heapq import heapify, heappop, heappush

import numpy as np

from lumos.chakra.workload import Communication, Workload
from lumos.graph.edges import distinct
from lumos.graph.lists import list_of, offsets
from lumos.graph.table import Kind
from lumos.trace.chakra_wire import NodeType
from lumos.trace.table import ABSENT, Int64

_NAME = "block"


def coarse(workload: Workload) -> Workload:
    """The workload with one node between each two events of communication."""
    parts = [_rank(workload, rank) for rank in range(len(workload.ranks))]
    offset = offsets([len(p.start) for p in parts])
    of_comm = np.concatenate([np.array(p.comm, np.int64) for p in parts])
    start = np.concatenate([np.array(p.start, np.int64) for p in parts])
    end = np.concatenate([np.array(p.end, np.int64) for p in parts])
    edges = [(low + a, low + b) for low, p in zip(offset.tolist(), parts, strict=False) for a, b in p.edges]
    pairs = np.array(edges, np.int64).reshape(-1, 2)
    dep_offset, dep = distinct(pairs[:, 0], pairs[:, 1], len(start))
    is_comm = of_comm >= 0
    names = (*workload.names, _NAME)
    block = np.where(is_comm, workload.name[of_comm], len(names) - 1)
    none = np.full(len(start), ABSENT, np.int64)
    return replace(
        workload,
        rank_offset=offset,
        type=np.where(is_comm, workload.type[of_comm], NodeType.COMP).astype(np.uint8),
        on_cpu=np.zeros(len(start), bool),
        kind=np.where(is_comm, Kind.COLLECTIVE, Kind.KERNEL).astype(np.uint8),
        name=block.astype(np.int32),
        names=names,
        queue=np.where(is_comm, np.where(workload.type[of_comm] == NodeType.RECV, ABSENT, workload.queue[of_comm]), 0).astype(np.int32),
        start=start,
        duration=end - start,
        release=none,
        operations=none,
        bytes=none,
        dep_offset=dep_offset,
        dep=dep,
        communication=_renumbered(workload.communication, of_comm),
        steps=(),
        timers=frozenset(),
        id=None,
        event=None,
    )


class _Line:
    """A rank's nodes in the making. comm: the communication node that each was, ABSENT for a block."""

    def __init__(self) -> None:
        self.start: list[int] = []
        self.end: list[int] = []
        self.comm: list[int] = []
        self.edges: list[tuple[int, int]] = []

    def add(self, start: int, end: int, comm: int) -> int:
        self.start.append(start)
        self.end.append(end)
        self.comm.append(comm)
        return len(self.start) - 1


def _rank(workload: Workload, rank: int) -> _Line:
    """Walk a rank's events by time: compute up to each, then the communication issued there or the wait that ends there."""
    low, high = (int(i) for i in workload.rank_offset[rank : rank + 2])
    facts = workload.communication
    first, last = np.searchsorted(facts.node, (low, high))
    comms = facts.node[first:last]
    is_comm = np.zeros(high - low, bool)
    is_comm[comms - low] = True
    end = workload.start[low:high] + workload.duration[low:high]
    deps = workload.dep[workload.dep_offset[low] : workload.dep_offset[high]] - low
    task = list_of(workload.dep_offset[low : high + 1])
    issue = _latest(task, end[deps], high - low)
    free = _latest(task[~is_comm[deps]], end[deps[~is_comm[deps]]], high - low)
    waits = np.unique(task[is_comm[deps] & ~is_comm[task]])
    awaited: dict[int, list[int]] = {}
    for t, d in zip(task.tolist(), deps.tolist(), strict=True):
        if is_comm[d]:
            awaited.setdefault(t, []).append(d)
    # (time, order, what): communication is issued before a wait of the same moment begins.
    events = [(max(int(issue[c]), 0), int(c), True) for c in (comms - low).tolist()]
    events += [(int(workload.start[low + t]), int(t), False) for t in waits.tolist()]
    line = _Line()
    node_of: dict[int, int] = {}
    before, now = ABSENT, 0
    held: list[int] = []  # communication that the next block waits for

    def block(until: int) -> int:
        """The block that ends at `until`, behind the one before and what it waits for."""
        nonlocal before, now, held
        if until <= now and not held and before != ABSENT:
            return before
        node = line.add(now, max(until, now), ABSENT)
        line.edges += [(other, node) for other in ([before] if before != ABSENT else []) + held]
        before, now, held = node, max(until, now), []
        return node

    for time, which, issues in sorted(events, key=lambda e: (e[0], e[1])):
        if issues:
            after = block(min(time, int(workload.start[low + which]))) if time > 0 or held else before
            node = line.add(int(workload.start[low + which]), int(end[which]), low + which)
            node_of[which] = node
            waits_for = [after] if after != ABSENT else []
            waits_for += (node_of[d] for d in awaited.get(which, ()))
            line.edges += ((other, node) for other in waits_for)
            continue
        block(min(int(free[which]) if free[which] >= 0 else now, time))
        held += [node_of[d] for d in awaited[which]]
        now = max(now, time)
    finish = int(end[~is_comm].max(initial=0))
    if finish > now or held or not line.start:
        block(finish)
    return _sorted(line)


def _latest(task: Int64, time: Int64, n: int) -> Int64:
    out = np.full(n, ABSENT, np.int64)
    np.maximum.at(out, task, time)
    return out


def _sorted(line: _Line) -> _Line:
    """The line's nodes by start, in an order that its edges respect. What begins at one moment keeps the communication in the
    order of the workload: a simulator has the ranks' transfers meet by their order, whichever was issued first."""
    behind: list[list[int]] = [[] for _ in line.start]
    missing = [0] * len(line.start)
    for a, b in line.edges:
        behind[a].append(b)
        missing[b] += 1
    ready = [(line.start[i], line.comm[i], i) for i, count in enumerate(missing) if not count]
    heapify(ready)
    order: list[int] = []
    while ready:
        node = heappop(ready)[2]
        order.append(node)
        for i in behind[node]:
            missing[i] -= 1
            if not missing[i]:
                heappush(ready, (line.start[i], line.comm[i], i))
    place = {node: i for i, node in enumerate(order)}
    out = _Line()
    for node in order:
        out.add(line.start[node], line.end[node], line.comm[node])
    out.edges = [(place[a], place[b]) for a, b in line.edges]
    return out


def _renumbered(facts: Communication, of_comm: Int64) -> Communication:
    """The communication at its new places."""
    where = np.flatnonzero(of_comm >= 0)
    rows = np.searchsorted(facts.node, of_comm[where])
    columns = {name: getattr(facts, name)[rows] for name in ("type", "size", "group", "peer", "tag", "kind")}
    return replace(facts, node=where, **columns)
