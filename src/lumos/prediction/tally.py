"""How often the stages of a plan run each block, without their order: enough for a quick comparison of many plans."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from lumos.blocks.layer import LayerWork
from lumos.blocks.share import Share
from lumos.plan.plan import Plan, check_plan, layers_of_chunks
from lumos.prediction.arrange import Stage
from lumos.prediction.layout import Blocks
from lumos.vocabulary import Schedule

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Hashable

    from lumos.blocks.block import Block
    from lumos.model import Model
    from lumos.plan.framework import Framework


class Tally(NamedTuple):
    """The blocks of a layout. runs: for each pipeline stage, how often it runs each block, by number of the block."""

    blocks: tuple[Block, ...]
    runs: tuple[Counter[int], ...]


class Tallies:
    """Makes tallies of many plans, on nodes of `devices_per_node` devices. Plans that differ only in their schedule and in what they
    shard have the same blocks of passes, which are made once."""

    def __init__(self, devices_per_node: int) -> None:
        self._devices_per_node = devices_per_node
        self._passes: dict[tuple[Model, Framework, Plan], dict[Hashable, Block]] = {}

    def __call__(self, model: Model, plan: Plan, framework: Framework) -> Tally:
        """The tally of the layout that `arrange` returns. Raises PlanError if the plan breaks a rule."""
        check_plan(plan, model)
        same_passes = replace(plan, zero=0, schedule=Schedule.DUALPIPE if plan.schedule is Schedule.DUALPIPE else Schedule.ONE_F_ONE_B)
        blocks = Blocks(self._passes.setdefault((model, framework, same_passes), {}))
        share = Share(model, plan, framework, self._devices_per_node)
        chunks, work = layers_of_chunks(plan, model), LayerWork(share)
        runs = tuple(Stage(share, work, blocks, s, chunks).runs_of_blocks() for s in range(plan.pp))
        return Tally(tuple(blocks.blocks), runs)
