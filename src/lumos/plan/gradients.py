"""How often a plan reduces gradients of which each rank keeps only its part (ZeRO 2), and how many of them are whole until then.

Without a pipeline they are reduced after every microbatch. In a pipeline it depends on the framework (its switch `grad_reduce`):

* after every microbatch: the gradients of two buckets are whole at a time, that which is computed and that which is reduced, and
  there is one exchange for each microbatch;
* after each group of microbatches that a virtual stage runs one after the other: only one virtual stage's gradients are whole at a
  time. An interleaved schedule runs groups of as many microbatches as it has stages (Narayanan et al. 2021, arXiv:2104.04473,
  section 2.2); in other schedules all microbatches are one group;
* once a step, after the last microbatch.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from lumos.plan.schedules import Action, Pass, last_gradients
from lumos.vocabulary import GradientReduction

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lumos.plan.framework import Framework
    from lumos.plan.plan import Plan


#: How many buckets of gradients are whole at a time where every microbatch reduces them. DeepSpeed fills one of two buffers while it
#: reduces the other (runtime/zero/stage_1_and_2.py, `ipg_index`), and Megatron-FSDP bounds the queue of reductions by the gradients of
#: two modules (megatron_fsdp.py, `suggested_RS_queue_capacity`).
BUCKETS = 2


def gradient_reduction(plan: Plan, framework: Framework) -> GradientReduction:
    """How often the plan reduces gradients; once a step where nothing makes it reduce them more often."""
    if not plan.shards_gradients or plan.dp * plan.cp == 1 or plan.lora_rank:
        return GradientReduction.STEP
    if plan.pp == 1:
        return GradientReduction.MICROBATCH
    one_group = plan.vpp == 1 or plan.microbatches <= plan.pp  # that a virtual stage runs one after the other
    return GradientReduction.STEP if framework.grad_reduce is GradientReduction.GROUP and one_group else framework.grad_reduce


def reducing_passes(actions: Sequence[Action], reduction: GradientReduction) -> frozenset[int]:
    """The indices in `actions` of the passes that are followed by a reduction of their chunk's gradients."""
    passes = [i for i, action in enumerate(actions) if action.step in (Pass.BACKWARD, Pass.WEIGHT)]
    if reduction is GradientReduction.MICROBATCH:
        return frozenset(passes)
    if reduction is GradientReduction.STEP:
        return frozenset(last_gradients(actions).values())
    following = pairwise(passes)
    return frozenset(passes[-1:]) | {i for i, after in following if actions[i].chunk != actions[after].chunk}
