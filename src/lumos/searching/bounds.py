"""Lower bounds of a plan's step, which hold for every schedule and every overlap.

A stage runs its passes one after the other on its compute stream, then the optimizer. Its first pass waits until the host has
started the step. So for every stage the step takes at least

    begin + Σ passes of the stage + optimizer

since these depend on each other in the graph, one after the other. Where a stage waits for the pipeline to fill and to drain (1F1B,
GPipe, interleaved), the passes of the first microbatch on the stages before it, and those of the last one's way back, are added.
A plan whose bound exceeds the fully simulated time of another plan cannot be better than that plan.

Peak memory of many plans at once: the formulas of `blocks.memory` on columns of plans.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from lumos import _pipeline
from lumos.blocks.memory import held_bytes, largest_layer
from lumos.blocks.share import RankParameters, held_parameters, sharded_parameters
from lumos.plan.plan import outer_parts
from lumos.searching.prices import SPLIT, Columns, Floats, memory_columns
from lumos.searching.space import RECOMPUTES, Ints, PipelineStructure, Plans, chunk_layers, structures
from lumos.vocabulary import Recompute, Schedule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lumos.blocks.price import StepCoefficients
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


def peak_bytes(plans: Plans) -> Ints:
    """Peak bytes of the stage that needs most, for every plan, int64[n]."""
    out = np.zeros(len(plans), np.int64)
    plan_columns = memory_columns(plans)
    for structure, rows in structures(plans):
        part = plans.take(rows)
        columns = {name: values[rows] for name, values in plan_columns.items()}
        dense, mixture = chunk_layers(part, 0)
        peak = np.zeros(len(part), np.int64)
        for stage, moments in _worst(structure, dense, mixture):
            static = _static(part, structure, stage, dense[stage], mixture[stage], columns["buckets"])
            peak = np.maximum(peak, static + _activations(part, structure, stage, dense[stage], mixture[stage], moments, columns))
        out[rows] = peak
    return out


def _worst(structure: PipelineStructure, dense: Ints, mixture: Ints) -> Iterator[tuple[int, Ints]]:
    """The stages that can need most memory, each with the layers that it holds at the moments when it can need most.

    int64[moments, 4]: dense layers of microbatches that wait for their backward pass, dense layers of which only the weight gradients
    are left to compute, and the same two for mixture layers.
    """
    for stage, moments in _pipeline.worst(*structure, dense, mixture).items():
        yield stage, np.array(moments, np.int64)


def _parameters(plans: Plans, structure: PipelineStructure, stage: int, dense: Ints, mixture: Ints) -> RankParameters[Ints]:
    """Parameters of one rank of a stage, by plan. A model with one kind of layers has all of them in the first column."""
    model = plans.problem.model
    only_mixture = model.mixture_layers == model.layers
    layers = {kind: int(count.sum()) for kind, count in ((only_mixture, dense), (True, mixture)) if count.any()}
    ends = outer_parts(structure.name, structure.stages, stage)
    return held_parameters(model, layers, ends, structure.stages, plans["tp"], plans["ep"])


def _static(plans: Plans, structure: PipelineStructure, stage: int, dense: Ints, mixture: Ints, buckets: Ints) -> Ints:
    """Bytes of the parameters, gradients and optimizer states of one rank of a stage, by plan. buckets: of `memory_columns`."""
    held = _parameters(plans, structure, stage, dense, mixture)
    data = plans["dp"] * plans["cp"]
    copies = np.maximum(1, np.minimum(data // plans["ep"], data))
    owned = np.where(plans["zero"] == 0, held.total, sharded_parameters(held, data, copies))
    problem, layer = plans.problem, largest_layer(plans.problem.model) // plans["tp"]
    sizes = (plans["zero"], plans["pp"], plans["vpp"], plans.microbatches, held.total, owned, layer, buckets)
    return np.asarray(sum(held_bytes(problem.framework, problem.precision.activation_bytes, *sizes)))


def _activations(
    plans: Plans, structure: PipelineStructure, stage: int, dense: Ints, mixture: Ints, moments: Ints, columns: dict[str, Ints]
) -> Ints:
    """Peak bytes of the activations, and the weight gradients and logits that exist with them, of one rank of a stage, by plan."""
    full = plans["recompute"] == RECOMPUTES.index(Recompute.FULL)
    layer = columns["layer"]
    saved = np.where(full[:, None], columns["input"][:, None], layer)
    if structure.name is Schedule.GPIPE:  # it holds every microbatch, also those beyond the structure's window
        live = (plans.microbatches[:, None] * np.array([dense.sum(), mixture.sum()]) * saved).sum(axis=1)
    else:
        held = np.stack([saved[:, 0], layer[:, 0], saved[:, 1], layer[:, 1]], axis=1)
        live = (held @ moments.T).max(axis=1)
    kinds = [k for k, n in enumerate((dense.sum(), mixture.sum())) if n]
    recomputed = layer[:, kinds].max(axis=1) if kinds else np.zeros(len(plans), np.int64)
    peak = live + np.where(full, recomputed, 0)
    last = stage == structure.stages - 1
    if last:
        peak = peak + columns["logits"]
    if stage == 0:
        peak = peak + columns["input"]
    return np.asarray(peak + columns["weights"][:, int(last)])
