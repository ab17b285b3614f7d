"""A layout: blocks, and the order in which every distinct rank runs them.

Equal ranks are folded: tensor, context and data parallel peers do the same work at the same time, so one rank represents each
pipeline stage, and collectives are priced for their whole groups.

A stage computes one block after the other: the chain. Exchanges and transfers are placed beside it and wait for the item of the chain
that they follow; the chain waits for them where it needs what they bring.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from lumos.result import Described
from lumos.units import count
from lumos.vocabulary import Phase

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from lumos.blocks.block import Block
    from lumos.blocks.work import Work
    from lumos.model import Model
    from lumos.plan.framework import Framework
    from lumos.plan.plan import Plan
    from lumos.plan.schedules import Action


@dataclass(slots=True)
class Item:
    """One run of a block (`repeat` times in series) on a rank.

    block: number of the block in the layout. waits: items of the rank that must have ended before it starts on the device.
    host_waits: the host waits for them too. transfer: a key that the two sides of one transfer share; "" for everything else.
    layer, microbatch: what it belongs to (-1: none or several). phase: its phase of the step.
    """

    block: int
    waits: tuple[int, ...]
    repeat: int = 1
    host_waits: bool = False
    transfer: str = ""
    phase: Phase = Phase.FORWARD
    layer: int = -1
    microbatch: int = -1


@dataclass(frozen=True, slots=True, repr=False)
class Layout(Described):
    """stages: the items of each pipeline stage, in the order of their launch; items are numbered within their stage."""

    model: Model
    plan: Plan
    framework: Framework
    blocks: tuple[Block, ...]
    stages: tuple[tuple[Item, ...], ...]

    def described(self) -> str:
        """Its model, plan and framework, and how many blocks its stages run, for people."""
        p = self.plan
        sizes = " ".join(
            f"{name} {size}" for name, size in (("tp", p.tp), ("pp", p.pp), ("cp", p.cp), ("ep", p.ep), ("dp", p.dp)) if size > 1
        )
        runs = f"{count(len(self.stages), 'stage')}, {len(self.blocks)} blocks in {sum(map(len, self.stages)):,} places"
        return f"{self.model.name}, {sizes or 'one device'}, {self.framework.name}, {runs}"

    def work(self, stage: int) -> list[Work]:
        """The work of one stage in the order of its launches."""
        return [op.work for item in self.stages[stage] for _ in range(item.repeat) for op in self.blocks[item.block].ops]


class LayerRun(NamedTuple):
    """Consecutive layers that do the same work. mixture: they have experts."""

    layers: range
    mixture: bool


def equal_layers(model: Model, layers: range) -> list[LayerRun]:
    """The layers in runs that do the same work."""
    runs = []
    for mixture, group in groupby(layers, key=model.is_mixture):
        members = list(group)
        runs.append(LayerRun(range(members[0], members[-1] + 1), mixture))
    return runs


class Blocks:
    """Distinct blocks, each made once, numbered in the order of first use."""

    def __init__(self) -> None:
        self.blocks: list[Block] = []
        self._numbers: dict[Block, int] = {}
        self._made: dict[Hashable, Block] = {}
        self._identities: dict[int, int] = {}  # number by id of the blocks in _made, which keeps them alive

    def make(self, key: Hashable, maker: Callable[[], Block]) -> Block:
        """The block of that key; `maker` is called for the first request only."""
        if key not in self._made:
            block = maker()
            self._made[key] = block
            self._identities[id(block)] = self._number(block)
        return self._made[key]

    def number(self, block: Block) -> int:
        """The block's number, found without comparing blocks if `make` returned it."""
        return self._identities[id(block)] if id(block) in self._identities else self._number(block)

    def _number(self, block: Block) -> int:
        if block not in self._numbers:
            self._numbers[block] = len(self.blocks)
            self.blocks.append(block)
        return self._numbers[block]


@dataclass(slots=True)
class Chain:
    """The items placed so far. tail: the last item of the chain, -1 before the first."""

    blocks: Blocks
    placed: list[Item] = field(default_factory=list)
    tail: int = -1
    _waits: tuple[int, ...] = ()  # what the next item of the chain waits for besides the tail
    _host_waits: bool = False  # the host also waits for what the next item of the chain waits for

    def wait_for(self, *items: int | None, host: bool = False) -> None:
        """Let the next item of the chain wait for these items as well. host: the host, too, waits for all that it waits for."""
        self._waits += tuple(i for i in items if i is not None and i >= 0)
        self._host_waits = self._host_waits or host

    def then(self, block: Block, phase: Phase, action: Action | None = None, repeat: int = 1, layer: int = -1) -> int:
        """Place the block at the end of the chain, and return the number of its item."""
        waits = (self.tail, *self._waits)
        host_waits = self._host_waits
        self._waits, self._host_waits = (), False
        self.tail = self.beside(block, waits, phase, action, layer, repeat, host_waits)
        return self.tail

    def beside(
        self,
        block: Block,
        waits: tuple[int, ...] = (),
        phase: Phase = Phase.SYNC,
        action: Action | None = None,
        layer: int = -1,
        repeat: int = 1,
        host_waits: bool = False,
        transfer: str = "",
    ) -> int:
        """Place the block beside the chain, and return the number of its item. waits: items, of which those below 0 are none."""
        microbatch = action.microbatch if action else -1
        waits = tuple(dict.fromkeys(w for w in waits if w >= 0))
        self.placed.append(Item(self.blocks.number(block), waits, repeat, host_waits, transfer, phase, layer, microbatch))
        return len(self.placed) - 1
