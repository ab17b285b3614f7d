"""The order in which a pipeline stage runs its microbatches.

An action is a pass of one microbatch through one of the stage's chunks (virtual stages): forward, backward, or in
zero-bubble schedules one half of a backward pass (input gradients or weight gradients). The schedules and their sources
are in `native/pipeline_schedule.hpp`, so that the search can run through them without Python.

The bubble of p stages, if all passes of one kind take equally long (F forward, I input gradients, W ≤ F weight gradients) and
transfers are free: 1F1B (p − 1)(F + I + W) and ZB-H1 (p − 1)(F + I − W), both as published. DualPipe has
(p/2 − 1)(F + I − W) if its passes run one after the other, as here; the published (p/2 − 1)(F&B + 2 I + 2 W − 3 W) assumes
that a forward and a backward pass run at once and end together.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

from lumos import _pipeline
from lumos.native import check_enum
from lumos.vocabulary import Schedule

if TYPE_CHECKING:
    from collections.abc import Iterable


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
