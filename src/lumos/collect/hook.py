"""Recording without changing the script: every optimizer step ends a training step.

`lumos collect` starts the command with its settings in the environment; `startup/sitecustomize.py` calls `install` in
each process that loads torch's optimizers. Only the steps of the optimizer that steps first count, so that a script with
several optimizers has one training step for a step of each.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
from typing import Any

from lumos.collect.window import Recording, profile

#: The environment variable that carries the settings, as JSON: the arguments of `profile`.
VARIABLE = "LUMOS_COLLECT"


def install(optimizer_module: Any) -> None:
    """Record, ending a step with each step of the first optimizer. optimizer_module: torch.optim.optimizer."""
    optimizer_module.register_optimizer_step_post_hook(OptimizerSteps(json.loads(os.environ[VARIABLE])))


class OptimizerSteps:
    """The hook that torch calls after every optimizer step. The first call opens the recording, so that the loop's first step is
    never recorded."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._settings = settings
        self._recording: Recording | None = None
        self._first: int | None = None
        self._failed = False

    def __call__(self, optimizer: Any, *_: Any) -> None:
        if self._failed or self._first not in (None, id(optimizer)):
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
