"""Launchers of several processes (torchrun, accelerate): the emulated job has one process at a time, so they become that one."""

from __future__ import annotations

import importlib
import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lumos.emulate.process.settings import EmulationSettings

_NAMES = ("torchrun", "torch.distributed.run", "torch.distributed.launch", "accelerate", "accelerate.commands.launch")


def is_this() -> bool:
    """Whether this process is a launcher rather than the script."""
    return any(os.path.basename(each) in _NAMES for each in sys.orig_argv[:4])  # noqa: PTH119


def install(settings: EmulationSettings) -> None:
    """Let torch's launcher start the script in its own place, as the rank that is emulated."""
    run: Any = importlib.import_module("torch.distributed.run")

    def start(arguments: Any) -> None:
        _, program, given = run.config_from_args(arguments)
        os.execvpe(program, [program, *map(str, given)], {**os.environ, **settings.environment()})

    run.run = start
