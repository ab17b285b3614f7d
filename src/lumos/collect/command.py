"""Start a training command so that each of its Python processes records itself."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from lumos.collect.hook import VARIABLE
from lumos.collect.provenance import told
from lumos.errors import INTERRUPTED, LumosError, Stopped, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Seconds that an interrupted command has to end by itself.
GRACE_S = 10.0


class Recorded(NamedTuple):
    """How a command ended. status: its exit status. files: those that its processes wrote."""

    status: int
    files: list[str]


def run(
    command: Sequence[str],
    folder: str | os.PathLike[str],
    *,
    steps: int = 3,
    warmup: int = 2,
    wait: int = 5,
    memory: bool = False,
    execution_trace: bool = False,
    align: bool = True,
) -> Recorded:
    """Run a command to its end, while each of its Python processes records itself into `folder`.

    command: its words. folder, steps, warmup, wait, memory, execution_trace, align: as of `profile`; every call of an optimizer's step ends
    a step. Where the user interrupts, the command ends and what it had recorded is kept; its status is then 130. Raises UsageError for
    impossible numbers or a command that does not exist, LumosError where the command succeeded but recorded nothing.
    """
    if steps < 1 or min(warmup, wait) < 0:
        raise UsageError("--steps must be at least 1, --warmup and --wait at least 0")
    settings = {
        "steps": steps, "warmup": warmup, "wait": wait, "memory": memory, "execution_trace": execution_trace, "align": align,
    }  # fmt: skip
    if not command or shutil.which(command[0]) is None:
        raise UsageError(f"{command[0] if command else ''!r}: no such command; write it after --, as you would start it")
    target = Path(folder).absolute()
    before = _files(target)
    status = _ended(command, {**environment(target, settings), **told(command)})
    written = sorted(str(path) for path, when in _files(target).items() if before.get(path) != when)
    if not written and status == 0:
        needed = wait + warmup + steps + 1
        raise LumosError(
            f"{' '.join(command)}: ended without a recording; it takes {needed} calls of an optimizer's step in a process with torch "
            "2.1 or later: lower --wait, or call lumos.collect.profile in the script"
        )
    return Recorded(status if status >= 0 else 128 - status, written)


def _ended(command: Sequence[str], environment: dict[str, str]) -> int:
    """The exit status of a command; 130 where the user interrupts. The terminal tells the command too, which may save its work first: it
    has GRACE_S for that, as long again once it is asked to end, and none after another interrupt. Where a signal that only this process got
    says to end, the command is asked at once."""
    with subprocess.Popen(command, env=environment) as process:
        try:
            return process.wait()
        except KeyboardInterrupt as told:
            if isinstance(told, Stopped):
                process.terminate()
            for end in (process.terminate, process.kill):
                try:
                    process.wait(GRACE_S)
                except (subprocess.TimeoutExpired, KeyboardInterrupt):
                    end()
            return INTERRUPTED


def environment(folder: Path, settings: dict[str, Any]) -> dict[str, str]:
    """The environment in which Python processes record themselves."""
    return {**os.environ, VARIABLE: json.dumps({"folder": str(folder), **settings}), "PYTHONPATH": startup_path()}


def startup_path() -> str:
    """The PYTHONPATH with which every Python process of a command first runs `startup/sitecustomize.py`."""
    startup = str(Path(__file__).parents[1] / "startup")
    rest = os.environ.get("PYTHONPATH")
    return startup + (os.pathsep + rest if rest else "")


def _files(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in folder.glob("rank*.json.gz")} if folder.is_dir() else {}
