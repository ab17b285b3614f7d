"""How often the stages of a plan run each block, without the order: what tells many plans apart quickly."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from dataclasses import replace
from typing import NamedTuple

from lumos.blocks.block import Block
from lumos.blocks.layer import LayerWork
from lumos.blocks.share import Share
from lumos.model import Model
from lumos.plan.framework import Framework
from lumos.plan.plan import Plan, check, layers_of_chunks
from lumos.predict.arrange import Stage
from lumos.predict.layout import Blocks
from lumos.vocabulary import Schedule


class Tally(NamedTuple):
    """The blocks of a layout. runs[s]: by number of the block, how often pipeline stage s runs it."""

    blocks: tuple[Block, ...]
    runs: tuple[Counter[int], ...]


class Tallies:
    """Tallies of many plans on nodes of `devices_per_node`. Blocks of passes are made once for all plans that differ in their
    schedule and in what they shard alone."""

    def __init__(self, devices_per_node: int) -> None:
        self._devices_per_node = devices_per_node
        self._passes: dict[tuple[Model, Framework, Plan], dict[Hashable, Block]] = {}

    def __call__(self, model: Model, plan: Plan, framework: Framework) -> Tally:
        """The tally of the layout that `arrange` gives. PlanError where the plan breaks a rule."""
        check(plan, model)
        alike = replace(plan, zero=0, schedule=Schedule.DUALPIPE if plan.schedule is Schedule.DUALPIPE else Schedule.ONE_F_ONE_B)
        blocks = Blocks(self._passes.setdefault((model, framework, alike), {}))
        share = Share(model, plan, framework, self._devices_per_node)
        chunks, work = layers_of_chunks(plan, model), LayerWork(share)
        runs = tuple(Stage(share, work, blocks, s, chunks).runs_of_blocks() for s in range(plan.pp))
        return Tally(tuple(blocks.blocks), runs)
