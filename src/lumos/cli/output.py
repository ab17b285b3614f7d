"""Write what every verb writes: one JSON object, or text for people."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from lumos.arguments import REPAIR
from lumos.characters import visible
from lumos.result import plain as plain

if TYPE_CHECKING:
    from rich.console import Console

_Found = TypeVar("_Found")

#: Arguments that several verbs have.
Paths = Annotated[list[str], typer.Argument(metavar="PATH...", help="Trace files, or a folder with one file per rank.", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="Write one JSON object instead of text.")]
#: The runs of a job, of which one is shown; and one of its steps.
RUNS = ("measured", "replayed")
Of = Annotated[str, typer.Option(metavar="RUN", help="measured or replayed.", autocompletion=lambda: list(RUNS))]
Step = Annotated[str | None, typer.Option(metavar="NAME", help="One step: its name, or the number after its #.")]
Force = Annotated[bool, typer.Option("--force", help="Answer also where the recording cannot give a sound answer.")]
Repair = Annotated[bool, typer.Option("--repair", help=REPAIR.text)]

#: Where verbs that answer about a job write that job.
Perfetto = Annotated[str | None, typer.Option(metavar="FILE", help="Write the job as a trace for ui.perfetto.dev.", show_default=False)]
Chakra = Annotated[str | None, typer.Option(metavar="DIR", help="Write the job as a Chakra set, a file per rank.", show_default=False)]
Kineto = Annotated[str | None, typer.Option(metavar="DIR", help="Write the job as profiler files, one per rank.", show_default=False)]


def write_json(value: Any) -> None:
    """Write one JSON object and nothing else to standard output."""
    import msgspec

    encoded = msgspec.json.encode(plain(value))
    sys.stdout.buffer.write(msgspec.json.format(encoded, indent=2) + b"\n")


def answer(result: _Found, json: bool, text: Callable[[Console, _Found], None]) -> None:
    """Write the answer of a verb: one JSON object, or what `text` prints."""
    if json:
        write_json(result)
    else:
        text(console(), result)


def console() -> Console:
    """A console on standard output, as wide as the terminal; without colours where the output is no terminal. Characters of text that
    a terminal would obey are shown escaped."""
    from rich.console import Console
    from rich.text import Text

    class PipeConsole(Console):
        def print(self, *objects: Any, **settings: Any) -> None:
            for text in objects:
                if isinstance(text, Text):
                    text.plain = visible(text.plain)
            super().print(*(visible(text) if isinstance(text, str) else text for text in objects), **settings)

        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # the group of verbs decides the exit status, not rich

    return PipeConsole(highlight=False)


def next_command(verb: str, paths: Sequence[str]) -> str:
    """The lines that name the command to run next on a recording."""
    from lumos.reports.text.stragglers import continued

    return "next: " + "\n  ".join(continued(shlex.join(("lumos", verb, *paths)), console().width - 8))


class Clock:
    """Seconds since the last lap."""

    def __init__(self) -> None:
        self._last = time.perf_counter()

    def lap(self) -> float:
        now = time.perf_counter()
        self._last, elapsed = now, now - self._last
        return elapsed
