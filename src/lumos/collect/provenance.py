"""How a process was started, as far as that is stored with its recording: its command and the variables that change how torch runs.

A value whose name says that it is a secret is not stored. The command is kept for people to read and to paste; nothing runs it unasked.
"""

from __future__ import annotations

import json
import os
import re
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

#: Stands in a stored command or variable for a value that is a secret.
MASKED = "***"

#: The environment variable in which `lumos collect` tells its processes how they were started.
STARTED = "LUMOS_STARTED"

_KEPT = re.compile(r"(CUDA_|NCCL_|TORCH(?!ELASTIC_)|PYTORCH_|OMP_)")  # what torch's launcher says of one run is of no other
_SECRET = re.compile(r"(^|[-_.])(api)?(key|token|secret|password)$", re.IGNORECASE)


def told(command: Iterable[str]) -> dict[str, str]:
    """The variable with which `lumos collect` tells its processes the command that it starts and the variables as they are now."""
    return {STARTED: json.dumps({"command": masked(command), "variables": _variables()})}


def how_started() -> dict[str, Any]:
    """The command that started the training, in words, and the variables that change how torch runs: as `lumos collect` found them, else
    those of this process."""
    if STARTED in os.environ:
        started: dict[str, Any] = json.loads(os.environ[STARTED])
        return started
    words = sys.orig_argv[1:]
    if words[:1] == ["-c"] or "--multiprocessing-fork" in words:  # a process that the script started; it has the arguments of the first
        words = sys.argv
    return {"command": masked(["python", *words]), "variables": _variables()}


def _variables() -> dict[str, str]:
    return {name: MASKED if _SECRET.search(name) else value for name, value in sorted(os.environ.items()) if _KEPT.match(name)}


def masked(words: Iterable[str]) -> list[str]:
    """A command without the values of arguments and variables that are named like secrets: `--api-key V`, `--token=V`, `API_KEY=V`."""
    out: list[str] = []
    is_secret = False
    for word in words:
        name, equals, _ = word.partition("=")
        if is_secret and not word.startswith("-"):
            word = MASKED
        elif equals and _SECRET.search(name):
            word = f"{name}={MASKED}"
        out.append(word)
        is_secret = not equals and word.startswith("-") and bool(_SECRET.search(word))
    return out
