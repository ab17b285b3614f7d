"""Blocks: the tasks of one layer, embedding, head, optimizer or gradient sync in one phase, in the order of their launch.

A block is a template. It says, per task, on which lane it runs, what work it is, how long the host takes to launch it and
which tasks of the block it waits for beside the one before it on its lane. `collapse` shortens the compute of a block to
one task: the block's end is max(start on the device + K, start on the host + E) because every task in it only waits for
launches and for tasks of the block (max-plus linear, so one task with the right launch time is exact as long as the
lanes are free when the block begins).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from lumos.blocks.work import Lane, Work


@dataclass(frozen=True, slots=True)
class Op:
    """One device task: lane, work, host time of its launch (ns), tasks of the block that it waits for."""

    name: str
    lane: Lane
    work: Work
    host: int
    after: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Block:
    """`ops` in launch order; `ends`: the ops whose ends are the block's end. `before`: host work before its first launch, ns."""

    name: str
    ops: tuple[Op, ...]
    ends: tuple[int, ...]
    before: int = 0

    def __hash__(self) -> int:
        """Of enough to tell most blocks apart: they are looked up far more often than made, and hold hundreds of numbers."""
        return hash((self.name, self.before, len(self.ops), *self.ops[:1], *self.ops[-1:]))


class Builder:
    """Lists the ops of a block: a chain, with work beside it that a later op joins."""

    def __init__(self, name: str, host_ns: int, before: int = 0) -> None:
        self.name = name
        self._host = host_ns
        self._before = before
        self._ops: list[Op] = []
        self._tail: tuple[int, ...] = ()
        self._loose: list[int] = []

    def add(self, name: str, work: Work, lane: Lane = Lane.COMPUTE) -> None:
        """The next op of the chain: it waits for the chain so far."""
        self._ops.append(Op(name, lane, work, self._host * _launches(work), self._tail))
        self._tail = (len(self._ops) - 1,)

    def beside(self, name: str, work: Work, lane: Lane) -> int:
        """An op that waits for the chain so far, but for which the chain does not wait until `join`."""
        self._ops.append(Op(name, lane, work, self._host * _launches(work), self._tail))
        return len(self._ops) - 1

    def loose(self, name: str, work: Work, lane: Lane) -> None:
        """An op that waits for the chain so far and that only the end of the block waits for."""
        self._loose.append(self.beside(name, work, lane))

    def join(self, *ops: int) -> None:
        """What follows also waits for these ops."""
        self._tail = tuple(sorted({*self._tail, *ops}))

    def build(self) -> Block:
        self.join(*self._loose)
        return Block(self.name, tuple(self._ops), self._tail, self._before)


def _launches(work: Work) -> int:
    return getattr(work, "kernels", 1)


class Times(NamedTuple):
    """How long work takes, ns: best guess, and the ends of its interval."""

    best: int
    low: int
    high: int

    def then(self, other: Times) -> Times:
        """This work, then the other."""
        return Times(self.best + other.best, self.low + other.low, self.high + other.high)

    def repeated(self, count: int) -> Times:
        """This work `count` times in series."""
        return Times(self.best * count, self.low * count, self.high * count)


class Inside(NamedTuple):
    """What the device's time of a block holds, ns: compute, communication that nothing covers, communication beside compute."""

    compute: int
    exposed: int
    overlapped: int


@dataclass(frozen=True, slots=True)
class Collapsed:
    """A block as one device task, all in ns.

    device: its length where only the device limits it; hosted: from the host's arrival to its end
    where only the host limits it; host: host time of all its launches. compute, exposed, overlapped: what is inside the
    device's length: compute, communication that nothing covers, communication beside compute.
    """

    device: Times
    hosted: int
    host: int
    compute: int = 0
    exposed: int = 0
    overlapped: int = 0

    @property
    def lead(self) -> int:
        """Host time before the one task may start, so that it ends when the block would."""
        return self.hosted - self.device.best

    def then(self, other: Collapsed) -> Collapsed:
        """This block, then the other."""
        hosted = max(self.hosted + other.device.best, self.host + other.hosted)
        return Collapsed(
            self.device.then(other.device),
            hosted,
            self.host + other.host,
            self.compute + other.compute,
            self.exposed + other.exposed,
            self.overlapped + other.overlapped,
        )


#: A block without work.
NOTHING = Collapsed(Times(0, 0, 0), 0, 0)


def collapse(block: Block, times: Sequence[Times]) -> Collapsed:
    """The block with its ops' times as one task."""
    host = block.before + sum(op.host for op in block.ops)
    if not block.ops:
        return Collapsed(Times(0, 0, 0), host, host)
    length = Times(*(max(_ends(block, column, False)) for column in zip(*times, strict=True)))
    best = [t.best for t in times]
    return Collapsed(length, max(_ends(block, best, True)), host, *_inside(block, best))


def _ends(block: Block, times: Sequence[int], host: bool) -> list[int]:
    """End of every op: with only the host's launches in the way (`host`), or only the device."""
    ends: list[int] = []
    free: dict[Lane, int] = {}
    clock = block.before
    for op, time in zip(block.ops, times, strict=True):
        clock += op.host
        ready = clock if host else 0
        ready = max(ready, free.get(op.lane, 0), *(ends[a] for a in op.after))
        free[op.lane] = ready + time
        ends.append(ready + time)
    return ends


def _inside(block: Block, times: Sequence[int]) -> Inside:
    """What the block holds, run without the host in the way."""
    ends = _ends(block, times, False)
    compute = sum(time for op, time in zip(block.ops, times, strict=True) if op.lane is Lane.COMPUTE)
    moving = sorted((end - time, end) for op, end, time in zip(block.ops, ends, times, strict=True) if op.lane is not Lane.COMPUTE)
    covered, edge = 0, 0
    for begin, stop in moving:
        covered += max(0, stop - max(edge, begin))
        edge = max(edge, stop)
    exposed = max(0, max(ends) - compute)
    return Inside(compute, exposed, max(0, covered - exposed))
