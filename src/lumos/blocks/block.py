"""Blocks: the tasks of one layer, embedding, head, optimizer or gradient sync in one phase, in the order of their launch.

A block is a template. For each task it holds the lane (stream), the work, the host time of the launch, and which tasks of the
block it waits for besides the previous one on its lane. `collapse` turns a block into one task. Every task of a block waits
only for its launch and for tasks of the block, so the block ends at max(start on the device + K, start on the host + E) with
constants K and E. One task with the right launch time therefore ends at exactly the same time, as long as all lanes are
free when the block begins.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from lumos.blocks.work import Collective, RankStream, Work

if TYPE_CHECKING:
    from collections.abc import Sequence

#: The host's time of a collective / that of a kernel, each with the framework's work around it: the median of five public recordings of
#: torch (c10d::allreduce_ or alltoall_base_ against the mean of aten::mul and aten::mm), which are from 1.8 to 4.6.
COLLECTIVE_LAUNCHES = 3


@dataclass(frozen=True, slots=True)
class Op:
    """One device task. host: host time of its launch, ns. after: the tasks of the block that it waits for, by index."""

    name: str
    lane: RankStream
    work: Work
    host: int
    after: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Block:
    """ops: in launch order. last_ops: the block ends when all of these have ended, by index. before: host work before the first
    launch, ns."""

    name: str
    ops: tuple[Op, ...]
    last_ops: tuple[int, ...]
    before: int = 0

    def __hash__(self) -> int:
        """Hash only a few fields, which differ between most blocks: blocks hold hundreds of numbers and are looked up often."""
        return hash((self.name, self.before, len(self.ops), *self.ops[:1], *self.ops[-1:]))


class Builder:
    """Collects the ops of a block: a chain, and work that forks from it and is joined later. host_ns: host time of one launch."""

    def __init__(self, name: str, host_ns: int, before: int = 0) -> None:
        self.name = name
        self._host = host_ns
        self._before = before
        self._ops: list[Op] = []
        self._tail: tuple[int, ...] = ()
        self._until_end: list[int] = []

    def add(self, name: str, work: Work, lane: RankStream = RankStream.COMPUTE, launches: int | None = None) -> None:
        """Append an op to the chain: it waits for the chain so far. launches: of the host, where they are not one a kernel of the work."""
        self._ops.append(Op(name, lane, work, self._host * (_launches(work) if launches is None else launches), self._tail))
        self._tail = (len(self._ops) - 1,)

    def fork(self, name: str, work: Work, lane: RankStream) -> int:
        """Add an op that waits for the chain so far; the chain goes on without it until `join`. Returns its index."""
        self._ops.append(Op(name, lane, work, self._host * _launches(work), self._tail))
        return len(self._ops) - 1

    def fork_to_end(self, name: str, work: Work, lane: RankStream) -> None:
        """Add an op that waits for the chain so far; only the end of the block waits for it."""
        self._until_end.append(self.fork(name, work, lane))

    def join(self, *ops: int) -> None:
        """Let what follows in the chain also wait for these ops."""
        self._tail = tuple(sorted({*self._tail, *ops}))

    def build(self) -> Block:
        self.join(*self._until_end)
        return Block(self.name, tuple(self._ops), self._tail, self._before)


def _launches(work: Work) -> int:
    """How many launches of a kernel the host takes as long for as for this work."""
    return COLLECTIVE_LAUNCHES if isinstance(work, Collective) else getattr(work, "kernels", 1)


class Times(NamedTuple):
    """How long work takes, ns: the best guess, and the lower and upper end of the 80 % interval."""

    best: int
    low: int
    high: int

    def repeated(self, count: int) -> Times:
        """This work `count` times in series."""
        return Times(self.best * count, self.low * count, self.high * count)


class Inside(NamedTuple):
    """Parts of a block's time on the device, ns: compute, communication while no compute runs, communication during compute."""

    compute: int
    exposed: int
    overlapped: int


@dataclass(frozen=True, slots=True)
class Collapsed:
    """A block as one device task, all in ns.

    device: its length if launches take no time. host_limited: from the arrival of the host to the block's end, if the device is
    free. host: host time of all launches. compute, exposed, overlapped: the parts of `device`, as `Inside` has them.
    """

    device: Times
    host_limited: int
    host: int
    compute: int = 0
    exposed: int = 0
    overlapped: int = 0

    @property
    def lead(self) -> int:
        """Host time before the one task, such that it ends when the block would."""
        return self.host_limited - self.device.best


def collapse(block: Block, times: Sequence[Times]) -> Collapsed:
    """The block as one task. times: of each op."""
    host = block.before + sum(op.host for op in block.ops)
    if not block.ops:
        return Collapsed(Times(0, 0, 0), host, host)
    length = Times(*(max(_ends(block, column, False)) for column in zip(*times, strict=True)))
    best = [t.best for t in times]
    return Collapsed(length, max(_ends(block, best, True)), host, *_inside(block, best))


def _ends(block: Block, times: Sequence[int], host: bool) -> list[int]:
    """End of every op, ns from the start of the block. host: launches take their host time, else none."""
    ends: list[int] = []
    free: dict[RankStream, int] = {}
    clock = block.before
    for op, time in zip(block.ops, times, strict=True):
        clock += op.host
        ready = clock if host else 0
        ready = max(ready, free.get(op.lane, 0), *(ends[a] for a in op.after))
        free[op.lane] = ready + time
        ends.append(ready + time)
    return ends


def _inside(block: Block, times: Sequence[int]) -> Inside:
    """The parts of the block's time on the device, if launches take no time."""
    ends = _ends(block, times, False)
    compute = sum(time for op, time in zip(block.ops, times, strict=True) if op.lane is RankStream.COMPUTE)
    transfers = sorted((end - time, end) for op, end, time in zip(block.ops, ends, times, strict=True) if op.lane is not RankStream.COMPUTE)
    covered, edge = 0, 0
    for begin, stop in transfers:
        covered += max(0, stop - max(edge, begin))
        edge = max(edge, stop)
    exposed = max(0, max(ends) - compute)
    return Inside(compute, exposed, max(0, covered - exposed))
