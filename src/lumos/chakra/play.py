"""Play a workload as ASTRA-sim does: when each node is issued and ends, and where ranks hang. Every verb asks this one player.

Each rank has three slots: one compute node on the device, one on the CPU and one communication (or request to remote
memory) run at a time, whatever their stream. Of several ready nodes the one with the smallest number is issued first. A
receive needs no slot. A send occupies its slot until its data has arrived and does not wait for the receiver. The i-th
collective that a rank issues in a group belongs together with the i-th of every other member; each member ends when its own
chunks have. A broadcast is work of its own rank. A node whose duration is unknown takes what the network makes of it.
"""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.chakra.network import Network, assumed_network, priced_as
from lumos.chakra.workload import MEMORY, Workload
from lumos.graph.lists import grouped, list_of
from lumos.trace.chakra.schema import CollectiveType, NodeType
from lumos.trace.table import ABSENT, Int64

if TYPE_CHECKING:
    from collections.abc import Sequence

#: The slots of a rank; receives have none, so that any number of them run.
_CPU, _DEVICE, _LINK, _NONE = _SLOTS = range(4)


class Played(NamedTuple):
    """end: int64[n] ns; ABSENT where a node never ran. duration: int64[n] ns; of a collective from its last member's start.
    turn: int64[n], in which order the nodes were issued. hung: nodes that were issued and never ended.

    mismatched: pairs of nodes in one collective whose kinds or sizes differ.
    """

    end: Int64
    duration: Int64
    turn: Int64
    hung: tuple[int, ...]
    mismatched: tuple[tuple[int, int], ...]


def play(workload: Workload, network: Network | None = None) -> Played:
    """Play a workload; a node whose duration is ABSENT takes what it costs on `network`, or on an assumed one.

    Nodes are numbered by their ids, else by their places. LumosError where the network's algorithms do not fit its ranks.
    """
    return _Player(workload, network or assumed_network(len(workload.ranks))).run()


def as_run(workload: Workload, network: Network) -> Workload:
    """The workload with the times that a simulator takes: none of communication, memory nodes and, in roofline mode, compute."""
    facts = workload.communication
    duration = workload.duration.copy()
    duration[facts.node[facts.type != CollectiveType.BROADCAST]] = ABSENT
    if network.memory is not None:
        duration[np.isin(workload.type, MEMORY)] = ABSENT
    if network.roofline:
        duration[of_roofline(workload)] = ABSENT
    return replace(workload, duration=duration)


def of_roofline(workload: Workload) -> Int64:
    """The compute nodes on devices whose operations or bytes are known: those that roofline mode prices."""
    known = (workload.operations != ABSENT) | (workload.bytes != ABSENT)
    return np.flatnonzero((workload.type == NodeType.COMP) & ~workload.on_cpu & known)


