"""Collectives of ranks that arrive unevenly, against a second implementation that knows the rules alone: random ones, drawn by seed.

python -m validation.chakra_uneven --seed N [--cases 300]        prints how many ranks' ends agree

Groups and whole networks of one dimension with a ring, direct messages or halving and doubling, one to four chunks at a time. The second
implementation asks backwards: a rank has done a step when it has done the step before and the message of that step has arrived.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from functools import cache

import numpy as np

from lumos.chakra.algorithms import Algorithm, Implementation
from lumos.chakra.network import GIB, GROUP_DELAY, Dimension, Network, Topology
from lumos.trace.chakra.schema import CollectiveType

KINDS = (CollectiveType.ALL_REDUCE, CollectiveType.ALL_GATHER, CollectiveType.REDUCE_SCATTER, CollectiveType.ALL_TO_ALL)


@dataclass(frozen=True)
class Case:
    """One collective. begin: when each member arrives, ns."""

    network: Network
    kind: CollectiveType
    nbytes: int
    members: tuple[int, ...]
    begin: tuple[int, ...]

    @property
    def algorithm(self) -> Algorithm:
        return self.network.implementations[self.kind][0].algorithm


def drawn(rng: np.random.Generator) -> Case:
    """A random case. Sizes divide, so that all chunks are alike."""
    npus = int(rng.choice([4, 8, 16]))
    size = npus if rng.random() < 0.4 else int(rng.choice([2, 4, 8])) if npus > 8 else int(rng.choice([2, 4]))
    members = tuple(sorted(rng.choice(npus, min(size, npus), replace=False).tolist()))
    kind = KINDS[int(rng.integers(4))]
    known = [Algorithm.RING]
    if kind is not CollectiveType.ALL_REDUCE:
        known.append(Algorithm.DIRECT)
    if kind is not CollectiveType.ALL_TO_ALL:
        known.append(Algorithm.HALVING_DOUBLING)
    how = Implementation(known[int(rng.integers(len(known)))])
    topology = list(Topology)[int(rng.integers(3))]
    line = Dimension(npus, float(rng.integers(20, 300)), float(rng.integers(100, 2000)), topology)
    chunks = int(rng.integers(1, 9))
    network = Network(
        (line,),
        {kind: (how,)},
        endpoint=int(rng.integers(0, 200)),
        chunks=chunks,
        active=int(rng.integers(1, 5)),
        local=float(rng.integers(100, 2000)),
    )
    spread = int(rng.choice([0, 1000, 50_000, 2_000_000]))
    begin = tuple((rng.integers(0, spread + 1, len(members))).tolist())
    return Case(network, kind, chunks * npus * int(rng.integers(64, 1 << 16)), members, begin)


def reference(case: Case) -> list[int]:
    """When each member has done with the last chunk."""
    net, ranks = case.network, len(case.members)
    delay = net.endpoint if ranks == net.npus else GROUP_DELAY
    chunk = case.nbytes // net.chunks
    gathers, reduces = case.kind is CollectiveType.ALL_GATHER, case.kind in (CollectiveType.ALL_REDUCE, CollectiveType.REDUCE_SCATTER)
    share = chunk if gathers else chunk // ranks
    line = net.dimensions[0]

    def message(nbytes: int, a: int, b: int) -> int:
        apart = (case.members[b] - case.members[a]) % line.npus
        hops = {Topology.SWITCH: 2, Topology.FULLY_CONNECTED: 1, Topology.RING: min(apart, line.npus - apart)}[line.topology]
        return int(hops * line.latency + nbytes / (line.bandwidth * GIB))

    def add(nbytes: int) -> int:
        return 3 * int(nbytes / net.local)

    @cache
    def starts(rank: int, number: int) -> int:
        before = ends(rank, number - net.active) if number >= net.active else 0
        return max(case.begin[rank], before) + delay

    @cache
    def around(rank: int, number: int, step: int) -> int:
        if step == 0:
            return starts(rank, number)
        before = (rank - 1) % ranks
        arrival = around(before, number, step - 1) + message(share, before, rank)
        return max(around(rank, number, step - 1), arrival) + delay + (add(share) if reduces and step < ranks else 0)

    levels = ranks.bit_length() - 1
    down = [(chunk >> (level + 1), 1 << level) for level in range(levels)]
    up = [(chunk << level, ranks >> (level + 1)) for level in range(levels)]
    exchanges = up if gathers else down + down[::-1] if case.kind is CollectiveType.ALL_REDUCE else down

    @cache
    def exchanged(rank: int, number: int, step: int) -> int:
        if step == 0:
            return starts(rank, number)
        size, apart = exchanges[step - 1]
        arrival = exchanged(rank ^ apart, number, step - 1) + message(size, rank ^ apart, rank)
        reduced = add(down[step][0]) if reduces and step < levels else 0
        return max(exchanged(rank, number, step - 1), arrival) + delay + reduced

    @cache
    def ends(rank: int, number: int) -> int:
        if case.algorithm is Algorithm.HALVING_DOUBLING:
            return exchanged(rank, number, len(exchanges))
        if case.algorithm is Algorithm.DIRECT:
            arrivals = [starts(other, number) + message(share, other, rank) for other in range(ranks) if other != rank]
            return max(starts(rank, number), *arrivals) + delay + (add(share) if reduces else 0)
        steps = {CollectiveType.ALL_REDUCE: 2 * (ranks - 1), CollectiveType.ALL_TO_ALL: ranks * (ranks - 1) // 2}
        return around(rank, number, steps.get(case.kind, ranks - 1))

    return [max(ends(rank, number) for number in range(net.chunks)) for rank in range(ranks)]


def errors(seed: int, cases: int) -> list[float]:
    """The largest relative error of a member's end, of each case."""
    out = []
    for number in range(cases):
        case = drawn(np.random.default_rng([seed, number]))
        found = case.network.ends(case.kind, case.nbytes, case.members, np.array(case.begin, np.int64))
        out.append(float(np.abs(found / np.array(reference(case)) - 1).max()))
    return out


def main() -> int:
    sys.setrecursionlimit(100_000)
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--cases", type=int, default=300)
    given = parser.parse_args()
    found = errors(given.seed, given.cases)
    exact, near = sum(e == 0 for e in found), sum(e <= 0.01 for e in found)
    print(f"seed {given.seed}: {len(found)} collectives, {exact} exact, {near} within 1 %, worst {max(found):.4%}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
