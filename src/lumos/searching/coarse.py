"""Times of many plans at once: the pipeline's recurrences over columns of plans, then the end of the step.

Plans that run their passes in the same order are timed together (`native/pipeline_time.hpp`). Of a long step only as many
microbatches are timed as the pipeline needs to reach its steady state; the rest is added at the pace of its last rounds.

Compared with the full simulation, two effects are missing: a host that is late for single passes, unless it waits for transfers (a
host that is the limit during the whole step is included); and with ZeRO 2 and 3 how the exchanges of single passes delay the passes after
them: of ZeRO 2 it is known how long they delay a stage's passes on average.
"""

from __future__ import annotations

from enum import IntEnum
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from lumos import _pipeline
from lumos.native import check_enum
from lumos.searching.reductions import Reduced, reduction_group
from lumos.searching.structure import chunk_layers, passes, structures

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from lumos.blocks.coefficients import StepCoefficients
    from lumos.searching.prices import Columns, Floats
    from lumos.searching.space import Plans


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


#: The kinds that leave no gradients to reduce.
_UNREDUCED = (PassKind.FORWARD, PassKind.INPUT)


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
    reduces_last = gathers_once | (data & (plans["zero"] < 2)) | ((plans["zero"] == 2) & (reduction_group(plans) == 0))
    reduced = Reduced.of(plans, c)
    lines = _lines(plans, c, reduced)
    split = data & np.isin(plans["zero"], (1, 2))
    parts: dict[str, list[NDArray[Any]]] = {
        "length": _lengths(c, reduced, gathers_parameters, framework.dp_overlap),
        "host": lines.layers,
        **_late(plans, c),
        "ends": [c.embedding, c.head],
        "ends_host": [lines.ends],
        "transfer": [c.transfer],
        "gather": [np.where(((split & framework.gather_overlap) | gathers_once)[:, None], c.gather, 0.0)],
        "gradients": [c.reduction],
        "bucket": [c.bucket],
        "outer_gradients": [c.outer_reduction[:, 0], np.zeros(n) if plans.problem.model.tied else c.outer_reduction[:, 1]],
        "late_gradients": [np.where(reduces_last[:, None], c.final_reduction, 0.0) + reduced.left(plans, c)],
        "optimizer": [c.optimizer],
        "late_gather": [c.final_gather],
        "tied": [c.tied],
        "launches": [lines.rest],
        "microbatches": [plans.microbatches],
        "beside": [gathers_parameters | (data & framework.dp_overlap)],
        "begin": [np.full(n, 1000 * framework.step_us * coefficients.step)],
    }
    stacked = [np.column_stack(part).astype(float) for part in parts.values()]
    *first, width = accumulate((part.shape[1] for part in stacked), initial=0)
    assert (dict(zip(parts, first, strict=True)), width) == (_pipeline.COLUMNS, _pipeline.WIDTH)
    return np.ascontiguousarray(np.concatenate(stacked, axis=1))


class _Lines(NamedTuple):
    """Work of a stage beside its passes, one after the other: by kind of pass of a layer, with the embedding and the head, and the rest of
    one microbatch's. The step cannot end before all of it was done."""

    layers: list[Floats]
    ends: Floats
    rest: Floats


def _lines(plans: Plans, c: Columns, reduced: Reduced) -> _Lines:
    """The launches of the host; or the reductions of every microbatch, where they take longer. Those of the first stage begin when the
    first microbatch has come back through the pipeline, where it waits for the reductions of each stage."""
    transfers = 2 * plans["vpp"] * (plans["pp"] > 1) * 1000 * plans.problem.framework.transfer_us
    host = [getattr(c, f"{name}_host") for name in _PRICES]
    reductions = [reduced.reduction * reduced.share * (kind not in _UNREDUCED) for kind in PassKind]
    model, parts = plans.problem.model, plans["pp"] * plans["vpp"]
    most = int(2 * model.mixture_layers > model.layers)  # the kind of most layers
    backward = np.maximum(c.backward, c.reduction)[:, most]
    first = model.layers * (c.forward[:, most] + (plans["pp"] - 1) / parts * backward)
    ends = reduced.ends(plans, c, most)
    held = model.layers / plans["pp"]  # layers of a stage
    line = held * reductions[PassKind.BACKWARD][:, most] + ends.max(axis=1) + first / plans.microbatches
    launches = held * (c.forward_host + c.backward_host)[:, most] + c.ends_host.max(axis=1) + transfers
    longer = reduced.plans[:, 0] & (line > launches)
    return _Lines(
        [np.where(longer[:, None], reduction, own) for reduction, own in zip(reductions, host, strict=True)],
        np.where(longer[:, None], ends, c.ends_host),
        np.where(longer, first / plans.microbatches, transfers),
    )


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


def _lengths(c: Columns, reduced: Reduced, gathers_parameters: NDArray[np.bool_], overlap: bool) -> list[Floats]:
    """Lengths of the passes of one layer, by kind. gathers_parameters: plans whose parameters are gathered for every pass. overlap: whether
    gradients are reduced during the last passes."""
    slowed, slowed_by_gather = reduced.slowed, c.slowdown[:, 2:]
    sharded = gathers_parameters[:, None]
    last = np.where(reduced.plans | overlap, slowed, 0.0)  # the last microbatch's passes, which always reduce
    per_microbatch = reduced.plans & reduced.per_microbatch
    gathered = np.maximum(c.backward + slowed + slowed_by_gather, c.gather + c.reduction)
    backward = reduced.passes(c.backward)
    weights = reduced.passes(c.weights)
    return [
        np.where(sharded, np.maximum(c.forward + slowed_by_gather, c.gather), c.forward),
        np.where(sharded, gathered, backward),
        c.inputs,
        weights,
        np.where(sharded, gathered, np.where(per_microbatch, backward, c.backward + last)),
        np.where(per_microbatch, weights, c.weights + last),
    ]
