"""The items of one stage in the order of their launch, and what each waits for.

A stage computes one block after the other: the chain. Exchanges and transfers are placed beside it and wait for the item of the chain
that they follow; the chain waits for them where it needs what they bring.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lumos.prediction.layout import Blocks, Item
from lumos.vocabulary import Phase

if TYPE_CHECKING:
    from lumos.blocks.block import Block
    from lumos.plan.schedules import Action


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
