"""Simulate a workload as ASTRA-sim does, to find the order in which nodes are issued and where ranks hang.

Each rank has three slots: one compute node on the device, one on the CPU and one communication run at a time, whatever
their stream. Of several ready nodes the one with the smallest number is issued first. A receive needs no slot. A send
occupies its slot until its data has arrived and does not wait for the receiver. The i-th collective that a rank issues in
a group belongs together with the i-th of every other member.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING

import numpy as np

from lumos.graph.lists import grouped, list_of
from lumos.trace.chakra.schema import NodeType
from lumos.trace.table import ABSENT, Int64

if TYPE_CHECKING:
    from lumos.chakra.workload import Workload

_CPU, _DEVICE, _LINK = 0, 1, 2


@dataclass(frozen=True, slots=True, eq=False)
class Played:
    """start, end: int64[n] ns; ABSENT where a node never ran. hung: nodes that were issued and never ended.

    mismatched: pairs of nodes in one collective whose kinds or sizes differ.
    """

    start: Int64
    end: Int64
    hung: tuple[int, ...]
    mismatched: tuple[tuple[int, int], ...]


def play(workload: Workload, duration: Int64, number: Int64) -> Played:
    """Simulate a workload with these durations (int64[n] ns, none ABSENT). number: int64[n]; the smallest ready one goes first."""
    return _Player(workload, duration, number).run()


class _Player:
    def __init__(self, workload: Workload, duration: Int64, number: Int64) -> None:
        facts = workload.communication
        n = len(workload)
        self.duration, self.number = duration.tolist(), number.tolist()
        self.rank, self.type = workload.rank_of().tolist(), workload.type.tolist()
        self.row = dict(zip(facts.node.tolist(), range(len(facts)), strict=True))
        self.kind, self.size = facts.type.tolist(), facts.size.tolist()
        self.group, self.peer, self.tag = facts.group.tolist(), facts.peer.tolist(), facts.tag.tolist()
        self.members = [len(g) for g in workload.groups]
        self.on_cpu = workload.on_cpu.tolist()
        self.waiting = np.diff(workload.dep_offset).tolist()
        followers_offset, order = grouped(workload.dep, n)
        self.followers = list_of(workload.dep_offset)[order].tolist()
        self.followers_offset = followers_offset.tolist()
        self.release = workload.release.tolist()
        self.start, self.end = [ABSENT] * n, [ABSENT] * n
        self.ready: list[list[list[tuple[int, int]]]] = [[[], [], []] for _ in workload.ranks]  # by rank and slot
        self.busy = [[False] * 3 for _ in workload.ranks]
        self.events: list[tuple[int, int, int, bool]] = []
        self.tick = count()
        self.issued: dict[tuple[int, int], int] = {}
        self.met: dict[tuple[int, int], list[int]] = {}
        self.sent: dict[tuple[int, ...], list[int]] = {}
        self.awaited: dict[tuple[int, ...], list[int]] = {}
        self.mismatched: list[tuple[int, int]] = []

    def run(self) -> Played:
        for node, before in enumerate(self.waiting):
            if not before:
                self._at(max(self.release[node], 0), node, False)
        while self.events:
            now = self.events[0][0]
            touched = set()
            while self.events and self.events[0][0] == now:  # handle all events of this time before any slot is filled
                _, _, node, done = heapq.heappop(self.events)
                touched.add(self.rank[node])
                (self._ended if done else self._make_ready)(now, node)
            for rank in touched:
                for slot in (_CPU, _DEVICE, _LINK):
                    self._fill(now, rank, slot)
        hung = tuple(n for n, s in enumerate(self.start) if s != ABSENT and self.end[n] == ABSENT)
        return Played(np.array(self.start, np.int64), np.array(self.end, np.int64), hung, tuple(self.mismatched))

    def _at(self, time: int, node: int, done: bool) -> None:
        heapq.heappush(self.events, (time, next(self.tick), node, done))

    def _make_ready(self, now: int, node: int) -> None:
        kind = self.type[node]
        if kind == NodeType.RECV:
            self.start[node] = now
            row = self.row[node]
            key = (self.peer[row], self.rank[node], self.tag[row], self.size[row])
            if self.sent.get(key):
                self._finish(max(now, self.sent[key].pop(0)), node)
            else:
                self.awaited.setdefault(key, []).append(node)
            return
        slot = _LINK if kind in (NodeType.SEND, NodeType.COLL) else _CPU if self.on_cpu[node] else _DEVICE
        heapq.heappush(self.ready[self.rank[node]][slot], (self.number[node], node))

    def _fill(self, now: int, rank: int, slot: int) -> None:
        if self.busy[rank][slot] or not self.ready[rank][slot]:
            return
        node = heapq.heappop(self.ready[rank][slot])[1]
        self.busy[rank][slot] = True
        self.start[node] = now
        if self.type[node] == NodeType.COLL:
            self._meet(now, node)
        else:
            self._finish(now + self.duration[node], node)

    def _meet(self, now: int, node: int) -> None:
        """Issue a rank's part of a collective; the transfer begins once every member has issued its part."""
        row, rank = self.row[node], self.rank[node]
        group = self.group[row]
        turn = self.issued.get((group, rank), 0)
        self.issued[group, rank] = turn + 1
        arrived = self.met.setdefault((group, turn), [])
        if arrived:
            first = self.row[arrived[0]]
            if (self.kind[first], self.size[first]) != (self.kind[row], self.size[row]):
                self.mismatched.append((arrived[0], node))
        arrived.append(node)
        if len(arrived) == self.members[group]:
            for member in arrived:
                self._finish(now + self.duration[member], member)

    def _finish(self, time: int, node: int) -> None:
        self.end[node] = time
        self._at(time, node, True)

    def _ended(self, now: int, node: int) -> None:
        kind, rank = self.type[node], self.rank[node]
        if kind != NodeType.RECV:
            slot = _LINK if kind in (NodeType.SEND, NodeType.COLL) else _CPU if self.on_cpu[node] else _DEVICE
            self.busy[rank][slot] = False
        if kind == NodeType.SEND:
            row = self.row[node]
            key = (rank, self.peer[row], self.tag[row], self.size[row])
            if self.awaited.get(key):
                self._finish(now, self.awaited[key].pop(0))
            else:
                self.sent.setdefault(key, []).append(now)
        for follower in self.followers[self.followers_offset[node] : self.followers_offset[node + 1]]:
            self.waiting[follower] -= 1
            if not self.waiting[follower]:
                if self.release[follower] > now:
                    self._at(self.release[follower], follower, False)
                else:
                    self._make_ready(now, follower)
