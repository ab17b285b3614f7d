"""Functions that the script compiles: run operator by operator, inside ranges from which the kernels of the compiled code follow.

A module that is compiled stays itself, so that its parameters keep their names.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch
from torch._C._profiler import _RecordFunctionFast

from lumos.emulation.record import REGION_PREFIX

if TYPE_CHECKING:
    from collections.abc import Callable

    from lumos.emulation.process.journal import Journal


def install(journal: Journal) -> None:
    """Put a range around every call of a function or module that the script compiles, while the journal records."""
    count = 0

    def ranged(function: Callable[..., Any]) -> Callable[..., Any]:
        nonlocal count
        name = f"{REGION_PREFIX}{count}/0"
        count += 1
        journal.assume("fused-by-rule", "what torch.compile fuses is known by rule: its compiler does not run here")

        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            if not journal.recording:
                return function(*args, **kwargs)
            with _RecordFunctionFast(name):
                return function(*args, **kwargs)

        return run

    def compiled(model: Any = None, **options: Any) -> Any:
        if model is None:
            return lambda later: compiled(later, **options)
        if isinstance(model, torch.nn.Module):
            compiled_module(model)
            return model
        return ranged(model)

    def compiled_module(module: Any, *_: Any, **__: Any) -> None:
        module.forward = ranged(module.forward)

    torch.compile = compiled
    torch.nn.Module.compile = compiled_module
