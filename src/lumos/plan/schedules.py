"""The order in which a pipeline stage runs its microbatches.

An action is a pass of one microbatch through one of the stage's chunks (virtual stages): forward, backward, or in
zero-bubble schedules one half of a backward pass (input gradients or weight gradients). The schedules and their sources
are in `native/pipeline_schedule.hpp`, so that the search can run through them without Python.

The bubble of p stages, if all passes of one kind take equally long (F forward, I input gradients, W ≤ F weight gradients) and
transfers are free: 1F1B (p − 1)(F + I + W) and ZB-H1 (p − 1)(F + I − W), both as published. DualPipe has
(p/2 − 1)(F + I − W) if its passes run one after the other, as here; the published (p/2 − 1)(F&B + 2 I + 2 W − 3 W) assumes
that a forward and a backward pass run at once and end together.

How often gradients are reduced of which each rank keeps only its part (ZeRO 2), and how many of them are whole until then: without a
pipeline they are reduced after every microbatch. In a pipeline it depends on the framework (its switch `grad_reduce`):

* after every microbatch: the gradients of two buckets are whole at a time, that which is computed and that which is reduced, and
  there is one exchange for each microbatch;
* after each group of microbatches that a virtual stage runs one after the other: only one virtual stage's gradients are whole at a
  time. An interleaved schedule runs groups of as many microbatches as it has stages (Narayanan et al. 2021, arXiv:2104.04473,
  section 2.2); in other schedules all microbatches are one group;
* once a step, after the last microbatch.
"""

from __future__ import annotations

from enum import IntEnum
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from lumos import _pipeline
from lumos.vocabulary import GradientReduction, Schedule, check_enum

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from lumos.plan.framework import Framework
    from lumos.plan.plan import Plan


class Pass(IntEnum):
    """Which pass an action runs."""

    FORWARD = 0
    BACKWARD = 1  # input and weight gradients
    INPUT = 2  # input gradients alone
    WEIGHT = 3  # weight gradients alone


check_enum(_pipeline, Pass)
check_enum(_pipeline, Schedule)

#: Schedules in which a stage waits until the receiver has taken what it sent, unless transfers run during compute. If passes of
#: several chunks alternate, sends and receives are issued as one batch instead. Zero-bubble runtimes do not wait for sends (sail-sg's
#: `zerobubble/runtime.py` waits only for what it receives): a waiting stage could not run its delayed weight gradients.
HELD_BY_SENDS = (Schedule.GPIPE, Schedule.ONE_F_ONE_B)
_PASSES = tuple(Pass)
#: The number of each schedule in the native module: its place in the enum.
_NUMBER = {name: number for number, name in enumerate(Schedule)}


class Action(NamedTuple):
    """One pass of microbatch `microbatch` through chunk `chunk` of a stage."""

    step: Pass
    microbatch: int
    chunk: int = 0


def schedule(name: Schedule, stage: int, stages: int, microbatches: int, chunks: int = 1) -> list[Action]:
    """The actions of pipeline stage `stage`, in the order in which it runs them."""
    listed = _pipeline.actions(_NUMBER[name], stage, stages, microbatches, chunks)
    return [Action(_PASSES[step], microbatch, chunk) for step, microbatch, chunk in listed]


def last_gradients(actions: Iterable[Action]) -> dict[int, int]:
    """The index in `actions` after which the weight gradients of each chunk are complete, by chunk."""
    return {action.chunk: i for i, action in enumerate(actions) if action.step in (Pass.BACKWARD, Pass.WEIGHT)}


def holds_sender(name: Schedule, chunks: int, p2p_overlap: bool) -> bool:
    """Whether a stage waits until the receiver has taken what it sent."""
    return not p2p_overlap and chunks == 1 and name in HELD_BY_SENDS


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
