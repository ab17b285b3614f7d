"""Recording without changing the training loop: every optimizer step ends a training step, or each call of `step` that a script makes.

A script calls `on_optimizer_steps` before it trains, whatever framework then runs the loop. Or `lumos collect` starts the command with
its settings in the environment, and `startup/sitecustomize.py` calls `install` in each process that loads torch's optimizers. Only the
steps of the optimizer that steps first count, so that a script with several optimizers has one training step for a step of each.
"""

from __future__ import annotations

import atexit
import importlib
import json
import os
import sys
from typing import TYPE_CHECKING, Any

from lumos.collect.window import Recording, profile

if TYPE_CHECKING:
    from collections.abc import Callable

#: What a marked end of a step is told to.
MARKED: list[Callable[[], None]] = []

#: The environment variable that carries the settings, as JSON: the arguments of `profile`.
VARIABLE = "LUMOS_COLLECT"


def step() -> None:
    """End a training step here: `lumos.collect.step()` in a loop without an optimizer, or whose steps end elsewhere. Steps of optimizers
    count no more from then on. It does nothing where `lumos collect` did not start the script."""
    for end_step in MARKED:
        end_step()


def on_optimizer_steps(folder: str | os.PathLike[str], steps: int = 3, warmup: int = 2, *, wait: int = 5, **options: Any) -> None:
    """Record the training that this process does later: `lumos.collect.on_optimizer_steps("out/")` anywhere before the loop.

    For frameworks without callbacks, or without a callback here. folder, steps, warmup, wait, options: as of `profile`. A step is a step of
    the optimizer that steps first. Raises UsageError for impossible numbers, and LumosError where torch is not installed.
    """
    settings = {"folder": os.fspath(folder), "steps": steps, "warmup": warmup, "wait": wait, **options}
    profile(**settings)  # refuses now what would fail in the loop
    importlib.import_module("torch.optim.optimizer").register_optimizer_step_post_hook(OptimizerSteps(settings))


def install(optimizer_module: Any) -> None:
    """Record, ending a step with each step of the first optimizer. optimizer_module: torch.optim.optimizer."""
    steps = OptimizerSteps(json.loads(os.environ[VARIABLE]))
    optimizer_module.register_optimizer_step_post_hook(steps)
    MARKED.append(lambda: steps(steps, is_marked=True))


class OptimizerSteps:
    """The hook that torch calls after every optimizer step. The first call opens the recording, so that the loop's first step is
    never recorded."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._settings = settings
        self._recording: Recording | None = None
        self._first: int | None = None
        self._failed = False

    def __call__(self, optimizer: Any, *_: Any, is_marked: bool = False) -> None:
        if self._failed or (self._first not in (None, id(optimizer)) and not is_marked):
            return
        self._first = id(optimizer)
        try:
            if self._recording is None:
                self._recording = profile(**self._settings).__enter__()
                atexit.register(self._recording.__exit__, None, None, None)
            else:
                self._recording.step()
        except Exception as error:  # noqa: BLE001 - nothing here may stop the training
            self._failed = True
            print(f"lumos collect: not recording: {type(error).__name__}: {error}", file=sys.stderr)
