"""When each rank has done with one chunk of a collective, given when each began: the algorithms as an analytical simulator runs them.

A rank sends its first message after the endpoint delay, and acts on a received one after that delay again and, where the
collective reduces, after local memory has been read twice and written once. A rank that comes late finds messages of the
others waiting, so that ranks end apart. All times are whole nanoseconds, each part rounded down.

Source: the algorithms of ASTRA-sim (github.com/astra-sim/astra-sim), as described in its paper (ISPASS 2023) and observed
on sets of one collective.
"""

from __future__ import annotations

import heapq
from enum import StrEnum
from itertools import count
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.errors import LumosError
from lumos.trace.chakra.schema import CollectiveType

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lumos.trace.table import Int64

    #: ns that messages of so many bytes take between these places of a line; sources and targets are int64 arrays of one shape.
    Messages = Callable[[int, Int64, Int64], Int64]


class Algorithm(StrEnum):
    """How a collective moves its data along one dimension; the ONE_ forms treat all ranks as one dimension."""

    RING = "ring"
    DIRECT = "direct"
    HALVING_DOUBLING = "halvingDoubling"
    DOUBLE_BINARY_TREE = "doubleBinaryTree"
    ONE_RING = "oneRing"
    ONE_DIRECT = "oneDirect"
    ONE_HALVING_DOUBLING = "oneHalvingDoubling"


class Implementation(NamedTuple):
    """An algorithm for one dimension. window: how many peers a direct one sends to at a time, None for all."""

    algorithm: Algorithm = Algorithm.RING
    window: int | None = None


class Endpoint(NamedTuple):
    """What a rank does with a message. delay: ns before it sends, and before it acts on what it received. local: GB/s of its memory.
    group: whether the ranks are a group that is not all of the network's."""

    delay: int
    local: float
    group: bool = False

    def reduction(self, nbytes: int) -> int:
        """ns to add `nbytes` to what the rank has: two operands are read and one is written."""
        return 3 * int(nbytes / self.local)


class Chunk(NamedTuple):
    """What is moved. kind: one of the four that simulators run. nbytes: bytes that each rank has before. turn: which chunk of its
    collectives this is, counted from 0: trees take turns."""

    kind: CollectiveType
    nbytes: int
    turn: int = 0


def ends(how: Implementation, chunk: Chunk, messages: Messages, begin: Int64, end: Endpoint) -> Int64:
    """When each rank of a line has done with a chunk, int64[N] ns, where it began at `begin`. LumosError: the algorithm does not fit."""
    if how.algorithm in (Algorithm.DIRECT, Algorithm.ONE_DIRECT):
        return _Direct(chunk, messages, begin, end, how.window).run()
    halves = how.algorithm in (Algorithm.HALVING_DOUBLING, Algorithm.ONE_HALVING_DOUBLING)
    run = _double_binary_tree if how.algorithm is Algorithm.DOUBLE_BINARY_TREE else _halving_doubling if halves else _ring
    return run(chunk, messages, begin, end)


def after(how: Implementation, chunk: Chunk, ranks: int) -> int:
    """Bytes that each rank holds after a chunk has moved over a line of `ranks` ranks; a tree reduces, whatever the collective."""
    if how.algorithm is Algorithm.DOUBLE_BINARY_TREE:
        return chunk.nbytes
    if chunk.kind is CollectiveType.ALL_GATHER:
        return chunk.nbytes * ranks
    return chunk.nbytes // ranks if chunk.kind is CollectiveType.REDUCE_SCATTER else chunk.nbytes


def _share(chunk: Chunk, ranks: int) -> int:
    return chunk.nbytes if chunk.kind is CollectiveType.ALL_GATHER else chunk.nbytes // ranks


