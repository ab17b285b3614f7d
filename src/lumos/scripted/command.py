"""A command as a user types it: its words, its variables, and how many ranks its launcher starts."""

from __future__ import annotations

import re
import shlex
import shutil
from itertools import takewhile
from typing import TYPE_CHECKING, NamedTuple

from lumos.emulation.launchers import launched_ranks
from lumos.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

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
