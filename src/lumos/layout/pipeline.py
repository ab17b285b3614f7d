"""The order in which a pipeline stage runs its microbatches.

An action is a pass of one microbatch through one of the stage's chunks (virtual stages): forward, backward, or in
zero-bubble schedules the backward pass split into input gradients and weight gradients.

GPipe: Huang et al. 2019 (arXiv:1811.06965). 1F1B: Narayanan et al. 2019 (PipeDream-flush). Interleaved: Narayanan et al.
2021 (arXiv:2104.04473), in Megatron's order. Zero bubble: Qi et al. 2023 (arXiv:2401.10241), ZB-H1: 1F1B's memory.
DualPipe: DeepSeek-V3 (arXiv:2412.19437), two directions in one; each device holds a chunk of either direction.
"""

from __future__ import annotations

from enum import IntEnum
from functools import cache
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
    """ZB-H1: 1F1B with weight gradients put off to fill the bubble at the end; memory as 1F1B."""
    actions: list[Action] = []
    waiting = 0  # weight gradients put off, oldest first
    done = 0
    for action in one_forward_one_backward(stage, stages, microbatches):
        if action.step is Pass.FORWARD:
            actions.append(action)
            continue
        actions.append(Action(Pass.INPUT, action.microbatch))
        waiting += 1
        if waiting > stage:  # a later stage has its idle time at the end to fill, an earlier one between passes
            actions.append(Action(Pass.WEIGHT, done))
            done, waiting = done + 1, waiting - 1
    return actions + [Action(Pass.WEIGHT, i) for i in range(done, microbatches)]


def dualpipe(stage: int, stages: int, microbatches: int) -> list[Action]:
    """Two pipelines in opposite directions over the same devices: chunk 0 runs down with the first half of the microbatches,
    chunk 1 up with the rest; at most stages + 1 microbatches are in flight on a device.

    The order is that of a simulation in unit time, backward passes (twice as long) first, the two directions in turn.
    DeepSeek overlaps a forward with a backward pass inside one turn; here the streams alone overlap.
    """
    return list(_both_ways(stages, microbatches)[stage])


@cache
def _both_ways(stages: int, microbatches: int) -> tuple[tuple[Action, ...], ...]:
    down = (microbatches + 1) // 2
    of_chunk = (range(down), range(down, microbatches))
    orders: list[list[Action]] = [[] for _ in range(stages)]
    done: dict[tuple[Pass, int, int], int] = {}  # (pass, position along the model, microbatch) → end
    next_one = {(step, s, c): 0 for step in (Pass.FORWARD, Pass.BACKWARD) for s in range(stages) for c in (0, 1)}
    free, live = [0] * stages, [0] * stages
    left, time = 4 * microbatches * stages // 2, 0
    while left:
        for s in range(stages):
            if free[s] > time:
                continue
            turn = len(orders[s]) % 2
            for step, c in ((Pass.BACKWARD, turn), (Pass.BACKWARD, 1 - turn), (Pass.FORWARD, turn), (Pass.FORWARD, 1 - turn)):
                i = next_one[step, s, c]
                if i >= len(of_chunk[c]) or (step is Pass.FORWARD and live[s] > stages):
                    continue
                microbatch, place = of_chunk[c][i], s if c == 0 else stages - 1 - s
                if not _ready(done, step, place, microbatch, stages, time):
                    continue
                free[s] = time + (1 if step is Pass.FORWARD else 2)
                done[step, place, microbatch] = free[s]
                next_one[step, s, c] += 1
                live[s] += 1 if step is Pass.FORWARD else -1
                orders[s].append(Action(step, microbatch, c))
                left -= 1
                break
        time += 1
    return tuple(tuple(order) for order in orders)


def _ready(done: dict[tuple[Pass, int, int], int], step: Pass, place: int, microbatch: int, stages: int, time: int) -> bool:
    """Whether what a pass needs has ended by `time`."""
    if step is Pass.FORWARD:
        return place == 0 or done.get((step, place - 1, microbatch), time + 1) <= time
    if place == stages - 1:
        return done.get((Pass.FORWARD, place, microbatch), time + 1) <= time
    return done.get((step, place + 1, microbatch), time + 1) <= time
