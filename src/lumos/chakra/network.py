"""What communication and compute cost where a set does not say: the model of ASTRA-sim's congestion-unaware back-end.

A collective is cut into chunks. Each chunk goes through one phase for every dimension of the network, and each dimension
works on one chunk at a time (or on as many as the system file says), in the order in which chunks arrive. An all-reduce
scatters along the inner dimensions, reduces along the outermost one, and gathers on the way back; an all-gather begins at
the outermost dimension, the others at the innermost. A group that is not all ranks is a ring over its members.

Source: ASTRA-sim (github.com/astra-sim/astra-sim). `validation/chakra.py` compares the model with what the simulator
answers to sets of one collective. Limits: collectives that run at the same time do not share the bandwidth of a link; a
tree within several dimensions is taken as if all ranks ended with the last.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.chakra.algorithms import Algorithm, Endpoint, after, direct, double_binary_tree, halving_doubling, ring, uneven_ring
from lumos.chakra.links import Dimension, Links
from lumos.diagnostics import Diagnostic
from lumos.errors import LumosError
from lumos.trace.chakra.schema import CollectiveType, NodeType
from lumos.trace.table import ABSENT, Int64

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lumos.chakra.workload import Workload

#: ns that a member of a group that is not all ranks takes before it sends and acts, whatever the endpoint delay.
GROUP_DELAY = 10

#: The four kinds that the simulator runs, and those whose cost stands for the others.
_PRICED_AS = {
    CollectiveType.REDUCE: CollectiveType.REDUCE_SCATTER,
    CollectiveType.REDUCE_SCATTER_BLOCK: CollectiveType.REDUCE_SCATTER,
    CollectiveType.BARRIER: CollectiveType.ALL_REDUCE,
    CollectiveType.BROADCAST: CollectiveType.ALL_TO_ALL,
    CollectiveType.SCATTER: CollectiveType.ALL_TO_ALL,
    CollectiveType.GATHER: CollectiveType.ALL_GATHER,
}


class Implementation(NamedTuple):
    """An algorithm for one dimension. window: how many peers a direct one sends to at a time, None for all."""

    algorithm: Algorithm = Algorithm.RING
    window: int | None = None


class NetworkPhase(NamedTuple):
    """What one chunk does in one dimension. place: of the dimension."""

    place: int
    kind: CollectiveType
    implementation: Implementation


@dataclass(frozen=True, slots=True)
class Network:
    """links: the network. implementations: for each kind one a dimension; ring where a kind is absent. endpoint: ns of delay at the end of
    each step. chunks: parts of a collective. active: chunks that a dimension works on at a time. local: GB/s of local memory.
    peak: TFLOP/s. hierarchical: whether an all-reduce scatters along inner dimensions, instead of reducing along each. roofline: whether
    compute takes what peak and local allow, also where a set says how long it took.
    """

    links: Links
    implementations: Mapping[CollectiveType, Sequence[Implementation]] = field(default_factory=dict)
    endpoint: int = 10
    chunks: int = 4
    active: int = 1
    local: float = 1600.0
    peak: float = 900.0
    hierarchical: bool = True
    roofline: bool = False

    def collective(self, kind: int, nbytes: int, members: Sequence[int]) -> int:
        """ns that a collective of `nbytes` input bytes a rank takes over these ranks. LumosError: the algorithm does not fit."""
        if len(members) < 2 or nbytes <= 0:
            return 0
        priced = CollectiveType(kind) if kind in list(CollectiveType) else CollectiveType.ALL_REDUCE
        priced = _PRICED_AS.get(priced, priced)
        chunk, chunks = self._chunks(priced, nbytes)
        if len(members) != self.links.npus:
            return self._group(priced, chunk, chunks, members)
        dimensions = self._dimensions(priced)
        phases = self._phases(priced, dimensions)
        end = Endpoint(self.endpoint, self.local)
        if len(phases) == 1 and phases[0].implementation.algorithm is Algorithm.DOUBLE_BINARY_TREE:
            dimension = dimensions[0][0]
            return double_binary_tree(chunk, chunks, _power_of_two(dimension), dimension.message, end)
        times = []
        for phase in phases:
            times.append(_phase_time(phase, dimensions[phase.place][0], chunk, end))
            if phase.implementation.algorithm is not Algorithm.DOUBLE_BINARY_TREE:
                chunk = after(phase.kind, chunk, dimensions[phase.place][0].npus)
        return _pipelined(chunks, [phase.place for phase in phases], times, self.active)

    def _chunks(self, kind: CollectiveType, nbytes: int) -> tuple[int, int]:
        """Bytes of a chunk, and how many there are: at least one byte for each rank, except in an all-gather."""
        chunk = nbytes // self.chunks
        if kind is not CollectiveType.ALL_GATHER and chunk < self.links.npus:
            return self.links.npus, self.chunks
        chunk = max(chunk, 1)
        return chunk, -(-nbytes // chunk)

    def _group(self, kind: CollectiveType, chunk: int, chunks: int, members: Sequence[int]) -> int:
        """ns of a ring over ranks that are not all of the network."""
        end = Endpoint(GROUP_DELAY, self.local)
        pairs = list(zip(members, (*members[1:], members[0]), strict=True))
        if len({self.links.message(n, *pair) for pair in pairs for n in (0, chunk)}) <= 2:
            return chunks * ring(kind, chunk, len(members), lambda n, _: self.links.message(n, *pairs[0]), end)
        steps = [lambda n, a=a, b=b: self.links.message(n, a, b) for a, b in pairs]
        return uneven_ring(kind, chunk, chunks, steps, end)

    def _dimensions(self, kind: CollectiveType) -> list[tuple[Dimension, Implementation]]:
        """The dimensions along which a collective of all ranks moves, each with its algorithm. Dimensions without one are left out."""
        plan = self.implementations.get(kind) or [Implementation()] * len(self.links.dimensions)
        out: list[tuple[Dimension, Implementation]] = []
        for dimension, implementation in zip(self.links.dimensions, plan, strict=False):
            if implementation.algorithm.joins_dimensions:
                whole = Dimension(self.links.npus, dimension.bandwidth, dimension.latency, dimension.topology)
                return [*out, (whole, implementation)]
            out.append((dimension, implementation))
        return out

    def _phases(self, kind: CollectiveType, dimensions: Sequence[tuple[Dimension, Implementation]]) -> list[NetworkPhase]:
        used = [NetworkPhase(place, kind, one) for place, (dimension, one) in enumerate(dimensions) if dimension.npus > 1]
        if kind is CollectiveType.ALL_GATHER:
            return used[::-1]
        if kind is not CollectiveType.ALL_REDUCE or not self.hierarchical:
            return used
        inner = used[:-1]
        scatter = [phase._replace(kind=CollectiveType.REDUCE_SCATTER) for phase in inner]
        gather = [phase._replace(kind=CollectiveType.ALL_GATHER) for phase in reversed(inner)]
        return [*scatter, *used[-1:], *gather]

    def compute(self, operations: float, nbytes: float) -> int:
        """ns of a kernel by the roofline: the slower of its operations and its bytes."""
        return int(max(max(operations, 0) / (self.peak * 1e3), max(nbytes, 0) / self.local))


def assumed_network(ranks: int) -> Network:
    """The network that stands where a set names none: a switch of 50 GiB/s with 500 ns a hop."""
    return Network(Links((Dimension(max(ranks, 2), 50.0, 500.0),)))


def _phase_time(phase: NetworkPhase, dimension: Dimension, chunk: int, end: Endpoint) -> int:
    """ns of one chunk in one dimension."""
    algorithm, window = phase.implementation
    if algorithm is Algorithm.DOUBLE_BINARY_TREE:
        return double_binary_tree(chunk, 1, _power_of_two(dimension), dimension.message, end)
    if algorithm in (Algorithm.HALVING_DOUBLING, Algorithm.ONE_HALVING_DOUBLING):
        if phase.kind is CollectiveType.ALL_TO_ALL:
            raise LumosError(f"{algorithm} moves no all-to-all; name another all-to-all-implementation in the system file")
        return halving_doubling(phase.kind, chunk, _power_of_two(dimension), dimension.message, end)
    if algorithm in (Algorithm.DIRECT, Algorithm.ONE_DIRECT):
        return direct(phase.kind, chunk, dimension.npus, dimension.message, end, window)
    return ring(phase.kind, chunk, dimension.npus, dimension.message, end)


def _power_of_two(dimension: Dimension) -> int:
    if dimension.npus & (dimension.npus - 1):
        raise LumosError(f"trees and halving need a power of two of ranks, not {dimension.npus}; name ring or direct in the system file")
    return dimension.npus


def _pipelined(chunks: int, places: Sequence[int], times: Sequence[int], active: int) -> int:
    """ns until all chunks have gone through all phases, where each dimension takes `active` chunks at a time, first come first served."""
    free = {place: [0] * active for place in places}
    number = count()
    waiting = [(0, next(number), 0) for _ in range(chunks)]  # (when the chunk is ready, turn, its next phase)
    last = 0
    while waiting:
        ready, _, phase = heapq.heappop(waiting)
        if phase == len(places):
            last = max(last, ready)
            continue
        slot = heapq.heappop(free[places[phase]])
        end = max(ready, slot) + times[phase]
        heapq.heappush(free[places[phase]], end)
        heapq.heappush(waiting, (end, next(number), phase + 1))
    return last


def durations(workload: Workload, network: Network | None) -> tuple[Int64, list[Diagnostic]]:
    """The duration of every node, from the cost model where the set gives none; and diagnostics that say so.

    LumosError where the network's algorithms do not fit its ranks.
    """
    out = workload.duration.copy()
    missing = np.flatnonzero(out == ABSENT)
    if not len(missing):
        return out, []
    net = network or assumed_network(len(workload.ranks))
    facts = workload.communication
    row_of = dict(zip(facts.node.tolist(), range(len(facts)), strict=True))
    rank_of = workload.rank_of()
    memo: dict[tuple[int, ...], int] = {}
    for node in missing.tolist():
        row = row_of.get(node)
        if row is None:
            out[node] = net.compute(int(workload.operations[node]), int(workload.bytes[node]))
        elif workload.type[node] == NodeType.RECV:
            out[node] = 0  # the send takes the time; the receive ends when the data has arrived
        else:
            own = int(rank_of[node]) if workload.type[node] == NodeType.SEND else ABSENT
            key = (own, int(facts.type[row]), max(int(facts.size[row]), 0), int(facts.group[row]), int(facts.peer[row]))
            if key not in memo:
                memo[key] = _communication_time(workload, net, *key)
            out[node] = memo[key]
    return out, [Diagnostic("costed", f"{len(missing)} nodes have no duration and were costed {_how(net, assumed=network is None)}")]


def _communication_time(workload: Workload, net: Network, own: int, kind: int, nbytes: int, group: int, peer: int) -> int:
    if own != ABSENT:
        return net.links.message(nbytes, workload.ranks[own], workload.ranks[peer])
    return net.collective(kind, nbytes, [workload.ranks[place] for place in workload.groups[group]])


def _how(net: Network, *, assumed: bool) -> str:
    first = net.links.dimensions[0]
    return f"on an assumed network ({first.bandwidth:g} GiB/s, {first.latency:g} ns a hop)" if assumed else "from the set's network file"
