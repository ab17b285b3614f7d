"""A layout: blocks, and the order in which every distinct rank runs them.

Equal ranks are folded: tensor, context and data parallel peers do the same at the same time, so one rank stands for each
pipeline stage, and collectives are costed for their whole groups.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from lumos.layout.block import Block
from lumos.layout.framework import Framework
from lumos.layout.plan import Plan
from lumos.model import Model


@dataclass(slots=True)
class Item:
    """One run of a block (`repeat` times in series) on a rank.

    waits: items of the rank that must have ended before it starts on the device. host_waits: the host waits for them too.
    transfer: the two sides of one transfer share a key; "" for everything else. layer, microbatch: what it belongs to
    (-1: none or several); phase: "forward", "backward", "optimizer", "sync".
    """

    block: int
    waits: tuple[int, ...]
    repeat: int = 1
    host_waits: bool = False
    transfer: str = ""
    phase: str = "forward"
    layer: int = -1
    microbatch: int = -1


@dataclass(frozen=True, slots=True)
class Layout:
    """`stages[s]`: the items of pipeline stage s in the order of their launch; item numbers count within a stage."""

    model: Model
    plan: Plan
    framework: Framework
    blocks: tuple[Block, ...]
    stages: tuple[tuple[Item, ...], ...]


@dataclass(slots=True)
class Blocks:
    """Distinct blocks, numbered as they are first used."""

    blocks: list[Block] = field(default_factory=list)
    _numbers: dict[Block, int] = field(default_factory=dict)

    def number(self, block: Block) -> int:
        if block not in self._numbers:
            self._numbers[block] = len(self.blocks)
            self.blocks.append(block)
        return self._numbers[block]
