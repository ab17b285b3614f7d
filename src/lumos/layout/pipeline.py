"""The order in which a pipeline stage runs its microbatches.

An action is a pass of one microbatch through one of the stage's chunks (virtual stages): forward, backward, or in
zero-bubble schedules the backward pass split into input gradients and weight gradients.

GPipe: Huang et al. 2019 (arXiv:1811.06965). 1F1B: Narayanan et al. 2019 (PipeDream-flush). Interleaved: Narayanan et al.
2021 (arXiv:2104.04473), in Megatron's order. Zero bubble: Qi et al. 2023 (arXiv:2401.10241), ZB-H1: no stage holds more than the
first one of 1F1B does. DualPipe: DeepSeek-V3 (arXiv:2412.19437), two directions in one; each device holds a chunk of either direction.

What a step of p stages loses, with equal passes of F (forward), I (input gradients) and W ≤ F (weight gradients) and free transfers:
1F1B (p − 1)(F + I + W), ZB-H1 (p − 1)(F + I − W), both as published. DualPipe (p/2 − 1)(F + I − W) with passes one after the
other; the published (p/2 − 1)(F&B + 2 I + 2 W − 3 W) is for turns of a forward and a backward pass that end together.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import NamedTuple


class Pass(IntEnum):
    """What an action does."""

    FORWARD = 0
    BACKWARD = 1  # input and weight gradients
    INPUT = 2  # input gradients alone
    WEIGHT = 3  # weight gradients alone


class Action(NamedTuple):
    """One pass of microbatch `microbatch` through chunk `chunk` of a stage."""

    step: Pass
    microbatch: int
    chunk: int = 0


def schedule(name: str, stage: int, stages: int, microbatches: int, chunks: int = 1) -> list[Action]:
    """The actions of pipeline stage `stage`, in the order in which it runs them."""
    if name == "gpipe":
        return gpipe(microbatches)
    if name == "zero-bubble":
        return zero_bubble(stage, stages, microbatches)
    if name == "dualpipe":
        return dualpipe(stage, stages, microbatches)
    if chunks > 1:
        return interleaved(stage, stages, microbatches, chunks)
    return one_forward_one_backward(stage, stages, microbatches)


def gpipe(microbatches: int) -> list[Action]:
    """All forward, then all backward passes."""
    forward = [Action(Pass.FORWARD, i) for i in range(microbatches)]
    return forward + [Action(Pass.BACKWARD, i) for i in reversed(range(microbatches))]


def one_forward_one_backward(stage: int, stages: int, microbatches: int) -> list[Action]:
    """1F1B: stage s holds at most stages − s microbatches."""
    warm = min(stages - stage - 1, microbatches)
    actions = [Action(Pass.FORWARD, i) for i in range(warm)]
    for i in range(microbatches - warm):
        actions += [Action(Pass.FORWARD, warm + i), Action(Pass.BACKWARD, i)]
    return actions + [Action(Pass.BACKWARD, i) for i in range(microbatches - warm, microbatches)]


def interleaved(stage: int, stages: int, microbatches: int, chunks: int) -> list[Action]:
    """Megatron's interleaved 1F1B: groups of `stages` microbatches go through the chunks in turn."""
    total = microbatches * chunks

    def forward(i: int) -> Action:
        group, inside = divmod(i, stages * chunks)
        chunk, lane = divmod(inside, stages)
        return Action(Pass.FORWARD, group * stages + lane, chunk)

    def backward(i: int) -> Action:
        group, inside = divmod(i, stages * chunks)
        chunk, lane = divmod(inside, stages)
        return Action(Pass.BACKWARD, group * stages + lane, chunks - 1 - chunk)

    warm = total if microbatches == stages else min(total, (stages - stage - 1) * 2 + (chunks - 1) * stages)
    actions = [forward(i) for i in range(warm)]
    for i in range(total - warm):
        actions += [forward(warm + i), backward(i)]
    return actions + [backward(i) for i in range(total - warm, total)]


