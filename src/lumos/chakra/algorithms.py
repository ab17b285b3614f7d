"""How long one algorithm takes to move one chunk of a collective, step by step as an analytical simulator runs it.

Every rank does the same at the same time, except in trees and in rings over links of different speeds. A rank sends its
first message after the endpoint delay, and acts on a received one after that delay again and, where the collective
reduces, after local memory has been read twice and written once. All times are whole nanoseconds, each part rounded down.

Source: the algorithms of ASTRA-sim (github.com/astra-sim/astra-sim), as described in its paper (ISPASS 2023) and observed
on sets of one collective. Limits: a double binary tree is exact where it is the only dimension.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np

from lumos.trace.chakra.schema import CollectiveType

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    #: ns that a message of so many bytes takes to the rank that is so many places ahead.
    Message = Callable[[int, int], int]


class Algorithm(StrEnum):
    """How a collective moves its data along one dimension; the ONE_ forms treat all ranks as one dimension."""

    RING = "ring"
    DIRECT = "direct"
    HALVING_DOUBLING = "halvingDoubling"
    DOUBLE_BINARY_TREE = "doubleBinaryTree"
    ONE_RING = "oneRing"
    ONE_DIRECT = "oneDirect"
    ONE_HALVING_DOUBLING = "oneHalvingDoubling"

    @property
    def joins_dimensions(self) -> bool:
        """Whether all ranks are one dimension to it."""
        return self in (Algorithm.ONE_RING, Algorithm.ONE_DIRECT, Algorithm.ONE_HALVING_DOUBLING)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """What a rank does with a message. delay: ns before it sends, and before it acts on what it received. local: GB/s of its memory."""

    delay: int
    local: float

    def reduction(self, nbytes: int) -> int:
        """ns to add `nbytes` to what the rank has: two operands are read and one is written."""
        return 3 * int(nbytes / self.local)


def after(kind: CollectiveType, nbytes: int, ranks: int) -> int:
    """Bytes that each rank holds after a collective over `ranks` ranks of `nbytes` each."""
    if kind is CollectiveType.ALL_GATHER:
        return nbytes * ranks
    return nbytes // ranks if kind is CollectiveType.REDUCE_SCATTER else nbytes


def ring(kind: CollectiveType, nbytes: int, ranks: int, message: Message, end: Endpoint) -> int:
    """ns of a ring of equal links: each step passes one share on to the next rank.

    An all-reduce has 2 (N - 1) steps, of which N - 1 reduce. In an all-to-all each share goes on until it has reached its rank:
    N (N - 1) / 2 steps.
    """
    steps, reducing = ring_steps(kind, ranks)
    share = _share(kind, nbytes, ranks)
    return end.delay + steps * (message(share, 1) + end.delay) + reducing * end.reduction(share)


def ring_steps(kind: CollectiveType, ranks: int) -> tuple[int, int]:
    """How many steps a ring takes, and how many of these (the first) reduce."""
    if kind is CollectiveType.ALL_REDUCE:
        return 2 * (ranks - 1), ranks - 1
    if kind is CollectiveType.ALL_TO_ALL:
        return ranks * (ranks - 1) // 2, 0
    return ranks - 1, ranks - 1 if kind is CollectiveType.REDUCE_SCATTER else 0


def uneven_ring(kind: CollectiveType, nbytes: int, chunks: int, links: Sequence[Callable[[int], int]], end: Endpoint) -> int:
    """ns of all chunks over a ring whose links differ. links: from each rank to the next, ns of a message of so many bytes.

    A rank begins the next chunk when it has done with the last; it waits for its neighbour's message in every step.
    """
    ranks = len(links)
    steps, reducing = ring_steps(kind, ranks)
    share = _share(kind, nbytes, ranks)
    link = np.array([one(share) for one in links], np.int64)
    done = np.zeros(ranks, np.int64)
    for _ in range(chunks):
        done += end.delay
        for step in range(steps):
            done = np.maximum(np.roll(done + link, 1), done) + end.delay + (end.reduction(share) if step < reducing else 0)
    return int(done.max())


def _share(kind: CollectiveType, nbytes: int, ranks: int) -> int:
    return nbytes if kind is CollectiveType.ALL_GATHER else nbytes // ranks


def direct(kind: CollectiveType, nbytes: int, ranks: int, message: Message, end: Endpoint, window: int | None = None) -> int:
    """ns where every rank sends its shares straight to all others; at most `window` at a time (None: all).

    An all-reduce sends to all twice: shares, and then results. The simulator sends the first results when all shares have arrived
    and one of them has been added. With a window it counts the reductions of every second window alone, or every fourth.
    """
    peers = ranks - 1
    window = min(window or peers, peers)
    share = _share(kind, nbytes, ranks)
    twice = kind is CollectiveType.ALL_REDUCE
    total = 2 * peers if twice else peers
    sent = received = free = 0
    waiting = window  # messages that may be sent as soon as a slot is free
    now = end.delay
    events = [(now, True)] * window  # (time, whether a slot becomes free; else a message arrives)
    while events:
        now, freed = heapq.heappop(events)
        if not freed:
            reduces = kind in (CollectiveType.ALL_REDUCE, CollectiveType.REDUCE_SCATTER) and received // window % (4 if twice else 2) == 0
            received += 1
            waiting += 1
            heapq.heappush(events, (now + end.delay + (end.reduction(share) if reduces else 0), True))
            continue
        free += 1
        second = twice and sent >= peers
        if second and received < peers:
            continue
        for _ in range(window if second else 1):
            if not (waiting and free and sent < total):
                break
            heapq.heappush(events, (now + message(share, sent % peers + 1), False))
            sent, waiting, free = sent + 1, waiting - 1, free - 1
    return now


def halving_doubling(kind: CollectiveType, nbytes: int, ranks: int, message: Message, end: Endpoint) -> int:
    """ns where ranks exchange with partners at distances of powers of two; `ranks` is one.

    A reduce-scatter sends half of what is left at each step, to a partner twice as far; an all-gather goes back; an
    all-reduce does both. The simulator counts a reduction for all but the last step of halving.
    """
    levels = ranks.bit_length() - 1
    halving = [(nbytes >> (level + 1), 1 << level) for level in range(levels)]
    if kind is CollectiveType.ALL_GATHER:
        steps = [(nbytes << level, ranks >> (level + 1)) for level in range(levels)]
    else:
        steps = [*halving, *reversed(halving)] if kind is CollectiveType.ALL_REDUCE else halving
    reduced = 0 if kind is CollectiveType.ALL_GATHER else sum(end.reduction(size) for size, _ in halving[1:])
    return end.delay + sum(message(size, distance) + end.delay for size, distance in steps) + reduced


def double_binary_tree(nbytes: int, chunks: int, ranks: int, message: Message, end: Endpoint) -> int:
    """ns of all chunks, which go by turns over two trees, up to the root and back; `ranks` is a power of two.

    Whatever the collective, a tree moves all bytes of the chunk, as an all-reduce. In the first tree the last rank is the
    root, in the second the first one; the others are a complete binary tree, numbered in order. A rank begins the next chunk when
    it has passed on the last one.
    """
    levels = ranks.bit_length() - 1
    begun = [0] * ranks
    work = end.delay + end.reduction(nbytes)
    for chunk in range(chunks):
        shift = chunk % 2  # the second tree is the first one moved by one rank

        def transfer(source: int, target: int) -> int:
            return message(nbytes, target - source)

        def up(node: int, level: int, shift: int = shift, parent: int = 0) -> int:
            """When the sum of the subtree of a node reaches the parent."""
            own = node + shift
            if level == 0:
                return begun[own] + end.delay + transfer(own, parent)
            half = 1 << (level - 1)
            arrived = (up(child, level - 1, shift, own) for child in (node - half, node + half))
            return max(max(one, begun[own]) for one in arrived) + work + transfer(own, parent)

        def down(node: int, level: int, arrival: int, shift: int = shift) -> None:
            """Pass the result on to the subtree of a node, which it reaches at `arrival`."""
            own = node + shift
            done = arrival + (work if level else end.delay)
            begun[own] = done
            if level:
                for child in (node - (1 << (level - 1)), node + (1 << (level - 1))):
                    down(child, level - 1, done + transfer(own, child + shift))

        root = 0 if shift else ranks - 1
        top = ranks // 2 - 1
        summed = max(up(top, levels - 1, shift, root), begun[root]) + work
        down(top, levels - 1, summed + transfer(root, top + shift))
        begun[root] = summed
    return max(begun)
