"""Help and messages no wider than the terminal.

Results are printed by `lumos.cli.output.console`, which knows the terminal's width. Help is typer's, which takes no terminal to be
narrower than 50 columns; messages go to standard error, where a pipe gets each in one line and a terminal gets it wrapped between words.
"""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from math import isfinite
from typing import TYPE_CHECKING, Any

from typer.core import TyperCommand

from lumos.characters import is_whole, visible

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Help is not made wider than this, in characters, because longer lines are harder to read.
WIDEST_HELP = 80

#: Columns that help leaves free at the right, and so many around the names of options.
MARGIN = 2

_Context: Any = TyperCommand.context_class
_Formatter: Any = _Context.formatter_class


class Help(_Formatter):  # type: ignore[misc]  # its class depends on the version of typer
    """Help in the columns that there are; names of options take at most a third of them."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{**settings, "width": min(shutil.get_terminal_size().columns, WIDEST_HELP) - MARGIN})

    def write_dl(self, rows: Sequence[tuple[str, str]], col_max: int = 30, col_spacing: int = MARGIN) -> None:
        fitting = [(textwrap.fill(name, self.width - MARGIN, subsequent_indent=2 * MARGIN * " "), text) for name, text in rows]
        super().write_dl(fitting, min(col_max, self.width // 3), col_spacing)


class Context(_Context):  # type: ignore[misc]  # its class depends on the version of typer
    """A command's invocation, whose help is `Help`, and whose numbers are finite."""

    formatter_class = Help

    def invoke(self, *called: Any, **words: Any) -> Any:
        for name, value in words.items():
            if isinstance(value, float) and not isfinite(value):
                self.fail(f"--{name.replace('_', '-')} {value}: not a finite number")
        return super().invoke(*called, **words)


def with_fitting_help(command: Any) -> Any:
    """The command, whose help and whose verbs' help fit the terminal. Its list of verbs has the whole first sentence of each."""
    command.context_class = Context
    for verb in getattr(command, "commands", {}).values():
        verb.short_help = (verb.help or "").partition("\n\n")[0].partition(". ")[0].removesuffix(".") + "."
        with_fitting_help(verb)
    return command


def say(message: str) -> None:
    """Write a message to standard error, as "lumos: …"."""
    width = _error_width()
    for line in visible(f"lumos: {message}").split("\n"):
        shown = textwrap.fill(line, width, break_long_words=False, break_on_hyphens=False) if width else line
        print(shown, file=sys.stderr)


def _error_width() -> int | None:
    """The columns of the terminal behind standard error, which COLUMNS may state; None where it is no terminal."""
    if not sys.stderr.isatty():
        return None
    stated = os.environ.get("COLUMNS", "")
    if is_whole(stated) and int(stated):
        return int(stated)
    return os.get_terminal_size(sys.stderr.fileno()).columns or None
