"""Peak memory of many plans at once: `layout.memory` in columns."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from lumos import _pipeline
from lumos.blocks.memory import ADAM_STATES, FP32
from lumos.blocks.parameters import RankParameters, held_parameters, sharded_parameters
from lumos.plan.plan import outer_parts
from lumos.search.prices import memory_columns
from lumos.search.space import RECOMPUTES, Ints, Plans
from lumos.search.structure import Structure, chunk_layers, structures
from lumos.vocabulary import Recompute, Schedule


def peak_bytes(plans: Plans) -> Ints:
    """Bytes of the worst stage of every plan, int64[n]."""
    out = np.zeros(len(plans), np.int64)
    per = memory_columns(plans)
    for structure, rows in structures(plans):
        part = plans.take(rows)
        columns = {name: values[rows] for name, values in per.items()}
        dense, mixture = chunk_layers(part, 0)
        peak = np.zeros(len(part), np.int64)
        for stage, moments in _worst(structure, dense, mixture):
            static = _static(part, structure, stage, dense[stage], mixture[stage])
            peak = np.maximum(peak, static + _activations(part, structure, stage, dense[stage], mixture[stage], moments, columns))
        out[rows] = peak
    return out


def _worst(structure: Structure, dense: Ints, mixture: Ints) -> Iterator[tuple[int, Ints]]:
    """Stages that no other one covers, each with what it holds at its worst moments, in layers: int[moments, 4], dense layers of
    microbatches that wait for their backward pass and those of which the weight gradients are left, then mixture layers."""
    for stage, moments in _pipeline.worst(*structure, dense, mixture).items():
        yield stage, np.array(moments, np.int64)


def _parameters(plans: Plans, structure: Structure, stage: int, dense: Ints, mixture: Ints) -> RankParameters[Ints]:
    """Parameters of one rank of a stage, by plan. A model of one kind of layers has them all in the first column."""
    model = plans.problem.model
    only_mixture = model.mixture_layers == model.layers
    layers = {kind: int(count.sum()) for kind, count in ((only_mixture, dense), (True, mixture)) if count.any()}
    ends = outer_parts(structure.name, structure.stages, stage)
    return held_parameters(model, layers, ends, structure.stages, plans["tp"], plans["ep"])


def _static(plans: Plans, structure: Structure, stage: int, dense: Ints, mixture: Ints) -> Ints:
    problem = plans.problem
    model, width = problem.model, problem.precision.activation_bytes
    held = _parameters(plans, structure, stage, dense, mixture)
    zero, data = plans["zero"], plans["dp"] * plans["cp"]
    copies = np.maximum(1, np.minimum(data // plans["ep"], data))
    owned = np.where(zero == 0, held.total, sharded_parameters(held, data, copies))
    largest = max(model.layer_parameters(kind).total for kind in {model.is_mixture(i) for i in range(model.layers)})
    whole = largest // plans["tp"]
    parameters = np.where(zero == 3, owned * FP32 + 2 * width * whole, held.total * width)
    gradients = np.where(zero == 3, owned * FP32 + width * whole, np.where(zero == 2, owned, held.total) * problem.framework.gradient_bytes)
    optimizer = owned * np.where(zero == 3, ADAM_STATES - FP32, ADAM_STATES)
    return np.asarray(parameters + gradients + optimizer)


def _activations(
    plans: Plans, structure: Structure, stage: int, dense: Ints, mixture: Ints, moments: Ints, columns: dict[str, Ints]
) -> Ints:
    full = plans["recompute"] == RECOMPUTES.index(Recompute.FULL)
    layer = columns["layer"]
    kept = np.where(full[:, None], columns["input"][:, None], layer)
    if structure.name is Schedule.GPIPE:  # holds every microbatch, also those beyond the structure's window
        live = (plans.microbatches[:, None] * np.array([dense.sum(), mixture.sum()]) * kept).sum(axis=1)
    else:
        each = np.stack([kept[:, 0], layer[:, 0], kept[:, 1], layer[:, 1]], axis=1)
        live = (each @ moments.T).max(axis=1)
    shown = [k for k, n in enumerate((dense.sum(), mixture.sum())) if n]
    again = layer[:, shown].max(axis=1) if shown else np.zeros(len(plans), np.int64)
    peak = live + np.where(full, again, 0)
    last = stage == structure.stages - 1
    if last:
        peak = peak + columns["logits"]
    if stage == 0:
        peak = peak + columns["input"]
    return np.asarray(peak + columns["weights"][:, int(last)])
