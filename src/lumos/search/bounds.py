"""Lower bounds of a plan's step, which no schedule and no overlap can go under.

A stage runs its passes one after the other on its compute stream, then the optimizer, and its first pass waits for the
host's start of the step. So the step is at least, for every stage,

    begin + Σ passes of the stage + optimizer

(every term is a chain of the graph: the ends of a block are the heads of the next). Where stages wait for a pipeline to fill
(1F1B, GPipe, interleaved), the passes of the first microbatch on the stages before it, and of the last one's way back, come on top.
A plan whose bound exceeds the time of a plan that is simulated in full cannot be better than that plan.
"""

from __future__ import annotations

import numpy as np

from lumos.blocks.coefficients import StepCoefficients
from lumos.plan.plan import outer_parts
from lumos.search.prices import SPLIT, Columns, Floats
from lumos.search.space import SCHEDULES, Plans
from lumos.search.structure import chunk_layers, shapes
from lumos.vocabulary import Schedule

FILLS = (Schedule.ONE_F_ONE_B, Schedule.GPIPE, Schedule.INTERLEAVED)


def lower_bounds(plans: Plans, columns: Columns, coefficients: StepCoefficients) -> Floats:
    """Seconds that no plan's step can go under, float64[n]."""
    out = np.zeros(len(plans))
    for schedule, rows in shapes(plans):
        out[rows] = _bound(SCHEDULES[schedule], plans.take(rows), columns.take(rows))
    nodes = np.maximum(1.0, plans.problem.gpus / plans.problem.cluster.node.devices)
    begin = 1000 * plans.problem.framework.step_us * coefficients.step
    return np.asarray((out + begin) * 1e-9 * (1 + coefficients.jitter * np.log2(nodes)))


def _bound(name: Schedule, plans: Plans, c: Columns) -> Floats:
    dense, mixture = chunk_layers(plans, 0)  # [stages, chunks]
    stages = len(dense)
    ends = np.array([outer_parts(name, stages, stage) for stage in range(stages)], float)
    backward = np.minimum(c.backward, c.inputs + c.weights) if name in SPLIT else c.backward  # some passes are split, some whole
    passes = c.forward + backward
    outer = np.stack([c.embedding.sum(axis=1), c.head.sum(axis=1)], axis=1)
    layers = np.stack([dense.sum(axis=1), mixture.sum(axis=1)], axis=1)
    each = layers @ passes.T + ends @ outer.T  # [stages, plans]
    # each of DualPipe's two chunks runs half the microbatches
    total = each * (plans.microbatches // 2 if name is Schedule.DUALPIPE else plans.microbatches)
    if name in FILLS and stages > 1:
        first = np.stack([dense[:, 0], mixture[:, 0]], axis=1)
        way = first @ (c.forward + c.backward).T + np.stack([ends[:, 0]], axis=1) @ outer[:, :1].T + 2 * c.transfer
        total[1:] += np.cumsum(way, axis=0)[:-1]
    return np.asarray(total.max(axis=0) + c.optimizer.min(axis=1))