class _Player:
    def __init__(self, workload: Workload, network: Network) -> None:
        facts = workload.communication
        n = len(workload)
        self.workload, self.network = workload, network
        self.number = (np.arange(n) if workload.id is None else workload.id).tolist()
        self.rank, self.type = workload.rank_of().tolist(), workload.type.tolist()
        self.row = dict(zip(facts.node.tolist(), range(len(facts)), strict=True))
        self.kind, self.size = facts.type.tolist(), facts.size.tolist()
        self.group, self.peer, self.tag = facts.group.tolist(), facts.peer.tolist(), facts.tag.tolist()
        self.duration = workload.duration.tolist()
        links = np.isin(workload.type, (NodeType.SEND, NodeType.COLL)) | (np.isin(workload.type, MEMORY) & ~workload.on_cpu)
        sorts = (workload.type == NodeType.RECV, links, workload.on_cpu)
        self.slot = np.select(sorts, (_NONE, _LINK, _CPU), _DEVICE).tolist()
        self.waiting = np.diff(workload.dep_offset).tolist()
        followers_offset, order = grouped(workload.dep, n)
        self.followers = list_of(workload.dep_offset)[order].tolist()
        self.followers_offset = followers_offset.tolist()
        self.release = workload.release.tolist()
        self.start, self.end, self.lasted, self.turn = ([ABSENT] * n for _ in range(4))
        self.ready: list[list[list[tuple[int, int]]]] = [[[] for _ in _SLOTS] for _ in workload.ranks]  # by rank and slot
        self.busy = [[False] * len(_SLOTS) for _ in workload.ranks]
        self.events: list[tuple[int, int, int, int, bool]] = []
        self.tick = count()
        self.batch: dict[tuple[int, int], int] = {}  # a rank's own events of one time are handled together; messages arrive in between
        self.issued: dict[tuple[int, int], int] = {}
        self.met: dict[tuple[int, int], list[int]] = {}
        self.sent: dict[tuple[int, ...], deque[int]] = {}
        self.awaited: dict[tuple[int, ...], deque[int]] = {}
        self.free: dict[int, int] = {}  # when each remote memory has served its last request
        self.trees: dict[tuple[int, int], int] = {}
        self.known: dict[tuple[int, int, int, int, bytes], Int64] = {}
        self.mismatched: list[tuple[int, int]] = []

    def run(self) -> Played:
        for node, before in enumerate(self.waiting):
            if not before:
                self._make_ready(0, node)
        for rank in range(len(self.ready)):
            self._issue(0, rank)
        while self.events:
            now, _, _, node, done = heapq.heappop(self.events)
            if done:
                self._ended(now, node)
            else:
                self._make_ready(now, node)
            self._issue(now, self.rank[node])
            if done and self.type[node] == NodeType.SEND:
                self._deliver(now, node)
        hung = tuple(n for n, s in enumerate(self.start) if s != ABSENT and self.end[n] == ABSENT)
        end, lasted, turn = (np.array(column, np.int64) for column in (self.end, self.lasted, self.turn))
        return Played(end, lasted, turn, hung, tuple(self.mismatched))

    def _at(self, time: int, node: int, done: bool) -> None:
        tick = next(self.tick)
        message = done and self.type[node] in (NodeType.SEND, NodeType.RECV)
        batch = tick if message else self.batch.setdefault((self.rank[node], time), tick)
        heapq.heappush(self.events, (time, batch, tick, node, done))

    def _make_ready(self, now: int, node: int) -> None:
        if self.release[node] > now:
            self._at(self.release[node], node, False)
        else:
            heapq.heappush(self.ready[self.rank[node]][self.slot[node]], (self.number[node], node))

    def _issue(self, now: int, rank: int) -> None:
        """Start what may start on a rank: the ready node with the smallest number whose slot is free, and again."""
        ready, busy = self.ready[rank], self.busy[rank]
        while able := [(ready[slot][0], slot) for slot in _SLOTS if ready[slot] and not busy[slot]]:
            (_, node), slot = min(able)
            heapq.heappop(ready[slot])
            busy[slot] = slot != _NONE
            self.start[node], self.turn[node] = now, next(self.tick)
            if slot == _NONE:
                self._receive(now, node)
            elif self.type[node] == NodeType.COLL and self.kind[self.row[node]] != CollectiveType.BROADCAST:
                self._meet(node)
            else:
                duration = self._work(now, node)
                self._finish(now + duration, node, duration)

    def _receive(self, now: int, node: int) -> None:
        row = self.row[node]
        key = (self.peer[row], self.rank[node], self.tag[row], self.size[row])
        if self.sent.get(key):
            self._finish(max(now, self.sent[key].popleft()), node, 0)
        else:
            self.awaited.setdefault(key, deque()).append(node)

    def _work(self, now: int, node: int) -> int:
        """ns that a node which waits for no other rank takes: 1 where it is said to take none; of a request, with its wait for others."""
        kind, duration, work = self.type[node], self.duration[node], self.workload
        if kind in MEMORY and self.network.memory is not None and duration == ABSENT:
            memory, served = self.network.memory.place(self.rank[node]), self.network.memory.request(max(int(work.bytes[node]), 0))
            begin = max(now, self.free.get(memory, 0))
            self.free[memory] = begin + served
            return int(begin + served - now)
        if duration != ABSENT:
            return max(int(duration), 1)
        if kind == NodeType.SEND:
            row, ranks = self.row[node], work.ranks
            source, target = np.array([ranks[self.rank[node]]]), np.array([ranks[self.peer[row]]])
            return int(self.network.messages(max(self.size[row], 0), source, target)[0])
        if kind == NodeType.COLL or kind in MEMORY:
            return 1
        return self.network.compute(int(work.operations[node]), int(work.bytes[node]))

    def _meet(self, node: int) -> None:
        """Issue a rank's part of a collective; once every member has issued its part, it is known when each of them ends."""
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
        members = self.workload.groups[group]
        if len(arrived) < len(members):
            return
        last = max(self.start[member] for member in arrived)
        if all(self.duration[member] != ABSENT for member in arrived):
            ends = [last + self.duration[member] for member in arrived]
        else:
            arrived.sort(key=lambda member: self.rank[member])
            ends = self._collective(arrived, row, members)
        for member, end in zip(arrived, ends, strict=True):
            if end != ABSENT:
                self._finish(end, member, end - last)

    def _collective(self, nodes: Sequence[int], row: int, members: Sequence[int]) -> list[int]:
        begin = np.array([self.start[node] for node in nodes], np.int64)
        first = begin.min()
        kind, size, group = self.kind[row], max(self.size[row], 0), self.group[row]
        turn = self.trees.get((group, kind), 0)
        self.trees[group, kind] = turn + sum(1 for _ in self.network.parts(priced_as(kind), size))
        key = (kind, size, group, turn % 2, (begin - first).tobytes())
        if key not in self.known:
            self.known[key] = self.network.ends(kind, size, [self.workload.ranks[m] for m in members], begin - first, turn % 2)
        ends: list[int] = np.where(self.known[key] == ABSENT, ABSENT, self.known[key] + first).tolist()
        return ends

    def _finish(self, time: int, node: int, duration: int) -> None:
        self.end[node], self.lasted[node] = time, duration
        self._at(time, node, True)

    def _ended(self, now: int, node: int) -> None:
        self.busy[self.rank[node]][self.slot[node]] = False
        for follower in self.followers[self.followers_offset[node] : self.followers_offset[node + 1]]:
            self.waiting[follower] -= 1
            if not self.waiting[follower]:
                self._make_ready(now, follower)

    def _deliver(self, now: int, send: int) -> None:
        """End the receive that awaits a message which has arrived, if there is one."""
        row = self.row[send]
        key = (self.rank[send], self.peer[row], self.tag[row], self.size[row])
        if not self.awaited.get(key):
            self.sent.setdefault(key, deque()).append(now)
            return
        node = self.awaited[key].popleft()
        self.end[node], self.lasted[node] = now, 0
        self._ended(now, node)
        self._issue(now, self.rank[node])
