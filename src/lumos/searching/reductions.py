"""Gradients that a plan reduces before the step ends (ZeRO 2), in columns of plans: what they delay.

A stage computes the gradients of a bucket of layers while it reduces those before them. Where every microbatch reduces, it has room for the
gradients of a few buckets only (`lumos.plan.gradients.BUCKETS`). So reductions that take longer than the layers delay a pass, except for
those of its last buckets, which run after it. Those of all passes follow each other: they take at least as long as all of them together
(`lumos.searching.coarse`), and at the end of the step no other passes run beside them (`Reduced.left`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from lumos.plan.gradients import BUCKETS
from lumos.searching.space import SCHEDULES
from lumos.vocabulary import GradientReduction, Schedule

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from lumos.searching.prices import Columns, Floats
    from lumos.searching.space import Plans


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
