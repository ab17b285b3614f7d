"""Collectives of ranks that arrive unevenly, against second implementations that know the rules alone: random ones, drawn by seed.

python -m validation.chakra_uneven --seed N [--cases 300] [--dimensions]        prints how many ranks' ends agree

Groups and whole networks of one dimension with a ring, direct messages or halving and doubling, one to four chunks at a time. Their second
implementation asks backwards: a rank has done a step when it has done the step before and the message of that step has arrived.

With --dimensions, all ranks of networks of two or three dimensions, each with an algorithm of its own. There every chunk of every rank is a
process, which waits for a place in its dimension, sleeps, sends and receives. Ranks may begin the chunks of a dimension in other orders,
and then wait for one another for ever; who ends, and who does not, has to agree too.
"""

from __future__ import annotations

import argparse
import heapq
import sys
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import count
from math import prod
from typing import Any

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


def drawn_in_dimensions(rng: np.random.Generator) -> Case:
    """A random case of all ranks of two or three dimensions. Sizes divide, so that all chunks are alike."""
    sizes = rng.choice([2, 4], int(rng.integers(2, 4))).tolist()
    kind = KINDS[int(rng.integers(4))]
    hierarchical = bool(rng.random() < 0.7)
    dimensions = tuple(
        Dimension(npus, float(rng.integers(20, 300)), float(rng.integers(100, 2000)), list(Topology)[int(rng.integers(3))])
        for npus in sizes
    )
    how = []
    for place in range(len(sizes)):
        reduces_here = kind is CollectiveType.ALL_REDUCE and (not hierarchical or place == len(sizes) - 1)
        known = [Algorithm.RING, *[Algorithm.DIRECT] * (not reduces_here)]
        known += [Algorithm.HALVING_DOUBLING] * (kind is not CollectiveType.ALL_TO_ALL)
        how.append(Implementation(known[int(rng.integers(len(known)))]))
    chunks, npus = int(rng.integers(1, 9)), prod(sizes)
    network = Network(
        dimensions,
        {kind: tuple(how)},
        endpoint=int(rng.integers(0, 200)),
        chunks=chunks,
        active=int(rng.integers(1, 5)),
        local=float(rng.integers(100, 2000)),
        hierarchical=hierarchical,
    )
    spread = int(rng.choice([0, 1000, 50_000, 2_000_000]))
    begin = tuple(rng.integers(0, spread + 1, npus).tolist())
    return Case(network, kind, chunks * npus * npus * int(rng.integers(4, 1 << 12)), tuple(range(npus)), begin)


class _Stage:
    """What a chunk does in one dimension. number: of the dimension. nbytes: what each rank holds before."""

    def __init__(self, number: int, kind: CollectiveType, nbytes: int) -> None:
        self.number, self.kind, self.nbytes = number, kind, nbytes


def _stages(case: Case, chunk: int) -> list[_Stage]:
    net, last = case.network, len(case.network.dimensions) - 1
    order: list[tuple[int, CollectiveType]] = [(number, case.kind) for number in range(last + 1)]
    if case.kind is CollectiveType.ALL_GATHER:
        order.reverse()
    elif case.kind is CollectiveType.ALL_REDUCE and net.hierarchical:
        scatter = [(number, CollectiveType.REDUCE_SCATTER) for number in range(last)]
        order = [*scatter, (last, case.kind), *((number, CollectiveType.ALL_GATHER) for number, _ in scatter[::-1])]
    out = []
    for number, kind in order:
        out.append(_Stage(number, kind, chunk))
        size = net.dimensions[number].npus
        chunk = chunk * size if kind is CollectiveType.ALL_GATHER else chunk // size if kind is CollectiveType.REDUCE_SCATTER else chunk
    return out


#: What a process asks for: ("place", dimension), ("free", dimension), ("sleep", ns) or ("receive", message).
Asked = tuple[str, object]


