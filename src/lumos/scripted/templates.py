"""Many changed scripts at once: a command with placeholders, and every combination of their values.

A placeholder is a name in braces, "{mbs}". Each must have values, and each name with values must stand in the command. The commands are
answered in processes of their own, as many at once as there are cores, and as fit into the memory that is free.
"""

from __future__ import annotations

import os
import re
import resource
import signal
import sys
from itertools import product
from multiprocessing import connection, get_context
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from lumos.errors import LumosError, UsageError
from lumos.scripted.command import parse

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from lumos.scripted.answer import Base

_PLACEHOLDER = re.compile(r"\{([A-Za-z_][A-Za-z0-9_-]*)\}")


class ScriptCell(NamedTuple):
    """One combination. values: of the placeholders. step_time_s, low, high: of the changed step and its 80 % interval; None where it was
    refused. peak_bytes: the most memory that a rank holds, and fits: whether that is there; None on CPUs. refused: why, "" otherwise."""

    values: dict[str, str]
    step_time_s: float | None
    step_time_low_s: float | None = None
    step_time_high_s: float | None = None
    peak_bytes: int | None = None
    fits: bool | None = None
    refused: str = ""


def parse_values(words: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Parse words NAME=V,V,… of --grid. Raises UsageError for one without values."""
    out = {}
    for word in words:
        name, equals, values = word.partition("=")
        choices = tuple(value.strip() for value in values.split(",") if value.strip())
        if not equals or not choices:
            raise UsageError(f"--grid {word!r}: write NAME=VALUE,VALUE for the placeholder {{NAME}} of --after, for instance mbs=4,8,16")
        out[name] = choices
    return out


def filled(template: str | Sequence[str], values: Mapping[str, str]) -> str | list[str]:
    """A command with values in place of its placeholders."""
    if isinstance(template, str):
        return _PLACEHOLDER.sub(lambda match: values.get(match[1], match[0]), template)
    return [_PLACEHOLDER.sub(lambda match: values.get(match[1], match[0]), str(word)) for word in template]


def evaluate_scripts(
    base: Callable[[], Base], template: str | Sequence[str], values: Mapping[str, tuple[str, ...]]
) -> tuple[ScriptCell, ...]:
    """The cells of every combination. base: makes what they are compared with. Raises UsageError where placeholders and values differ."""
    text = template if isinstance(template, str) else " ".join(map(str, template))
    named = set(_PLACEHOLDER.findall(text))
    if lacking := sorted(named ^ set(values)):
        what = "has no values" if lacking[0] in named else "is no placeholder of --after"
        raise UsageError(f"--grid: {lacking[0]} {what}; --after has {', '.join(sorted(named)) or 'none'}, for instance --mbs {{mbs}}")
    made, cells = base(), [dict(zip(values, combination, strict=True)) for combination in product(*values.values())]
    return _beside_each_other(made, template, cells, at_once())


def at_once() -> int:
    """How many commands are answered at once: each may take as much memory as this process, or the largest that it started, has taken."""
    most = max(resource.getrusage(whose).ru_maxrss for whose in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return max(1, min(os.cpu_count() or 1, free // (2 * most * (1 if sys.platform == "darwin" else 1024))))


def _beside_each_other(
    base: Base, template: str | Sequence[str], cells: Sequence[dict[str, str]], most: int
) -> tuple[ScriptCell, ...]:
    """The cells in their order, at most so many at once. Each process is a copy of this one, so that none makes the base again."""
    forked, answered = get_context("fork"), dict[int, ScriptCell]()
    waiting, running = [*range(len(cells))], dict[Any, tuple[int, Any]]()
    try:
        while waiting or running:
            while waiting and len(running) < most:
                ours, theirs = forked.Pipe(duplex=False)
                i = waiting.pop(0)
                running[ours] = i, forked.Process(target=_answer_to, args=(theirs, base, template, cells[i]))
                running[ours][1].start()
                theirs.close()
            for pipe in cast("list[Any]", connection.wait([*running])):
                i, process = running.pop(pipe)
                try:
                    answered[i] = pipe.recv()
                except EOFError:
                    ended = "its process was ended before it had answered: see whether the machine's memory was full"
                    answered[i] = ScriptCell(cells[i], None, refused=ended)
                process.join()
    finally:
        for _, process in running.values():
            process.terminate()
            process.join()
    return tuple(answered[i] for i in range(len(cells)))


def _answer_to(end: Any, base: Base, template: str | Sequence[str], values: dict[str, str]) -> None:
    """Answer for one cell, in a process of its own, which ends in order what it has started."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    end.send(_cell(base, template, values))


def _cell(base: Base, template: str | Sequence[str], values: dict[str, str]) -> ScriptCell:
    try:
        outcome = base.answer(parse(filled(template, values), "--after")).outcome
    except LumosError as error:
        out_of_memory = "OutOfMemoryError" in str(error)
        return ScriptCell(values, None, fits=False if out_of_memory else None, refused=str(error))
    memory = outcome.memory
    return ScriptCell(values, outcome.step_time_s, outcome.step_time_low_s, outcome.step_time_high_s, memory.peak_bytes, memory.fits)
