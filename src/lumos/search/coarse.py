"""Times of many plans at once: the pipeline's recurrences over columns of plans, then the end of the step.

Plans that run their passes in the same order are timed together (`native/pipeline_time.hpp`). Of a long step only as many
microbatches are timed as the pipeline needs to reach its steady state; the rest is added at the pace of its last rounds.

Compared with the full simulation, two effects are missing: a host that is late for single passes, unless it waits for transfers (a
host that is the limit during the whole step is included); and with ZeRO 2 and 3 the part of a pass's exchanges that delays the next
pass.
"""

from __future__ import annotations

from enum import IntEnum
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np

from lumos import _pipeline
from lumos.native import check_enum
from lumos.search.structure import chunk_layers, passes, structures
from lumos.vocabulary import GradientReduction

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from lumos.blocks.coefficients import StepCoefficients
    from lumos.search.prices import Columns, Floats
    from lumos.search.space import Plans


class PassKind(IntEnum):
    """Kinds of passes that differ in length: those of `Pass`, and then the last backward pass and the last weight-gradient pass of a
    chunk, which complete its gradients."""

    FORWARD = 0
    BACKWARD = 1
    INPUT = 2
    WEIGHT = 3
    FINAL = 4
    FINAL_WEIGHT = 5


check_enum(_pipeline, PassKind)
#: The columns that price each kind.
_PRICES = ("forward", "backward", "inputs", "weights", "backward", "weights")


def coarse_step_times(plans: Plans, columns: Columns, coefficients: StepCoefficients) -> Floats:
    """Seconds of every plan's step, float64[n]."""
    table = _table(plans, columns, coefficients)
    out = np.zeros(len(plans))
    overlap = plans.problem.framework.p2p_overlap
    for structure, rows in structures(plans):
        passes(structure, overlap).time(table, rows, *chunk_layers(plans, int(rows[0])), out)
    return np.asarray(out * 1e-9)


def _table(plans: Plans, c: Columns, coefficients: StepCoefficients) -> Floats:
    """The times that the recurrence reads, ns: float64[n, WIDTH], in the order of `Column` in native/pipeline_time.hpp."""
    framework, n = plans.problem.framework, len(plans)
    data = plans["dp"] * plans["cp"] > 1
    gathers_parameters = data & (plans["zero"] == 3) & (plans["pp"] == 1)  # for every pass
    gathers_once = data & (plans["zero"] == 3) & (plans["pp"] > 1)  # a stage of a pipeline
    reduces_last = gathers_once | (data & (plans["zero"] < 2)) | ((plans["zero"] == 2) & (_reduction_group(plans) == 0))
    split = data & np.isin(plans["zero"], (1, 2))
    transfers = 2 * plans["vpp"] * (plans["pp"] > 1) * 1000 * framework.transfer_us
    parts: dict[str, list[NDArray[Any]]] = {
        "length": _lengths(plans, c, data, gathers_parameters),
        "host": [getattr(c, f"{name}_host") for name in _PRICES],
        **_late(plans, c),
        "ends": [c.embedding, c.head],
        "ends_host": [c.ends_host],
        "transfer": [c.transfer],
        "gather": [np.where(((split & framework.gather_overlap) | gathers_once)[:, None], c.gather, 0.0)],
        "gradients": [c.reduction],
        "bucket": [c.bucket],
        "outer_gradients": [c.outer_reduction[:, 0], np.zeros(n) if plans.problem.model.tied else c.outer_reduction[:, 1]],
        "late_gradients": [np.where(reduces_last[:, None], c.final_reduction, 0.0)],
        "optimizer": [c.optimizer],
        "late_gather": [c.final_gather],
        "tied": [c.tied],
        "launches": [transfers],
        "microbatches": [plans.microbatches],
        "beside": [gathers_parameters | (data & framework.dp_overlap)],
        "begin": [np.full(n, 1000 * framework.step_us * coefficients.step)],
    }
    stacked = [np.column_stack(part).astype(float) for part in parts.values()]
    *first, width = accumulate((part.shape[1] for part in stacked), initial=0)
    assert (dict(zip(parts, first, strict=True)), width) == (_pipeline.COLUMNS, _pipeline.WIDTH)
    return np.ascontiguousarray(np.concatenate(stacked, axis=1))


def _late(plans: Plans, c: Columns) -> dict[str, list[NDArray[Any]]]:
    """Delays where the host waits for a transfer before it launches a pass: that of the first layer's work and that of each further
    layer's, by kind of pass, and the latency of a launch."""
    n = len(plans)
    if not plans.problem.framework.transfer_blocks:
        none = [np.zeros((n, 2 * len(PassKind)))]
        return {"late": none, "later": none, "latency": [np.zeros(n)]}
    latency = plans.problem.cluster.accelerator.launch_latency_s or 0.0
    return {
        "late": [getattr(c, f"{name}_lead") for name in _PRICES],
        "later": [np.maximum(0.0, getattr(c, f"{name}_host") - getattr(c, name)) for name in _PRICES],
        "latency": [np.full(n, 1e9 * latency)],
    }


def _reduction_group(plans: Plans) -> NDArray[np.int64]:
    """How many microbatches are reduced together where gradients are sharded (ZeRO 2), by plan; 0: all of the step's."""
    often = plans.problem.framework.grad_reduce
    one_by_one = (plans["pp"] == 1) | (often is GradientReduction.MICROBATCH)
    grouped = (often is GradientReduction.GROUP) & (plans["vpp"] > 1) & (plans.microbatches > plans["pp"])
    return np.where(one_by_one, 1, np.where(grouped, plans["pp"], 0))


def _lengths(plans: Plans, c: Columns, data: np.ndarray, gathers_parameters: np.ndarray) -> list[Floats]:
    """Lengths of the passes of one layer, by kind. data: plans with data parallelism. gathers_parameters: plans whose parameters are
    gathered for every pass."""
    framework = plans.problem.framework
    slowed, slowed_by_gather = np.where(data[:, None], c.slowdown[:, :2], 0.0), c.slowdown[:, 2:]
    group = _reduction_group(plans)[:, None]
    reduced = data[:, None] & (plans["zero"] == 2)[:, None] & (group > 0)  # after every group of microbatches, beside the next layers
    sharded = gathers_parameters[:, None]

    # a pipeline of one stage holds the embedding, which every microbatch reduces too; of several, the others hide it
    whole = np.where(plans["pp"] == 1, c.outer_reduction[:, 0] / plans.problem.model.layers, 0.0)
    reduction = c.reduction + whole[:, None]

    def with_reduction(backward: Floats, beside: Floats, other_passes: Floats) -> Floats:
        """The pass of a layer: if each group of microbatches reduces its gradients, so long that they are reduced before the next
        group's, for which they have its other passes too; else slowed by what runs beside it."""
        share = 1 / np.maximum(group, 1)
        return np.asarray(np.where(reduced, np.maximum(backward + slowed * share, reduction * share - other_passes), backward + beside))

    last = slowed if framework.dp_overlap else np.zeros_like(slowed)
    none = np.zeros_like(slowed)
    gathered = np.maximum(c.backward + slowed + slowed_by_gather, c.gather + c.reduction)
    return [
        np.where(sharded, np.maximum(c.forward + slowed_by_gather, c.gather), c.forward),
        np.where(sharded, gathered, with_reduction(c.backward, none, c.forward)),
        c.inputs,
        with_reduction(c.weights, none, c.forward + c.inputs),
        np.where(sharded, gathered, with_reduction(c.backward, last, c.forward)),
        with_reduction(c.weights, last, c.forward + c.inputs),
    ]
