"""Many changed scripts at once: a command with placeholders, and every combination of their values.

A placeholder is a name in braces, "{mbs}". Each must have values, and each name with values must stand in the command.
"""

from __future__ import annotations

import re
from itertools import product
from typing import TYPE_CHECKING, NamedTuple

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
        return _PLACEHOLDER.sub(lambda found: values.get(found[1], found[0]), template)
    return [_PLACEHOLDER.sub(lambda found: values.get(found[1], found[0]), str(word)) for word in template]


def evaluate_scripts(
    base: Callable[[], Base], template: str | Sequence[str], values: Mapping[str, tuple[str, ...]]
) -> tuple[ScriptCell, ...]:
    """The cells of every combination. base: makes what they are compared with. Raises UsageError where placeholders and values differ."""
    text = template if isinstance(template, str) else " ".join(map(str, template))
    named = set(_PLACEHOLDER.findall(text))
    if lacking := sorted(named ^ set(values)):
        what = "has no values" if lacking[0] in named else "is no placeholder of --after"
        raise UsageError(f"--grid: {lacking[0]} {what}; --after has {', '.join(sorted(named)) or 'none'}, for instance --mbs {{mbs}}")
    made = base()
    return tuple(_cell(made, template, dict(zip(values, each, strict=True))) for each in product(*values.values()))


def _cell(base: Base, template: str | Sequence[str], values: dict[str, str]) -> ScriptCell:
    try:
        found = base.answer(parse(filled(template, values), "--after")).outcome
    except LumosError as error:
        out_of_memory = "OutOfMemoryError" in str(error)
        return ScriptCell(values, None, fits=False if out_of_memory else None, refused=str(error))
    memory = found.memory
    return ScriptCell(values, found.step_time_s, found.step_time_low_s, found.step_time_high_s, memory.peak_bytes, memory.fits)
