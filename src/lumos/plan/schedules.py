"""The order in which a pipeline stage runs its microbatches.

An action is a pass of one microbatch through one of the stage's chunks (virtual stages): forward, backward, or in
zero-bubble schedules the backward pass split into input gradients and weight gradients. The schedules themselves, with their
sources, are in `native/pipeline_schedule.hpp`, which the search walks without Python.

What a step of p stages loses, with equal passes of F (forward), I (input gradients) and W ≤ F (weight gradients) and free transfers:
1F1B (p − 1)(F + I + W), ZB-H1 (p − 1)(F + I − W), both as published. DualPipe (p/2 − 1)(F + I − W) with passes one after the
other; the published (p/2 − 1)(F&B + 2 I + 2 W − 3 W) is for turns of a forward and a backward pass that end together.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import NamedTuple

from lumos import _pipeline
from lumos.native import check_enum
from lumos.vocabulary import Schedule


class Pass(IntEnum):
    """What an action does."""

    FORWARD = 0
    BACKWARD = 1  # input and weight gradients
    INPUT = 2  # input gradients alone
    WEIGHT = 3  # weight gradients alone


check_enum(_pipeline, Pass)
check_enum(_pipeline, Schedule)

#: Schedules whose stages stand still until what they sent is taken, where transfers do not run beside compute. Where passes of
#: several chunks alternate, sends and receives go as one batch instead; zero-bubble runtimes hand sends over and go on (sail-sg's
#: `zerobubble/runtime.py` waits for what it receives alone), as a stage that waited for a taker could not run what it put off.
HELD_BY_SENDS = (Schedule.GPIPE, Schedule.ONE_F_ONE_B)
_PASSES = tuple(Pass)
#: What the native module knows each schedule by: its place in the enum.
_PLACE = {name: place for place, name in enumerate(Schedule)}


class Action(NamedTuple):
    """One pass of microbatch `microbatch` through chunk `chunk` of a stage."""

    step: Pass
    microbatch: int
    chunk: int = 0


def schedule(name: Schedule, stage: int, stages: int, microbatches: int, chunks: int = 1) -> list[Action]:
    """The actions of pipeline stage `stage`, in the order in which it runs them."""
    listed = _pipeline.actions(_PLACE[name], stage, stages, microbatches, chunks)
    return [Action(_PASSES[step], microbatch, chunk) for step, microbatch, chunk in listed]


def last_gradients(actions: Iterable[Action]) -> dict[int, int]:
    """Where in `actions` the weight gradients of each chunk are complete: its last whole backward or weight-gradient pass."""
    return {action.chunk: i for i, action in enumerate(actions) if action.step in (Pass.BACKWARD, Pass.WEIGHT)}


def holds_sender(name: Schedule, chunks: int, p2p_overlap: bool) -> bool:
    """Whether a stage stands still until what it sent is taken."""
    return not p2p_overlap and chunks == 1 and name in HELD_BY_SENDS
