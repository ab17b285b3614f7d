"""The schedule of a predicted step: when each pipeline stage computes which pass of which microbatch.

A stage launches its work in the order of the layout's items, so its kernels are counted out to the items in that order: in fine form
one for each operation of an item's block that is no collective, in coarse form one for each item that does not only communicate.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.blocks.work import Collective, RankStream
from lumos.graph.table import Kind

if TYPE_CHECKING:
    from lumos.blocks.block import Block
    from lumos.prediction.layout import Item
    from lumos.prediction.predict import Prediction
    from lumos.vocabulary import Phase


class StagePass(NamedTuple):
    """What a stage computes in one piece. microbatch: −1 for work of none, such as the optimizer's. Times are ns from the step's start."""

    stage: int
    phase: Phase
    microbatch: int
    start_ns: int
    end_ns: int


def stage_passes(prediction: Prediction) -> tuple[StagePass, ...]:
    """The passes of all stages, by stage and start."""
    run, layout = prediction.timeline, prediction.layout
    graph, coarse = run.graph, prediction.granularity == "blocks"
    computes = graph.kind == Kind.KERNEL
    stage_of, origin = graph.rank_of_task, int(run.start.min())
    out = []
    for stage, items in enumerate(layout.stages):
        tasks = np.flatnonzero(computes & (stage_of == stage))
        first = 0
        counted = [(item, kernels) for item in items if (kernels := _kernels(item, layout.blocks[item.block], coarse))]
        for (phase, microbatch), own in groupby(counted, lambda each: (each[0].phase, each[0].microbatch)):
            count = sum(kernels for _, kernels in own)
            mine = tasks[first : first + count]
            first += count
            out.append(StagePass(stage, phase, microbatch, int(run.start[mine].min()) - origin, int(run.end[mine].max()) - origin))
        assert first == len(tasks), f"stage {stage} has {len(tasks)} kernels, its items {first}"
    return tuple(out)


def _kernels(item: Item, block: Block, coarse: bool) -> int:
    """How many kernels an item has (`assemble`)."""
    if coarse:
        lanes = {op.lane for op in block.ops}
        return int(RankStream.COMPUTE in lanes or len(lanes) > 1)
    return item.repeat * sum(not isinstance(op.work, Collective) for op in block.ops)
