"""Lower bounds of a plan's step, which hold for every schedule and every overlap.

A stage runs its passes one after the other on its compute stream, then the optimizer. Its first pass waits until the host has
started the step. So for every stage the step takes at least

    begin + Σ passes of the stage + optimizer

since these depend on each other in the graph, one after the other. Where a stage waits for the pipeline to fill and to drain (1F1B,
GPipe, interleaved), the passes of the first microbatch on the stages before it, and those of the last one's way back, are added.
A plan whose bound exceeds the fully simulated time of another plan cannot be better than that plan.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from lumos.plan.plan import outer_parts
from lumos.searching.prices import SPLIT, Columns, Floats
from lumos.searching.structure import chunk_layers, structures
from lumos.vocabulary import Schedule

if TYPE_CHECKING:
    from lumos.blocks.coefficients import StepCoefficients
    from lumos.searching.space import Plans

#: Schedules in which a stage waits for the pipeline to fill and to drain.
FILLS = (Schedule.ONE_F_ONE_B, Schedule.GPIPE, Schedule.INTERLEAVED)


def lower_bounds(plans: Plans, columns: Columns, coefficients: StepCoefficients) -> Floats:
    """The least time that the step of each plan can take, float64[n], seconds."""
    out = np.zeros(len(plans))
    for structure, rows in structures(plans):
        out[rows] = _bound(structure.name, plans.take(rows), columns.take(rows))
    begin = 1000 * plans.problem.framework.step_us * coefficients.step
    return np.asarray((out + begin) * 1e-9)


def _bound(name: Schedule, plans: Plans, c: Columns) -> Floats:
    dense, mixture = chunk_layers(plans, 0)  # [stages, chunks]
    stages = len(dense)
    ends = np.array([outer_parts(name, stages, stage) for stage in range(stages)], float)
    backward = np.minimum(c.backward, c.inputs + c.weights) if name in SPLIT else c.backward  # some passes are split, some whole
    passes = c.forward + backward
    outer = np.stack([c.embedding.sum(axis=1), c.head.sum(axis=1)], axis=1)
    layers = np.stack([dense.sum(axis=1), mixture.sum(axis=1)], axis=1)
    per_microbatch = layers @ passes.T + ends @ outer.T  # [stages, plans]
    # each of DualPipe's two chunks runs half the microbatches
    total = per_microbatch * (plans.microbatches // 2 if name is Schedule.DUALPIPE else plans.microbatches)
    if name in FILLS and stages > 1:
        first = np.stack([dense[:, 0], mixture[:, 0]], axis=1)
        fill_and_drain = first @ (c.forward + c.backward).T + np.stack([ends[:, 0]], axis=1) @ outer[:, :1].T + 2 * c.transfer
        total[1:] += np.cumsum(fill_and_drain, axis=0)[:-1]
    return np.asarray(total.max(axis=0) + c.optimizer.min(axis=1))
