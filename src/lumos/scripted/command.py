"""A command as a user types it: its words, its variables, and how many ranks its launcher starts; and the one that a recording says it was
made with, which is shown, and run only where the user asks for it by its name."""

from __future__ import annotations

import re
import shlex
import shutil
from itertools import takewhile
from typing import TYPE_CHECKING, NamedTuple

from lumos.collect.provenance import MASKED
from lumos.emulation.launchers import launched_ranks
from lumos.errors import LumosError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lumos.trace.table import Job

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=.*", re.DOTALL)


class Command(NamedTuple):
    """words: the program and its arguments, after `env` and the variables that stand before it. ranks: that its launcher starts; None
    where no launcher says."""

    text: str
    words: tuple[str, ...]
    ranks: int | None


def parse(given: str | Sequence[str], option: str) -> Command:
    """The command of an option, as one text or as its words. Raises UsageError where it is none, or names a program that does not exist."""
    try:
        words = shlex.split(given) if isinstance(given, str) else [str(word) for word in given]
    except ValueError as error:
        raise UsageError(f"{option} {given!r}: {error}; write the command as you would start it, in quotes") from error
    variables = [*takewhile(_VARIABLE.fullmatch, words)]
    program = words[len(variables) :]
    if not program:
        raise UsageError(f"{option} {given!r}: names no program; write the command as you would start it, in quotes")
    if shutil.which(program[0]) is None:
        raise UsageError(f"{option}: {program[0]!r}: no such command; write it as you would start it, in quotes")
    return Command(shlex.join(words), (*(("env", *variables) if variables else ()), *program), launched_ranks(program))


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