def reference_in_dimensions(case: Case) -> list[int]:
    """When each rank has done with the last chunk; -1 where one of its chunks never ends."""
    net, ranks = case.network, len(case.members)
    sizes = [d.npus for d in net.dimensions]
    strides = [prod(sizes[:i]) for i in range(len(sizes))]
    stages = _stages(case, case.nbytes // net.chunks)
    now, turn = 0, count()
    events: list[tuple[int, int, Callable[[], None]]] = []
    places = [[net.active] * len(sizes) for _ in range(ranks)]
    waiting: list[list[deque[Callable[[], None]]]] = [[deque() for _ in sizes] for _ in range(ranks)]
    arrived: set[object] = set()
    expected: dict[object, Callable[[], None]] = {}
    left, done = [net.chunks] * ranks, [0] * ranks

    def later(ns: int, what: Callable[[], None]) -> None:
        heapq.heappush(events, (now + ns, next(turn), what))

    def send(key: object, nbytes: int, number: int, a: int, b: int) -> None:
        line = net.dimensions[number]
        apart = (b - a) % line.npus
        hops = {Topology.SWITCH: 2, Topology.FULLY_CONNECTED: 1, Topology.RING: min(apart, line.npus - apart)}[line.topology]

        def arrive() -> None:
            if key in expected:
                expected.pop(key)()
            else:
                arrived.add(key)

        later(int(hops * line.latency + nbytes / (line.bandwidth * GIB)), arrive)

    def chunk_of(rank: int, number: int) -> Iterator[Asked]:
        for at, stage in enumerate(stages):
            size, stride = sizes[stage.number], strides[stage.number]
            spot, base = rank // stride % size, rank - rank // stride % size * stride
            algorithm = net.implementations[case.kind][stage.number].algorithm
            gathers, reduces = stage.kind is CollectiveType.ALL_GATHER, stage.kind in KINDS[0:3:2]
            share = stage.nbytes if gathers else stage.nbytes // size
            yield "place", stage.number
            yield "sleep", net.endpoint

            def key(step: int, a: int, b: int, at: int = at, base: int = base, stride: int = stride) -> object:
                return number, at, step, base + a * stride, base + b * stride

            def pass_on(step: int, to: int, nbytes: int, stage: _Stage = stage, spot: int = spot, key: Any = key) -> None:
                send(key(step, spot, to), nbytes, stage.number, spot, to)

            def awaited(step: int, source: int, spot: int = spot, key: Any = key) -> Asked:
                return "receive", key(step, source, spot)

            def add(nbytes: int) -> int:
                return 3 * int(nbytes / net.local)

            if algorithm is Algorithm.RING:
                steps = {CollectiveType.ALL_REDUCE: 2 * (size - 1), CollectiveType.ALL_TO_ALL: size * (size - 1) // 2}
                for step in range(steps.get(stage.kind, size - 1)):
                    pass_on(step, (spot + 1) % size, share)
                    yield awaited(step, (spot - 1) % size)
                    yield "sleep", net.endpoint + (add(share) if reduces and step < size - 1 else 0)
            elif algorithm is Algorithm.DIRECT:
                for other in set(range(size)) - {spot}:
                    pass_on(0, other, share)
                for other in set(range(size)) - {spot}:
                    yield awaited(0, other)
                yield "sleep", net.endpoint + (add(share) if reduces else 0)
            else:
                levels = size.bit_length() - 1
                down = [(stage.nbytes >> (level + 1), 1 << level) for level in range(levels)]
                up = [(stage.nbytes << level, size >> (level + 1)) for level in range(levels)]
                exchanges = up if gathers else down + down[::-1] if stage.kind is CollectiveType.ALL_REDUCE else down
                for step, (nbytes, apart) in enumerate(exchanges):
                    pass_on(step, spot ^ apart, nbytes)
                    yield awaited(step, spot ^ apart)
                    yield "sleep", net.endpoint + (add(down[step + 1][0]) if reduces and step + 1 < levels else 0)
            yield "free", stage.number

    def run(rank: int, process: Iterator[Asked]) -> None:
        freed: int | None = None
        while (asked := next(process, None)) is not None:
            what, of = asked
            if what == "free":
                freed = int(str(of))
                continue
            if what == "place":
                waiting[rank][int(str(of))].append(lambda: run(rank, process))
                begin(rank, int(str(of)))
            elif what == "sleep":
                later(int(str(of)), lambda: run(rank, process))
            elif of in arrived:
                arrived.remove(of)
                continue
            else:
                expected[of] = lambda: run(rank, process)
            break
        else:
            left[rank] -= 1
            done[rank] = now
        if freed is not None:
            places[rank][freed] += 1
            begin(rank, freed)

    def begin(rank: int, dimension: int) -> None:
        while places[rank][dimension] and waiting[rank][dimension]:
            places[rank][dimension] -= 1
            waiting[rank][dimension].popleft()()

    for rank, time in enumerate(case.begin):
        for number in range(net.chunks):
            process = chunk_of(rank, number)
            later(time, lambda rank=rank, process=process: run(rank, process))  # type: ignore[misc]
    while events:
        now, _, what = heapq.heappop(events)
        what()
    return [-1 if remaining else end for remaining, end in zip(left, done, strict=True)]


def errors(seed: int, cases: int, draw: Callable[[np.random.Generator], Case] = drawn) -> list[float]:
    """The largest relative error of a member's end, of each case; infinity where one ends in only one of the two."""
    out = []
    for number in range(cases):
        case = draw(np.random.default_rng([seed, number]))
        wanted = np.array(reference(case) if draw is drawn else reference_in_dimensions(case))
        found = case.network.ends(case.kind, case.nbytes, case.members, np.array(case.begin, np.int64))
        ended = wanted >= 0
        agree = bool(((found >= 0) == ended).all())
        out.append(float(np.abs(found[ended] / wanted[ended] - 1).max(initial=0.0)) if agree else np.inf)
    return out


def main() -> int:
    sys.setrecursionlimit(100_000)
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--cases", type=int, default=300)
    parser.add_argument("--dimensions", action="store_true")
    given = parser.parse_args()
    found = errors(given.seed, given.cases, drawn_in_dimensions if given.dimensions else drawn)
    exact, near = sum(e == 0 for e in found), sum(e <= 0.01 for e in found)
    print(f"seed {given.seed}: {len(found)} collectives, {exact} exact, {near} within 1 %, worst {max(found):.4%}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
