"""Times of many plans at once: the pipeline's recurrences over columns of plans, then the end of the step.

Plans that run their passes in the same order are timed together (`native/pipeline_time.hpp`). Of a long step only as many
microbatches are timed as the pipeline needs to reach its steady state; the rest is added at the pace of its last rounds.

Compared with the full simulation, two effects are missing: a host that is late for single passes, unless it waits for transfers (a
host that is the limit during the whole step is included); and with ZeRO 2 and 3 how the exchanges of single passes delay the passes after
them: of ZeRO 2 it is known how long they delay a stage's passes on average.

A stage computes the gradients of a bucket of layers while it reduces those before them (ZeRO 2). Where every microbatch reduces, it has
room for the gradients of a few buckets only (`lumos.plan.schedules.BUCKETS`). So reductions that take longer than the layers delay a
pass, except for those of its last buckets, which run after it. Those of all passes follow each other: they take at least as long as all
of them together, and at the end of the step no other passes run beside them (`Reduced.left`).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from lumos import _pipeline
from lumos.plan.schedules import BUCKETS
from lumos.searching.space import SCHEDULES, chunk_layers, passes, structures
from lumos.vocabulary import GradientReduction, Schedule, check_enum

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from lumos.blocks.price import StepCoefficients
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


def reduction_group(plans: Plans) -> NDArray[np.int64]:
    """How many microbatches are reduced together where gradients are sharded (ZeRO 2), by plan; 0: all of the step's."""
    often = plans.problem.framework.grad_reduce
    one_by_one = (plans["pp"] == 1) | (often is GradientReduction.MICROBATCH)
    grouped = (often is GradientReduction.GROUP) & (plans["vpp"] > 1) & (plans.microbatches > plans["pp"])
    return np.where(one_by_one, 1, np.where(grouped, plans["pp"], 0))


@dataclass(frozen=True, slots=True, eq=False)
class Reduced:
    """The plans that reduce gradients before the step ends. Columns by (dense, mixture) layers, or of one column.

    plans: whether they do. per_microbatch: whether every microbatch does. share: of a reduction that falls to one microbatch. reduction: of
    one layer, ns. slowed: what a layer's pass loses to it, ns. layers: of one pass. buckets: the share of them that one bucket holds.
    """

    plans: NDArray[np.bool_]
    per_microbatch: NDArray[np.bool_]
    share: Floats
    reduction: Floats
    slowed: Floats
    layers: Floats
    buckets: Floats

    @classmethod
    def of(cls, plans: Plans, c: Columns) -> Reduced:
        """Those of `plans`, whose blocks have the prices `c`."""
        group = reduction_group(plans)[:, None]
        data = (plans["dp"] * plans["cp"] > 1)[:, None]
        layers = (plans.problem.model.layers / (plans["pp"] * plans["vpp"]))[:, None]
        return cls(
            plans=data & (plans["zero"] == 2)[:, None] & (group > 0),
            per_microbatch=group == 1,
            share=1 / np.maximum(group, 1),
            reduction=c.reduction,
            slowed=np.where(data, c.slowdown[:, :2], 0.0),
            layers=layers,
            buckets=np.minimum(1.0, c.bucket / layers),
        )

    def passes(self, alone: Floats) -> Floats:
        """The passes of one layer that take `alone` without reductions, ns."""
        slower = alone + self.slowed * self.share
        delayed = np.maximum(0.0, self.reduction - slower) * np.maximum(0.0, 1 - BUCKETS * self.buckets)
        return np.asarray(np.where(self.plans, slower + np.where(self.per_microbatch, delayed, 0.0), alone))

    def ends(self, plans: Plans, c: Columns, most: int) -> Floats:
        """How long a microbatch's reductions of the embedding and of the head hold up those of the layers, ns: float64[n, 2].

        Where every microbatch reduces, such a reduction takes one of the places of its stage. The first bucket of layers that is computed
        after it finds the other place taken by the bucket before it. So its own reduction starts no earlier than a whole bucket's pass
        after that of the bucket before. Without a pipeline, embedding and head follow each other, and only the head delays the layers.
        most: the kind of most layers, 0 dense or 1 mixture.
        """
        split = np.isin(plans["schedule"], [SCHEDULES.index(name) for name in (Schedule.ZERO_BUBBLE, Schedule.DUALPIPE)])
        alone = np.where(split[:, None], c.weights, c.backward) + self.slowed
        bucket = np.where(self.per_microbatch[:, 0], (self.buckets * self.layers * alone)[:, most], 0.0)
        embedding, head = (self.share[:, 0] * c.outer_reduction[:, part] for part in (0, 1))
        delayed = np.maximum(embedding, bucket)
        if plans.problem.model.tied:  # the head's gradients are the embedding's
            return np.column_stack([delayed, np.zeros(len(plans))])
        return np.column_stack([np.where(plans["pp"] == 1, embedding, delayed), np.maximum(head, bucket)])

    def left(self, plans: Plans, c: Columns) -> Floats:
        """By how much reductions delay the end of a stage whose last passes follow each other, ns: by (first stage, middle ones, last).

        An interleaved stage begins with at least (vpp − 1) · pp forward passes before the two kinds alternate, so it ends with as many
        backward passes. Of a zero-bubble schedule, stage s > 0 leaves the weight gradients of s + 1 microbatches to the end.
        """
        name, stages = plans["schedule"], plans["pp"]
        interleaved = np.where(name == SCHEDULES.index(Schedule.INTERLEAVED), (plans["vpp"] - 1) * stages, 0)
        delayed = np.where(name == SCHEDULES.index(Schedule.ZERO_BUBBLE), stages, 0)
        weights = np.stack([np.zeros(len(plans)), delayed / 2, np.maximum(0, delayed - 1)], axis=1)
        longer = [(self.layers * np.maximum(0.0, self.reduction - self.passes(alone)))[:, :1] for alone in (c.backward, c.weights)]
        return np.asarray(np.where(self.plans & self.per_microbatch, interleaved[:, None] * longer[0] + weights * longer[1], 0.0))
