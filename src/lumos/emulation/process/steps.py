"""When a training step ends: where its optimizer has stepped, as in a recording of the real script, or where the script says so.

An optimizer that steps for one parameter after the other in hooks of the backward pass has stepped when that pass is done.
"""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any

import torch

from lumos.collect.hook import MARKED
from lumos.collect.hook import step as marked
from lumos.emulation.process.script import leave
from lumos.emulation.process.settings import MARKS, StepEnd

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from lumos.emulation.process.owners import Owners

#: A script that has called its outermost module so often and made no optimizer has none.
_CALLS_WITHOUT = 16


def count_steps(step: Callable[[], None], ended_by: StepEnd, without_optimizer: Callable[[], None], owners: Owners) -> None:
    """Call `step` at the end of each step. without_optimizer: called where the script turns out to have no optimizer, which it may never
    end to say."""
    MARKED.append(step if ended_by is StepEnd.MARK else lambda: leave(MARKS))
    if ended_by is StepEnd.MODULE:
        owners.after_call = step
    else:
        counts = ended_by is StepEnd.OPTIMIZER
        _after_optimizer(*(lambda: owners.outside_backward(step), without_optimizer) if counts else (_nothing, _nothing), owners)


def _nothing() -> None:
    pass


def profiled(ended_by: StepEnd, is_over: bool) -> None:
    """The script's own profiler is told that a step has ended, or has a schedule and will be; it counts where there is no optimizer."""
    if ended_by is StepEnd.MODULE or (is_over and ended_by is StepEnd.MARK):
        marked()


def _after_optimizer(step: Callable[[], None], without_optimizer: Callable[[], None], owners: Owners) -> None:
    """The end of `Optimizer.step` itself, rather than its hook for it, so that the row of the call is complete."""
    from torch.optim.optimizer import Optimizer

    first: list[int] = []
    calls = 0
    profiled = Optimizer.profile_hook_step

    def called() -> None:
        nonlocal calls
        calls += 1
        if calls == _CALLS_WITHOUT:
            without_optimizer()

    owners.after_call = called

    def with_end(function: Any) -> Any:
        owners.after_call = _nothing  # an optimizer is being made
        stepped = profiled(function)

        @functools.wraps(stepped)
        def wrapper(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            owners.step_begins(optimizer)
            try:
                out = stepped(optimizer, *args, **kwargs)
            finally:
                owners.step_ends(optimizer)
            first.append(id(optimizer))
            if first[0] == id(optimizer):
                holder = None if sys.getprofile() else _holder(sys._getframe(1))  # the script may measure its calls itself
                step() if holder is None else _at_return(holder, step)
            return out

        return wrapper

    Optimizer.profile_hook_step = staticmethod(with_end)


def _holder(frame: FrameType | None) -> FrameType | None:
    """The outermost call of `step` of an optimizer that has one of torch's inside, as those that keep parameters in two precisions have;
    None where there is none. What it does once that one has stepped belongs to the same step. frame: of the caller of the one inside."""
    found = None
    while frame is not None:
        held = frame.f_locals.get("self") if frame.f_code.co_name == "step" else None
        if held is not None and not isinstance(held, torch.optim.Optimizer) and _has_parameters(held):
            found = frame
        frame = frame.f_back
    return found


def _at_return(frame: FrameType, call: Callable[[], None]) -> None:
    """Make a call when a function that is running returns."""

    def seen(other: FrameType, event: str, _: Any) -> None:
        if event == "return" and other is frame:
            sys.setprofile(None)
            call()

    sys.setprofile(seen)


def _has_parameters(held: Any) -> bool:
    """Whether an object is an optimizer, by what each of them has."""
    return "param_groups" in vars(held) or hasattr(type(held), "param_groups")
