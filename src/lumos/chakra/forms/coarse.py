"""Shrink the workload of a large job: all compute of a rank between two events of communication becomes one node, a block.

Every rank gets one chain of blocks. The chain is cut where a communication is issued and where compute waits for one; a
block lasts from one cut to the next. The replayed times stay the same, and so does the overlap of compute with
communication. What is lost is which kernels and threads make up a block, and the overlap of compute with compute.
"""

from __future__ import annotations

from dataclasses import replace
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

import numpy as np

from lumos.graph.edges import distinct
from lumos.graph.lists import list_of, offsets
from lumos.graph.table import Kind
from lumos.trace.chakra.schema import NodeType
from lumos.trace.table import ABSENT, Int64

if TYPE_CHECKING:
    from lumos.chakra.workload import Communication, Workload

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
        queue=np.where(is_comm, np.where(workload.type[of_comm] == NodeType.RECV, ABSENT, workload.queue[of_comm]), 0).astype(np.int64),
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
        tensors=None,
        tensor_table=(),
    )


class _Chain:
    """A rank's new nodes while they are collected. comm: the communication node that each comes from, ABSENT for a block."""

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


def _rank(workload: Workload, rank: int) -> _Chain:
    """The new nodes of a rank: its events by time, each preceded by the block of compute up to it.

    An event is a communication that is issued, or compute that waits for communication.
    """
    low, high = (int(i) for i in workload.rank_offset[rank : rank + 2])
    facts = workload.communication
    first, last = np.searchsorted(facts.node, (low, high))
    comms = facts.node[first:last]
    is_comm = np.zeros(high - low, bool)
    is_comm[comms - low] = True
    end = workload.start[low:high] + workload.duration[low:high]
    deps = workload.dep[workload.dep_offset[low] : workload.dep_offset[high]] - low
    dependent = list_of(workload.dep_offset[low : high + 1])
    issue = _latest(dependent, end[deps], high - low)
    free = _latest(dependent[~is_comm[deps]], end[deps[~is_comm[deps]]], high - low)
    waits = np.unique(dependent[is_comm[deps] & ~is_comm[dependent]])
    awaited: dict[int, list[int]] = {}
    for t, d in zip(dependent.tolist(), deps.tolist(), strict=True):
        if is_comm[d]:
            awaited.setdefault(t, []).append(d)
    # (time, node, whether it issues a communication)
    events = [(max(int(issue[c]), 0), int(c), True) for c in (comms - low).tolist()]
    events += [(int(workload.start[low + t]), int(t), False) for t in waits.tolist()]
    chain = _Chain()
    node_of: dict[int, int] = {}
    previous, now = ABSENT, 0  # the last block, and when it ended
    pending: list[int] = []  # communication that the next block waits for

    def block(until: int) -> int:
        """Add the block that ends at `until`; it depends on the previous one and on `pending`."""
        nonlocal previous, now, pending
        if until <= now and not pending and previous != ABSENT:
            return previous
        node = chain.add(now, max(until, now), ABSENT)
        chain.edges += [(other, node) for other in ([previous] if previous != ABSENT else []) + pending]
        previous, now, pending = node, max(until, now), []
        return node

    for time, which, issues in sorted(events, key=lambda e: (e[0], e[1])):
        if issues:
            issuer = block(min(time, int(workload.start[low + which]))) if time > 0 or pending else previous
            node = chain.add(int(workload.start[low + which]), int(end[which]), low + which)
            node_of[which] = node
            waits_for = [issuer] if issuer != ABSENT else []
            waits_for += (node_of[d] for d in awaited.get(which, ()))
            chain.edges += ((other, node) for other in waits_for)
            continue
        block(min(int(free[which]) if free[which] >= 0 else now, time))
        pending += [node_of[d] for d in awaited[which]]
        now = max(now, time)
    finish = int(end[~is_comm].max(initial=0))
    if finish > now or pending or not chain.start:
        block(finish)
    return _sorted(chain)


def _latest(task: Int64, time: Int64, n: int) -> Int64:
    """The latest time of each of `n` tasks, ABSENT where it has none."""
    out = np.full(n, ABSENT, np.int64)
    np.maximum.at(out, task, time)
    return out


def _sorted(chain: _Chain) -> _Chain:
    """The chain with its nodes by start, in an order that the edges respect.

    Communication that starts at the same time keeps the order of the workload, because a simulator matches the transfers of
    the ranks by that order.
    """
    followers: list[list[int]] = [[] for _ in chain.start]
    missing = [0] * len(chain.start)
    for a, b in chain.edges:
        followers[a].append(b)
        missing[b] += 1
    ready = [(chain.start[i], chain.comm[i], i) for i, count in enumerate(missing) if not count]
    heapify(ready)
    order: list[int] = []
    while ready:
        node = heappop(ready)[2]
        order.append(node)
        for i in followers[node]:
            missing[i] -= 1
            if not missing[i]:
                heappush(ready, (chain.start[i], chain.comm[i], i))
    place = {node: i for i, node in enumerate(order)}
    out = _Chain()
    for node in order:
        out.add(chain.start[node], chain.end[node], chain.comm[node])
    out.edges = [(place[a], place[b]) for a, b in chain.edges]
    return out


def _renumbered(facts: Communication, of_comm: Int64) -> Communication:
    """The facts of the communication nodes, at the nodes' new numbers; of_comm: the old number of each new node."""
    where = np.flatnonzero(of_comm >= 0)
    rows = np.searchsorted(facts.node, of_comm[where])
    columns = {name: getattr(facts, name)[rows] for name in ("type", "size", "group", "peer", "tag", "kind")}
    return replace(facts, node=where, **columns)
