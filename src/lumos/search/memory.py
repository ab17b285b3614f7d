"""Peak memory of many plans at once: `layout.memory` in columns."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from lumos.layout.memory import ADAM_STATES, FP32
from lumos.layout.plan import RECOMPUTE, SCHEDULES, layers_of_chunks
from lumos.layout.sizes import PRECISIONS
from lumos.search.order import held, window
from lumos.search.prices import memory_columns
from lumos.search.space import Ints, Plans


class Structure(NamedTuple):
    """What decides the order of the passes: schedule, stages, virtual stages, microbatches (of the repeating part)."""

    name: str
    stages: int
    chunks: int
    microbatches: int


def structures(plans: Plans) -> Iterator[tuple[Structure, Ints]]:
    """Rows of plans whose passes come in the same order."""
    names = np.array(SCHEDULES)[plans["schedule"]].tolist()
    keys: dict[Structure, list[int]] = {}
    for i, key in enumerate(zip(names, plans["pp"].tolist(), plans["vpp"].tolist(), plans.microbatches.tolist(), strict=True)):
        name, stages, chunks, count = key
        keys.setdefault(Structure(name, stages, chunks, window(name, stages, chunks, count)), []).append(i)
    for structure, rows in keys.items():
        yield structure, np.array(rows, np.int64)


def shapes(plans: Plans) -> Iterator[tuple[int, Ints]]:
    """(schedule, rows) of plans that agree in schedule, stages and virtual stages."""
    names, stages, chunks = plans["schedule"], plans["pp"], plans["vpp"]
    code = (names * 100_000 + stages) * 1000 + chunks
    for value in np.unique(code).tolist():
        rows = np.flatnonzero(code == value)
        yield int(names[rows[0]]), rows


def chunk_layers(plans: Plans, row: int) -> tuple[Ints, Ints]:
    """Dense and mixture layers of every chunk: int[stages, chunks] each."""
    model = plans.problem.model
    chunks = layers_of_chunks(plans.plan(row), model)
    kinds = [[[model.is_mixture(layer) for layer in chunk] for chunk in stage] for stage in chunks]
    mixture = np.array([[sum(chunk) for chunk in stage] for stage in kinds], np.int64)
    total = np.array([[len(chunk) for chunk in stage] for stage in kinds], np.int64)
    if model.mixture_layers in (0, model.layers):  # one kind only: it is in both columns, counted in the first
        return total, np.zeros_like(total)
    return total - mixture, mixture


def peak_bytes(plans: Plans) -> Ints:
    """Bytes of the worst stage of every plan, int64[n]."""
    out = np.zeros(len(plans), np.int64)
    per = memory_columns(plans)
    for structure, rows in structures(plans):
        part = plans.take(rows)
        columns = {name: values[rows] for name, values in per.items()}
        dense, mixture = chunk_layers(part, 0)
        peak = np.zeros(len(part), np.int64)
        for stage in _distinct(structure, dense, mixture):
            static = _static(part, structure, stage, dense[stage], mixture[stage])
            peak = np.maximum(peak, static + _activations(part, structure, stage, dense[stage], mixture[stage], columns))
        out[rows] = peak
    return out


def _distinct(structure: Structure, dense: Ints, mixture: Ints) -> Iterator[int]:
    """Stages of which no other has at least the layers and at least what is in flight; the first and the last always."""
    seen: set[bytes] = set()
    for stage in range(structure.stages):
        ends = stage in (0, structure.stages - 1)
        key = b"".join((held(*structure, stage).tobytes(), dense[stage].tobytes(), mixture[stage].tobytes(), bytes([ends])))
        if ends or key not in seen:
            yield stage
        seen.add(key)


def _parameters(plans: Plans, structure: Structure, stage: int, dense: Ints, mixture: Ints) -> tuple[Ints, Ints]:
    """Parameters of one rank of a stage, and the routed experts among them (`layout.arrange.stage_parameters`)."""
    model, tp, ep = plans.problem.model, plans["tp"], plans["ep"]
    mirrored = structure.name == "dualpipe" and stage in (0, structure.stages - 1)
    total = np.zeros(len(plans), np.int64)
    experts = np.zeros(len(plans), np.int64)
    only_mixture = model.mixture_layers == model.layers
    for count, kind in ((int(dense.sum()), only_mixture), (int(mixture.sum()), True)):
        if count:
            p = model.layer_parameters(kind)
            expert = p.expert // ep
            total += count * (-(-(p.attention + p.mlp) // tp) + p.norm + expert)
            experts += count * expert
    if stage == 0 or mirrored:
        total += -(-model.embedding_parameters // tp)
    if stage == structure.stages - 1 or mirrored:
        total += model.norm_parameters
        if not model.tied or structure.stages > 1:
            total += -(-model.vocab * model.hidden // tp)
    return total, experts


def _static(plans: Plans, structure: Structure, stage: int, dense: Ints, mixture: Ints) -> Ints:
    problem = plans.problem
    model, width = problem.model, PRECISIONS[problem.precision][1]
    total, experts = _parameters(plans, structure, stage, dense, mixture)
    zero, data = plans["zero"], plans["dp"] * plans["cp"]
    copies = np.maximum(1, np.minimum(data // plans["ep"], data))
    owned = np.where(zero == 0, total, -(-(total - experts) // data) + -(-experts // copies))
    largest = max(model.layer_parameters(model.is_mixture(i)).total for i in range(model.layers))
    whole = largest // plans["tp"]
    parameters = np.where(zero == 3, owned * FP32 + 2 * width * whole, total * width)
    gradients = np.where(zero == 3, owned * FP32 + width * whole, np.where(zero == 2, owned, total) * problem.framework.gradient_bytes)
    optimizer = owned * np.where(zero == 3, ADAM_STATES - FP32, ADAM_STATES)
    return np.asarray(parameters + gradients + optimizer)


def _activations(plans: Plans, structure: Structure, stage: int, dense: Ints, mixture: Ints, columns: dict[str, Ints]) -> Ints:
    full = plans["recompute"] == RECOMPUTE.index("full")
    layer = columns["layer"]
    kept = np.where(full[:, None], columns["input"][:, None], layer)
    moments = held(*structure, stage)
    counts = _largest(np.concatenate([moments @ dense, moments @ mixture], axis=1))  # [moments, kinds waiting and left, dense then mixture]
    if structure.name == "gpipe":  # holds every microbatch, also those beyond the structure's window
        live = (plans.microbatches[:, None] * np.array([dense.sum(), mixture.sum()]) * kept).sum(axis=1)
    else:
        each = np.stack([kept[:, 0], layer[:, 0], kept[:, 1], layer[:, 1]], axis=1)
        live = (each @ counts.T).max(axis=1)
    shown = [k for k, n in enumerate((dense.sum(), mixture.sum())) if n]
    again = layer[:, shown].max(axis=1) if shown else np.zeros(len(plans), np.int64)
    peak = live + np.where(full, again, 0)
    last = stage == structure.stages - 1
    if last:
        peak = peak + columns["logits"]
    if stage == 0:
        peak = peak + columns["input"]
    return np.asarray(peak + columns["weights"][:, int(last)])


def _largest(counts: Ints) -> Ints:
    """Rows that no other row exceeds in every column."""
    counts = np.unique(counts, axis=0)
    keep = [i for i, row in enumerate(counts) if not np.any(np.all(counts >= row, axis=1) & np.any(counts > row, axis=1))]
    return np.asarray(counts[keep])