def zero_bubble(stage: int, stages: int, microbatches: int) -> list[Action]:
    """ZB-H1: 1F1B with weight gradients put off to fill the bubble at the end.

    A later stage has its idle time at the end to fill, so it puts off as many as there are stages before it. Nobody waits for
    the first stage's input gradients: its backward passes stay whole, as runtimes merge neighbours of one microbatch.
    """
    if stage == 0:
        return one_forward_one_backward(stage, stages, microbatches)
    actions: list[Action] = []
    backward = 0
    for action in one_forward_one_backward(stage, stages, microbatches):
        if action.step is Pass.FORWARD:
            actions.append(action)
            continue
        actions.append(Action(Pass.INPUT, action.microbatch))
        backward += 1
        if backward > stage:
            actions.append(Action(Pass.WEIGHT, backward - stage - 1))
    return actions + [Action(Pass.WEIGHT, i) for i in range(max(0, microbatches - stage), microbatches)]


def dualpipe(stage: int, stages: int, microbatches: int) -> list[Action]:
    """Two pipelines in opposite directions over the same devices: chunk 0 runs down with the first half of the microbatches,
    chunk 1 up with the rest; at most stages + 1 microbatches are in flight on a device.

    The eight steps of DeepSeek's published implementation (github.com/deepseek-ai/DualPipe, `DualPipe.step`), which needs an even
    number of microbatches, at least twice the stages. There a forward and a backward pass of the two directions share
    one turn, their kernels interleaved; here the forward pass runs before the backward pass.
    """
    return _Turns(stage, stages, microbatches).actions


class _Turns:
    """The passes of one device, `near` the direction that enters the pipeline on its half."""

    def __init__(self, stage: int, stages: int, microbatches: int) -> None:
        half, near = stages // 2, 0 if stage < stages // 2 else 1
        far, depth = 1 - near, min(stage, stages - 1 - stage)
        self.actions: list[Action] = []
        self._first = (0, microbatches // 2)
        self._forwarded, self._returned = [0, 0], [0, 0]
        self._put_off: list[Action] = []  # weight gradients, oldest first
        for _ in range(2 * (half - depth - 1)):
            self._forward(near)
        for _ in range(depth + 1):
            self._forward(near)
            self._forward(far)
        for _ in range(half - depth - 1):
            self._backward(far, split=True)
            self._weights()
            self._forward(far)
        for _ in range(microbatches // 2 - stages + depth + 1):
            self._forward(near)
            self._backward(far)
            self._forward(far)
            self._backward(near)
        for _ in range(half - depth - 1):
            self._backward(far)
            self._forward(far)
            self._backward(near)
        for turn in range(2 * (depth + 1)):  # the second half splits its passes
            self._backward(far if turn % 2 == 0 else near, split=turn > depth)
        for _ in range(half - depth - 1):
            self._weights()
            self._backward(near, split=True)
        while self._put_off:
            self._weights()

    def _forward(self, chunk: int) -> None:
        self.actions.append(Action(Pass.FORWARD, self._first[chunk] + self._forwarded[chunk], chunk))
        self._forwarded[chunk] += 1

    def _backward(self, chunk: int, split: bool = False) -> None:
        microbatch = self._first[chunk] + self._returned[chunk]
        self.actions.append(Action(Pass.INPUT if split else Pass.BACKWARD, microbatch, chunk))
        self._returned[chunk] += 1
        if split:
            self._put_off.append(Action(Pass.WEIGHT, microbatch, chunk))

    def _weights(self) -> None:
        self.actions.append(self._put_off.pop(0))


def last_gradients(actions: Iterable[Action]) -> dict[int, int]:
    """Where in `actions` the weight gradients of each chunk are complete: its last whole backward or weight-gradient pass."""
    return {action.chunk: i for i, action in enumerate(actions) if action.step in (Pass.BACKWARD, Pass.WEIGHT)}
