"""Launchers of several processes (torchrun, accelerate, spawn): the emulated job has one process at a time, so they become that one."""

from __future__ import annotations

import importlib
import os
import sys
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from lumos.emulation.process.settings import EmulationSettings

_NAMES = ("torchrun", "torch.distributed.run", "torch.distributed.launch", "accelerate", "accelerate.commands.launch")


def is_this() -> bool:
    """Whether this process is a launcher rather than the script: by the program, or the module after -m, that Python was started with."""
    words = sys.orig_argv[1:]
    while words and words[0].startswith("-") and words[0] != "-m":
        words = words[2 if words[0] in ("-W", "-X") else 1 :]
    started = words[1:2] if words[:1] == ["-m"] else words[:1]
    return any(os.path.basename(each) in _NAMES for each in started)  # noqa: PTH119


def install(settings: EmulationSettings) -> None:
    """Let torch's launcher start the script in its own place, as the rank that is emulated. The launcher sees the devices too."""
    torch.cuda.is_available = lambda: not settings.device.is_cpu
    torch.cuda.device_count = lambda: 0 if settings.device.is_cpu else min(settings.world, settings.device.per_node)
    api: Any = importlib.import_module("torch.distributed.launcher.api")

    def elastic_launch(config: Any, entrypoint: Any) -> Any:
        del config

        def start(*arguments: Any) -> None:
            os.environ.update(settings.environment(launched=True))
            os.execvp(entrypoint, [entrypoint, *map(str, arguments)])

        return start

    api.elastic_launch = elastic_launch


def start_here(settings: EmulationSettings) -> None:
    """Let a script that starts the processes of its ranks itself go on as the one that is emulated."""

    def spawn(function: Any, args: Any = (), nprocs: int = 1, *_: Any, **__: Any) -> None:
        function(settings.rank % nprocs, *args)

    torch.multiprocessing.spawn = torch.multiprocessing.start_processes = spawn
