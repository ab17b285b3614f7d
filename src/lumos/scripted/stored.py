"""The command that a recording says it was made with. It is shown, and run only where the user asks for it by its name."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from lumos.collect.provenance import MASKED
from lumos.errors import LumosError

if TYPE_CHECKING:
    from lumos.trace.table import Job

#: What the user writes for --before to run the stored command.
RECORDED = "recorded"


def stored_command(job: Job) -> str:
    """The command in the recording's files, as text to paste into a shell; "" where they have none."""
    for trace in job.traces:
        made = trace.metadata.get("lumos_collect", {})
        if made.get("command"):
            variables = [f"{name}={shlex.quote(value)}" for name, value in made.get("variables", {}).items()]
            return " ".join([*variables, shlex.join(made["command"])])
    return ""


def before_missing(job: Job) -> LumosError:
    """What to say where --after is given alone."""
    stored = stored_command(job)
    how = f"it says that it was made with: --before {shlex.quote(stored)}" if stored else "it does not say which: give it with --before"
    also = f"; --before {RECORDED} runs that" if stored and MASKED not in stored else ""
    return LumosError(f"--after needs the command that made the recording, to tell what changes; {how}{also}")


def recorded_words(job: Job) -> str:
    """The stored command, for the user who asked to run it. Raises LumosError where there is none, or a part of it was not stored."""
    stored = stored_command(job)
    if not stored:
        raise LumosError(f"--before {RECORDED}: the recording does not say with which command it was made; give the command itself")
    if MASKED in stored:
        raise LumosError(f"--before {RECORDED}: secrets of the command were not stored; give it with them: --before {shlex.quote(stored)}")
    return stored