def _ring(chunk: Chunk, messages: Messages, begin: Int64, end: Endpoint) -> Int64:
    """Each step passes one share on to the next rank.

    An all-reduce has 2 (N - 1) steps, of which N - 1 reduce. In an all-to-all each share goes on until it has reached its rank:
    N (N - 1) / 2 steps.
    """
    ranks = len(begin)
    reducing = ranks - 1 if chunk.kind in (CollectiveType.ALL_REDUCE, CollectiveType.REDUCE_SCATTER) else 0
    passing = {CollectiveType.REDUCE_SCATTER: 0, CollectiveType.ALL_TO_ALL: ranks * (ranks - 1) // 2}.get(chunk.kind, ranks - 1)
    share, after = _share(chunk, ranks), (np.arange(ranks) + 1) % ranks
    return _rounds([(reducing, share, after, end.reduction(share)), (passing, share, after, 0)], messages, begin, end)


def _rounds(rounds: Sequence[tuple[int, int, Int64, int]], messages: Messages, begin: Int64, end: Endpoint) -> Int64:
    """Exchanges that follow one another: how often each comes, its bytes, to which rank each one sends, and the reduction after it, ns."""
    done = begin + end.delay
    for times, nbytes, target, reduction in rounds:
        link = messages(nbytes, np.arange(len(begin)), target)
        if _alike(done) and _alike(link):
            done = done + times * (link + end.delay + reduction)
            continue
        source = np.argsort(target)
        for _ in range(times):
            done = np.maximum((done + link)[source], done) + end.delay + reduction
    return done


def _alike(values: Int64) -> bool:
    return bool((values == values.flat[0]).all())


class _Direct:
    """Every rank sends its shares straight to all others, at most `window` at a time (None: all).

    An all-reduce sends to all twice: shares, and then results. The simulator sends the first results when all shares have arrived
    and one of them has been added. It counts no reduction for the messages that it takes for the beginning of a round: after one
    window of messages, a round of so many windows as there are peers (in a group) or of one (along a dimension).
    """

    def __init__(self, chunk: Chunk, messages: Messages, begin: Int64, end: Endpoint, window: int | None) -> None:
        ranks = len(begin)
        self.peers, self.end, self.kind = ranks - 1, end, chunk.kind
        self.window = min(window or self.peers, self.peers)
        self.twice = chunk.kind is CollectiveType.ALL_REDUCE
        self.total = (2 if self.twice else 1) * self.peers
        share = _share(chunk, ranks)
        self.reduction = end.reduction(share)
        here = np.arange(ranks)[:, None]
        time = messages(share, *np.broadcast_arrays(here, (here + np.arange(1, ranks)) % ranks))
        # Where all ranks do the same at the same time, the first stands for all: what it sends to a distance it receives from there.
        self.mirrored = _alike(begin) and bool((time == time[0]).all())
        self.ranks = ranks
        actors = 1 if self.mirrored else ranks
        self.time: list[list[int]] = time[:actors].tolist()
        self.sent, self.received, self.free = [0] * actors, [0] * actors, [0] * actors
        self.waiting = [0] * actors  # messages that may be sent as soon as a slot is free
        self.head, self.tail, self.adds = [0] * actors, [0] * actors, [False] * actors
        self.arrival: dict[tuple[int, int], int] = {}  # of message number k at a rank: k counts by turns and distance of the sender
        self.posted: dict[tuple[int, int], int] = {}
        self.tick = count()
        self.events: list[tuple[int, bool, int, int]] = []  # time, whether a slot becomes free (else a message arrives), turn, rank
        for rank in range(actors):
            for _ in range(self.window):
                self._insert(rank)
                heapq.heappush(self.events, (int(begin[rank]) + self.end.delay, True, next(self.tick), rank))

    def run(self) -> Int64:
        done = np.zeros(len(self.sent), np.int64)
        while self.events:
            now, freed, _, rank = heapq.heappop(self.events)
            if not freed:
                self.received[rank] += 1
                delay = self.end.delay + (self.reduction if self._insert(rank) else 0)
                heapq.heappush(self.events, (now + delay, True, next(self.tick), rank))
                continue
            self.free[rank] += 1
            second = self.twice and self.sent[rank] >= self.peers
            if second and self.received[rank] < self.peers:
                continue
            for _ in range(self.window if second else 1):
                self._send(now, rank)
            if self.sent[rank] == self.total and self.free[rank] == self.window:
                done[rank] = now
        return np.broadcast_to(done, self.ranks).copy() if self.mirrored else done

    def _insert(self, rank: int) -> bool:
        """Allow one more message; whether the rank adds the one that it received for that."""
        self.waiting[rank] += 1
        if not self.head[rank] and not self.tail[rank]:
            self.head[rank], self.tail[rank] = self.window, self.window * (self.peers if self.end.group else 1)
            self.adds[rank] = not self.adds[rank]
        if self.head[rank]:
            self.head[rank] -= 1
            return False
        self.tail[rank] -= 1
        return self.kind is CollectiveType.REDUCE_SCATTER or (self.twice and self.adds[rank])

    def _send(self, now: int, rank: int) -> None:
        """Send the rank's next message, if it may, and await the one that comes from the same distance on the other side."""
        if not (self.waiting[rank] and self.free[rank] and self.sent[rank] < self.total):
            return
        number = self.sent[rank]
        self.sent[rank], self.waiting[rank], self.free[rank] = number + 1, self.waiting[rank] - 1, self.free[rank] - 1
        turn = number % self.peers
        target = 0 if self.mirrored else (rank + turn + 1) % self.ranks
        self._meet(self.arrival, self.posted, now + self.time[rank][turn], target, number)
        self._meet(self.posted, self.arrival, now, rank, number)

    def _meet(self, own: dict[tuple[int, int], int], other: dict[tuple[int, int], int], time: int, rank: int, number: int) -> None:
        own[rank, number] = time
        if (rank, number) in other:
            heapq.heappush(self.events, (max(time, other[rank, number]), False, next(self.tick), rank))


def _halving_doubling(chunk: Chunk, messages: Messages, begin: Int64, end: Endpoint) -> Int64:
    """Ranks, a power of two of them, exchange with partners at distances of powers of two.

    A reduce-scatter sends half of what is left at each step, to a partner twice as far; an all-gather goes back; an
    all-reduce does both. The simulator counts a reduction for all but the last step of halving, of the bytes of the next step.
    """
    if chunk.kind is CollectiveType.ALL_TO_ALL:
        raise LumosError("halvingDoubling moves no all-to-all; name another all-to-all-implementation in the system file")
    ranks = _power_of_two(len(begin))
    levels, here = range(ranks.bit_length() - 1), np.arange(ranks)
    gathering = [(1, chunk.nbytes << level, here ^ (ranks >> (level + 1)), 0) for level in levels]
    if chunk.kind is CollectiveType.ALL_GATHER:
        return _rounds(gathering, messages, begin, end)
    sizes = [chunk.nbytes >> (level + 1) for level in levels]
    reduced = [*map(end.reduction, sizes[1:]), 0]
    halving = [(1, size, here ^ (1 << level), added) for level, size, added in zip(levels, sizes, reduced, strict=True)]
    back = [(*step[:3], 0) for step in reversed(halving)] if chunk.kind is CollectiveType.ALL_REDUCE else []
    return _rounds([*halving, *back], messages, begin, end)


def _double_binary_tree(chunk: Chunk, messages: Messages, begin: Int64, end: Endpoint) -> Int64:
    """Up to the root of a tree and back; the ranks are a power of two, and chunks take two trees by turns.

    Whatever the collective, a tree moves all bytes of the chunk, as an all-reduce. In the first tree the last rank is the
    root, in the second the first one; the others are a complete binary tree, numbered in order.
    """
    ranks = _power_of_two(len(begin))
    levels = ranks.bit_length() - 1
    shift = chunk.turn % 2  # the second tree is the first one moved by one rank
    work = end.delay + end.reduction(chunk.nbytes)
    here = np.arange(ranks)
    time = messages(chunk.nbytes, *np.broadcast_arrays(here[:, None], here)).tolist()
    done = begin.tolist()

    def up(node: int, level: int, parent: int) -> int:
        """When the sum of the subtree of a node reaches the parent."""
        own = node + shift
        if level == 0:
            return int(done[own] + end.delay + time[own][parent])
        half = 1 << (level - 1)
        arrived = [max(up(child, level - 1, own), done[own]) for child in (node - half, node + half)]
        return int(max(arrived) + work + time[own][parent])

    def down(node: int, level: int, arrival: int) -> None:
        """Pass the result on to the subtree of a node, which it reaches at `arrival`."""
        own = node + shift
        done[own] = arrival + (work if level else end.delay)
        if level:
            for child in (node - (1 << (level - 1)), node + (1 << (level - 1))):
                down(child, level - 1, done[own] + time[own][child + shift])

    root = 0 if shift else ranks - 1
    top = ranks // 2 - 1
    summed = max(up(top, levels - 1, root), done[root]) + work
    down(top, levels - 1, summed + time[root][top + shift])
    done[root] = summed
    return np.array(done, np.int64)


def _power_of_two(ranks: int) -> int:
    if ranks & (ranks - 1):
        raise LumosError(f"trees and halving need a power of two of ranks, not {ranks}; name ring or direct in the system file")
    return ranks
