"""What messages, collectives, compute and memory cost: the model of ASTRA-sim's congestion-unaware back-end.

A network has one to several dimensions, the innermost first, along which ranks are numbered. A message takes n / bandwidth plus the latency
of its hops, whatever else is on the links, rounded down to whole nanoseconds, in the first dimension in which its two ranks differ.

A collective is cut into chunks. Each goes through one phase for every dimension. On each rank a dimension works on as many chunks at a time
as the system file says, in the order in which they reach it; ranks begin a phase when they are ready for it, and end it when their own part
is done. An all-reduce scatters along the inner dimensions, reduces along the outermost one, and gathers on the way back; an all-gather
begins at the outermost dimension, the others at the innermost. A group that is not all ranks is one line of its members.

Source: ASTRA-sim (github.com/astra-sim/astra-sim, and its analytical network); `validation/chakra.py` compares the two.
"""

from __future__ import annotations

import heapq
from collections import Counter, deque
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import count
from math import prod
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.chakra.algorithms import Algorithm, Chunk, Endpoint, Implementation, after, ends
from lumos.chakra.collectives import LOWERED, chakra_kind
from lumos.errors import LumosError
from lumos.trace.chakra.schema import CollectiveType
from lumos.trace.table import ABSENT

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from lumos.trace.table import Int64

#: Bytes per ns of 1 GiB/s, in which networks are given.
GIB = 2**30 / 1e9
#: ns that a member of a group that is not all ranks takes before it sends and acts, whatever the endpoint delay.
GROUP_DELAY = 10


class Topology(StrEnum):
    """How the ranks of one dimension are joined."""

    RING = "Ring"
    FULLY_CONNECTED = "FullyConnected"
    SWITCH = "Switch"


@dataclass(frozen=True, slots=True)
class Dimension:
    """One dimension of a network. npus: ranks along it. bandwidth: GiB/s of a link. latency: ns of a hop."""

    npus: int
    bandwidth: float
    latency: float
    topology: Topology = Topology.SWITCH

    def messages(self, nbytes: float, distance: Int64) -> Int64:
        """ns that messages of `nbytes` take over so many places: a switch has two hops, a ring as many as the shorter way has places."""
        hops: Int64 = np.full(distance.shape, 2 if self.topology is Topology.SWITCH else 1)
        if self.topology is Topology.RING:
            hops = np.minimum(distance % self.npus, -distance % self.npus)
        return (hops * self.latency + nbytes / (self.bandwidth * GIB)).astype(np.int64)


class RemoteKind(StrEnum):
    """Which ranks share a remote memory, which serves one request after another."""

    NONE = "NO_MEMORY_EXPANSION"
    RANK = "PER_NPU_MEMORY_EXPANSION"
    NODE = "PER_NODE_MEMORY_EXPANSION"
    ALL = "MEMORY_POOL"


