"""When a training step ends: where its optimizer has stepped, as in a recording of the real script."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable


#: A script that has called its outermost module so often and made no optimizer has none.
_CALLS_WITHOUT = 16


def install(step: Callable[[], None], by_forward: bool, without_optimizer: Callable[[], None]) -> None:
    """Call `step` at the end of each step of the first optimizer that steps; of a script without one, at the end of each call of an
    outermost module. without_optimizer: called where the script turns out to have no optimizer, which it may never end to say."""
    if by_forward:
        _after_forward(step)
    else:
        _after_optimizer(step, without_optimizer)


def _after_optimizer(step: Callable[[], None], without_optimizer: Callable[[], None]) -> None:
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

    give_back = _after_forward(called)

    def with_end(function: Any) -> Any:
        give_back()  # an optimizer is being made
        stepped = profiled(function)

        @functools.wraps(stepped)
        def wrapper(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            out = stepped(optimizer, *args, **kwargs)
            first.append(id(optimizer))
            if first[0] == id(optimizer):
                step()
            return out

        return wrapper

    Optimizer.profile_hook_step = staticmethod(with_end)


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
