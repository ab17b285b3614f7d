"""When a training step ends: where its optimizer has stepped, as in a recording of the real script.

An optimizer that steps for one parameter after the other in hooks of the backward pass has stepped when that pass is done.
"""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from lumos.emulation.process.owners import Owners

#: A script that has called its outermost module so often and made no optimizer has none.
_CALLS_WITHOUT = 16


def install(step: Callable[[], None], by_forward: bool, without_optimizer: Callable[[], None], owners: Owners) -> None:
    """Call `step` at the end of each step of the first optimizer that steps, or of the optimizer that holds it; of a script without one, at
    the end of each call of an outermost module. without_optimizer: called where the script turns out to have no optimizer, which it may
    never end to say."""
    if by_forward:
        _after_forward(step)
    else:
        _after_optimizer(step, without_optimizer, owners)


def _after_optimizer(step: Callable[[], None], without_optimizer: Callable[[], None], owners: Owners) -> None:
    """The end of `Optimizer.step` itself, rather than its hook for it, so that the row of the call is complete."""
    from torch.optim.optimizer import Optimizer

    step = _outside_backward(step)
    first: list[int] = []
    calls = 0
    profiled = Optimizer.profile_hook_step

    def called() -> None:
        nonlocal calls
        calls += 1
        if calls == _CALLS_WITHOUT:
            without_optimizer()

    give_back = _after_forward(called)

    def with_end(function: Any) -> Any:
        give_back()  # an optimizer is being made
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


def _outside_backward(step: Callable[[], None]) -> Callable[[], None]:
    """`step`, or where a backward pass runs, what lets it be called once that pass is done, on the thread that asked for it. There the
    thread of the pass would otherwise begin and end what is recorded of all threads."""
    run = torch.autograd._engine_run_backward
    running, is_due = 0, False

    def run_backward(*args: Any, **kwargs: Any) -> Any:
        nonlocal running, is_due
        running += 1
        try:
            out = run(*args, **kwargs)
        finally:
            running -= 1
        if is_due and running == 0:
            is_due = False
            step()
        return out

    def later() -> None:
        nonlocal is_due
        if running:
            is_due = True
        else:
            step()

    torch.autograd._engine_run_backward = run_backward
    return later


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


def _after_forward(step: Callable[[], None]) -> Callable[[], None]:
    """Call `step` after each call of an outermost module. Returns what ends this."""
    call = torch.nn.Module.__call__
    depth = 0

    def counted(module: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal depth
        depth += 1
        try:
            return call(module, *args, **kwargs)
        finally:
            depth -= 1
            if depth == 0:
                step()

    def give_back() -> None:
        torch.nn.Module.__call__ = call

    torch.nn.Module.__call__ = counted
    return give_back
