"""When a training step ends: where its optimizer has stepped, as in a recording of the real script, or where the script says so.

An optimizer that steps for one parameter after the other in hooks of the backward pass has stepped when that pass is done.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from lumos.collect.hook import MARKED
from lumos.collect.hook import step as marked
from lumos.emulation.process.patches import TORCH
from lumos.emulation.process.script import leave
from lumos.emulation.process.settings import MARKS, StepEnd

if TYPE_CHECKING:
    from collections.abc import Callable

    from lumos.emulation.process.owners import Owners

#: A script that has called its outermost module so often and made no optimizer has none.
_CALLS_WITHOUT = 16


def count_steps(step: Callable[[], None], ended_by: StepEnd, without_optimizer: Callable[[], None], owners: Owners) -> None:
    """Call `step` at the end of each step. without_optimizer: called where the script turns out to have no optimizer, which it may never
    end to say. The end of `Optimizer.step` is meant, rather than its hook for it, so that the row of the call is complete."""
    from torch.optim.optimizer import Optimizer

    MARKED.append(step if ended_by is StepEnd.MARK else lambda: leave(MARKS))
    first: list[int] = []
    calls = 0

    def called() -> None:
        nonlocal calls
        calls += 1
        if calls == _CALLS_WITHOUT and ended_by is StepEnd.OPTIMIZER:
            without_optimizer()

    owners.after_call = step if ended_by is StepEnd.MODULE else called

    def with_end(profiled: Any, function: Any) -> Any:
        if ended_by is not StepEnd.MODULE:
            owners.after_call = lambda: None  # an optimizer is being made
        stepped = profiled(function)

        @functools.wraps(stepped)
        def wrapper(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            owners.step_begins(optimizer)
            try:
                out = stepped(optimizer, *args, **kwargs)
            finally:
                owners.step_ends(optimizer)
            first.append(id(optimizer))
            if first[0] == id(optimizer) and ended_by is StepEnd.OPTIMIZER:
                owners.outside_backward(step)
            return out

        return wrapper

    before = Optimizer.profile_hook_step
    TORCH.put(Optimizer, "profile_hook_step", staticmethod(lambda function: with_end(before, function)))


def profiled(ended_by: StepEnd, is_over: bool) -> None:
    """The script's own profiler is told that a step has ended, or has a schedule and will be; it counts where there is no optimizer."""
    if ended_by is StepEnd.MODULE or (is_over and ended_by is StepEnd.MARK):
        marked()
