"""Times of many plans at once: the pipeline's recurrences over columns of plans, then the end of the step.

Plans whose passes come in the same order are timed together (`native/pipeline_time.hpp`). Of long steps only as many
microbatches are timed as the pipeline needs to reach its steady state; the rest is added at the pace of its last rounds. What
it leaves out against the full simulation: a host that is late for single passes only, unless it waits for transfers (a host that is
the limit throughout counts), and with ZeRO 3 what the gathers of one pass leave for the next.
"""

from __future__ import annotations

import numpy as np

from lumos import _pipeline
from lumos.blocks.coefficients import StepCoefficients
from lumos.search.prices import Columns, Floats
from lumos.search.space import Plans
from lumos.search.structure import chunk_layers, passes, structures

#: Kinds of passes: those of `Pass`, then the backward and the weight-gradient pass that complete a chunk's gradients.
KINDS = 6


def step_times(plans: Plans, columns: Columns, coefficients: StepCoefficients) -> Floats:
    """Seconds of every plan's step, float64[n]."""
    table = _table(plans, columns, coefficients)
    out = np.zeros(len(plans))
    overlap = plans.problem.framework.p2p_overlap
    for structure, rows in structures(plans):
        passes(structure, overlap).time(table, rows, *chunk_layers(plans, int(rows[0])), out)
    nodes = np.maximum(1.0, plans.problem.gpus / plans.problem.cluster.node.devices)
    return np.asarray(out * 1e-9 * (1 + coefficients.jitter * np.log2(nodes)))


def _table(plans: Plans, c: Columns, coefficients: StepCoefficients) -> Floats:
    """What the recurrence needs of every plan, ns: float64[n, COLUMNS], in the order of `Column` in native/pipeline_time.hpp."""
    framework, n = plans.problem.framework, len(plans)
    data = plans["dp"] * plans["cp"] > 1
    whole = data & (plans["zero"] == 3)  # parameters are gathered for every pass
    late = data & (plans["zero"] != 3)
    split = data & np.isin(plans["zero"], (1, 2))
    transfers = 2 * plans["vpp"] * (plans["pp"] > 1) * 1000 * framework.transfer_us
    columns = [
        *_lengths(plans, c, data, whole),
        c.forward_host, c.backward_host, c.inputs_host, c.weights_host, c.backward_host, c.weights_host,
        *_late(plans, c), c.embedding, c.head, c.ends_host, c.transfer,
        np.where((split & framework.gather_overlap)[:, None], c.gather, 0.0),
        c.reduction, c.bucket,
        c.outer_reduction[:, 0], np.zeros(n) if plans.problem.model.tied else c.outer_reduction[:, 1],
        np.where(late[:, None], c.final_reduction, 0.0), c.optimizer, c.final_gather, c.tied,
        transfers, plans.microbatches, whole | (data & framework.dp_overlap),
        np.full(n, 1000 * framework.step_us * coefficients.step),
    ]  # fmt: skip
    table = np.column_stack(columns).astype(float)
    assert table.shape[1] == _pipeline.COLUMNS
    return np.ascontiguousarray(table)


def _late(plans: Plans, c: Columns) -> list[Floats]:
    """Where the host waits for what a pass receives: how late the first layer's work is then, and each further layer's, by kind; the
    latency of a launch."""
    if not plans.problem.framework.transfer_blocks:
        return [np.zeros((len(plans), 4 * KINDS + 1))]
    names = ("forward", "backward", "inputs", "weights", "backward", "weights")
    first = [getattr(c, f"{name}_lead") for name in names]
    further = [np.maximum(0.0, getattr(c, f"{name}_host") - getattr(c, name)) for name in names]
    latency = plans.problem.cluster.accelerator.launch_latency_s or 0.0
    return [*first, *further, np.full(len(plans), 1e9 * latency)]


def _lengths(plans: Plans, c: Columns, data: np.ndarray, whole: np.ndarray) -> list[Floats]:
    """A layer's passes by kind: those of `Pass`, then the backward and the weight-gradient pass that complete a chunk's gradients."""
    framework = plans.problem.framework
    slowed, slowed_by_gather = np.where(data[:, None], c.slowdown[:, :2], 0.0), c.slowdown[:, 2:]
    each = np.where(((plans["zero"] >= 2) & framework.reduce_each)[:, None], slowed, 0.0)
    last = slowed if framework.dp_overlap else each
    sharded = whole[:, None]
    gathered = np.maximum(c.backward + slowed + slowed_by_gather, c.gather + c.reduction)
    return [
        np.where(sharded, np.maximum(c.forward + slowed_by_gather, c.gather), c.forward),
        np.where(sharded, gathered, c.backward + each),
        c.inputs,
        c.weights + each,
        np.where(sharded, gathered, c.backward + last),
        c.weights + last,
    ]