@dataclass(frozen=True, slots=True)
class RemoteMemory:
    """A memory expansion. latency: ns of a request. bandwidth: GB/s. node: ranks of a node, where they share it."""

    kind: RemoteKind
    latency: int = 0
    bandwidth: float = 1.0
    node: int = 1

    def place(self, rank: int) -> int:
        """The number of the memory that a rank uses."""
        return {RemoteKind.RANK: rank, RemoteKind.NODE: rank // self.node}.get(self.kind, 0)

    def request(self, nbytes: int) -> int:
        """ns of a request."""
        return self.latency + int(nbytes / self.bandwidth)


class NetworkPhase(NamedTuple):
    """What one chunk does in one dimension. place: of the dimension. how: the algorithm. lines: for each rank the number of its line, and
    its place in it; size: ranks of a line."""

    place: int
    kind: CollectiveType
    how: Implementation
    line: Sequence[int]
    spot: Sequence[int]
    size: int


@dataclass(frozen=True, slots=True)
class Network:
    """dimensions: the innermost first. implementations: for each kind one a dimension; ring where a kind is absent. endpoint: ns of delay
    at the end of each step. chunks: parts of a collective. active: chunks that a dimension works on at a time. local: GB/s of local memory.
    peak: TFLOP/s. hierarchical: whether an all-reduce scatters along inner dimensions, instead of reducing along each. roofline: whether
    compute takes what peak and local allow, also where a set says how long it took. memory: the memory expansion.
    """

    dimensions: tuple[Dimension, ...]
    implementations: Mapping[CollectiveType, Sequence[Implementation]] = field(default_factory=dict)
    endpoint: int = 10
    chunks: int = 4
    active: int = 1
    local: float = 1600.0
    peak: float = 900.0
    hierarchical: bool = True
    roofline: bool = False
    memory: RemoteMemory | None = None

    @property
    def npus(self) -> int:
        """How many ranks the network joins."""
        return prod(d.npus for d in self.dimensions)

    def messages(self, nbytes: float, source: Int64, target: Int64) -> Int64:
        """ns that messages take between ranks, each in the first dimension in which the two differ."""
        out = self.dimensions[-1].messages(nbytes, np.ones(source.shape, np.int64))  # of a set with more ranks: the outermost links
        first = np.ones(source.shape, bool)
        for dimension in self.dimensions:
            distance = target % dimension.npus - source % dimension.npus
            here = first & (distance != 0)
            out[here] = dimension.messages(nbytes, distance[here])
            first &= distance == 0
            source, target = source // dimension.npus, target // dimension.npus
        return out

    def collective(self, kind: int, nbytes: int, members: Sequence[int]) -> int:
        """ns that a collective of `nbytes` input bytes a rank takes where all begin together. LumosError: the algorithm does not fit."""
        return int(self.ends(kind, nbytes, members, np.zeros(len(members), np.int64)).max(initial=0))

    def ends(self, kind: int, nbytes: int, members: Sequence[int], begin: Int64, turn: int = 0) -> Int64:
        """When each member has done with a collective, ns, where it began at `begin`; ABSENT where it never has, because ranks began the
        chunks of a dimension in other orders and wait for one another. turn: how many chunks it has had of that kind before.

        LumosError: the algorithm does not fit its ranks.
        """
        if len(members) < 2 or nbytes <= 0:
            return np.full(len(begin), begin.max(initial=0), np.int64)
        priced = priced_as(kind)
        group = len(members) != self.npus
        end = Endpoint(GROUP_DELAY if group else self.endpoint, self.local, group)
        ranks = np.array(members, np.int64)
        return _Run(self, self._phases(priced, ranks, group), ranks, end).ends([*self.parts(priced, nbytes)], begin, turn)

    def parts(self, kind: CollectiveType, nbytes: int) -> Iterator[int]:
        """Bytes of each chunk: at least one byte for each rank, except in an all-gather; what is left over is a chunk of its own."""
        chunk = nbytes // self.chunks
        if kind is not CollectiveType.ALL_GATHER and chunk < self.npus:
            nbytes, chunk = self.chunks * self.npus, self.npus
        chunk = max(chunk, 1)
        while nbytes > 0:
            yield min(chunk, nbytes)
            nbytes -= chunk

    def _phases(self, kind: CollectiveType, ranks: Int64, group: bool) -> list[NetworkPhase]:
        """What each chunk does, one dimension after the other."""
        plan = self.implementations.get(kind) or [Implementation()] * len(self.dimensions)
        if group:
            if plan[0].algorithm is Algorithm.DOUBLE_BINARY_TREE:
                why = f"a group of {len(ranks)} of {self.npus} ranks has no tree"
                raise LumosError(f"{why}; name another algorithm in the system file")
            return [NetworkPhase(0, kind, plan[0], [0] * len(ranks), range(len(ranks)), len(ranks))]
        used, stride = [], 1
        for number, (dimension, how) in enumerate(zip(self.dimensions, plan, strict=False)):
            whole = how.algorithm.startswith("one")
            stride, npus = (1, self.npus) if whole else (stride, dimension.npus)
            if npus > 1:
                line = ranks // (stride * npus) * stride + ranks % stride
                used.append(NetworkPhase(number, kind, how, line.tolist(), (ranks // stride % npus).tolist(), npus))
            if whole:
                break
            stride *= npus
        if kind is CollectiveType.ALL_GATHER:
            return used[::-1]
        if kind is not CollectiveType.ALL_REDUCE or not self.hierarchical:
            return used
        inner = used[:-1]
        scatter = [phase._replace(kind=CollectiveType.REDUCE_SCATTER) for phase in inner]
        gather = [phase._replace(kind=CollectiveType.ALL_GATHER) for phase in reversed(inner)]
        return [*scatter, *used[-1:], *gather]

    def compute(self, operations: int, nbytes: int) -> int:
        """ns of a kernel by the roofline, in the simulator's own order of operations; where one of the two is unknown, by the other."""
        if operations > 0 and nbytes > 0:
            rate = min(self.local * 1e9 * (operations / nbytes), self.peak * 1e12)
            return int(operations / rate * 1e9)
        return int(max(max(operations, 0) / (self.peak * 1e3), max(nbytes, 0) / self.local))


def priced_as(kind: int) -> CollectiveType:
    """The kind among the simulator's four whose cost a collective has."""
    return LOWERED[chakra_kind(kind)]


def assumed_network(ranks: int) -> Network:
    """The network that stands where a set names none: a switch of 50 GiB/s with 500 ns a hop."""
    return Network((Dimension(max(ranks, 2), 50.0, 500.0),))


class _Run:
    """One collective on its ranks: every chunk of every rank through every phase."""

    def __init__(self, network: Network, phases: Sequence[NetworkPhase], ranks: Int64, end: Endpoint) -> None:
        self.network, self.phases, self.ranks, self.end = network, phases, ranks, end
        self.sizes = [Counter(phase.line) for phase in phases]  # how many ranks are on each line
        self.known: dict[tuple[int, int, int, bytes], Int64] = {}

    def ends(self, chunks: Sequence[int], begin: Int64, turn: int) -> Int64:
        self.turn, self.tick = turn, count()
        self.nbytes = [self._sizes(chunk) for chunk in chunks]
        places = {phase.place for phase in self.phases}
        self.queue: list[dict[int, deque[tuple[int, int]]]] = [{dimension: deque() for dimension in places} for _ in self.ranks]
        self.running = [dict.fromkeys(places, 0) for _ in self.ranks]
        self.begun: dict[tuple[int, int, int], dict[int, int]] = {}
        self.events: list[tuple[int, int, int, int, int]] = []  # time, turn, rank, chunk, the phase that it comes to
        for rank, time in enumerate(begin.tolist()):
            for chunk in range(len(chunks)):
                heapq.heappush(self.events, (time, next(self.tick), rank, chunk, 0))
        done, left = begin.copy(), np.full(len(begin), len(chunks))
        while self.events:
            now, _, rank, chunk, phase = heapq.heappop(self.events)
            if phase < len(self.phases):
                dimension = self.phases[phase].place
                self.queue[rank][dimension].append((chunk, phase))
                self._fill(now, rank, dimension)
            else:
                done[rank] = now
                left[rank] -= 1
            if phase:
                dimension = self.phases[phase - 1].place
                self.running[rank][dimension] -= 1
                self._fill(now, rank, dimension)
        return np.where(left, ABSENT, done)

    def _sizes(self, nbytes: int) -> list[int]:
        """Bytes of a chunk at the beginning of each phase."""
        out = []
        for phase in self.phases:
            out.append(nbytes)
            nbytes = after(phase.how, Chunk(phase.kind, nbytes), phase.size)
        return out

    def _fill(self, now: int, rank: int, dimension: int) -> None:
        """Begin the chunks that wait for a dimension of a rank, as far as there is room."""
        while self.queue[rank][dimension] and self.running[rank][dimension] < self.network.active:
            chunk, at = self.queue[rank][dimension].popleft()
            self.running[rank][dimension] += 1
            line = self.phases[at].line[rank]
            begun = self.begun.setdefault((chunk, at, line), {})
            begun[rank] = now
            if len(begun) == self.sizes[at][line]:
                members = sorted(begun, key=self.phases[at].spot.__getitem__)
                for member, time in zip(members, self._line(chunk, at, members, begun), strict=True):
                    heapq.heappush(self.events, (time, next(self.tick), member, chunk, at + 1))

    def _line(self, chunk: int, at: int, members: Sequence[int], begun: Mapping[int, int]) -> list[int]:
        """When each rank of a line ends a phase. Lines of one dimension are alike."""
        phase = self.phases[at]
        begin = np.array([begun[rank] for rank in members], np.int64)
        first = begin.min()
        turn = (self.turn + chunk) % 2 if phase.how.algorithm is Algorithm.DOUBLE_BINARY_TREE else 0
        key = (at, self.nbytes[chunk][at], turn, (begin - first).tobytes())
        if key not in self.known:
            ranks = self.ranks[members]
            self.known[key] = ends(
                phase.how,
                Chunk(phase.kind, self.nbytes[chunk][at], turn),
                lambda nbytes, source, target: self.network.messages(nbytes, ranks[source], ranks[target]),
                begin - first,
                self.end,
            )
        finished: list[int] = (self.known[key] + first).tolist()
        return finished
