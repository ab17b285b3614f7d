"""Many changed scripts at once: a command with placeholders, and every combination of their values.

A placeholder is a name in braces, "{mbs}". Each must have values, and each name with values must stand in the command. As many commands
run at once as there are cores, and as fit into the memory that is free; or the workers of a Ray cluster answer.
"""

from __future__ import annotations

import os
import re
import resource
import sys
from collections import deque
from functools import partial
from itertools import islice, product
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from lumos.distribute import connected
from lumos.errors import LumosError, UsageError
from lumos.scripted.answer import Begun
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
    fill = partial(_PLACEHOLDER.sub, lambda match: values.get(match[1], match[0]))
    return fill(template) if isinstance(template, str) else [fill(str(word)) for word in template]


def evaluate_scripts(
    base: Callable[[], Base], template: str | Sequence[str], values: Mapping[str, tuple[str, ...]], *, on_ray: bool = False,
    ray_address: str | None = None,
) -> tuple[ScriptCell, ...]:  # fmt: skip
    """The cells of every combination. base: makes what they are compared with. on_ray: each cell is a task of the Ray cluster at
    `ray_address`, whose machines have the script and this folder. Raises UsageError where placeholders and values differ."""
    text = template if isinstance(template, str) else " ".join(map(str, template))
    named = set(_PLACEHOLDER.findall(text))
    if lacking := sorted(named ^ set(values)):
        what = "has no values" if lacking[0] in named else "is no placeholder of --after"
        raise UsageError(f"--grid: {lacking[0]} {what}; --after has {', '.join(sorted(named)) or 'none'}, for instance --mbs {{mbs}}")
    made, cells = base(), [dict(zip(values, combination, strict=True)) for combination in product(*values.values())]
    if not on_ray:
        return _beside_each_other(made, template, cells, at_once())
    with connected(ray_address) as workers:
        return tuple(workers.map(_on_a_worker, workers.put((made, template, Path.cwd())), cells))


def at_once() -> int:
    """How many commands run at once: each may take as much memory as this process, or the largest that it started, has taken."""
    most = max(resource.getrusage(whose).ru_maxrss for whose in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return max(1, min(os.cpu_count() or 1, free // (2 * most * (1 if sys.platform == "darwin" else 1024))))


def _beside_each_other(
    base: Base, template: str | Sequence[str], cells: Sequence[dict[str, str]], most: int
) -> tuple[ScriptCell, ...]:
    """The cells in their order. The commands of so many run at once."""
    begun, answered, waiting = deque[Begun](), list[ScriptCell](), iter(cells)
    for values in cells:
        begun.extend(_begin(base, template, ahead) for ahead in islice(waiting, most - len(begun)))
        answered.append(_cell(base, begun.popleft(), values))
    return tuple(answered)


def _begin(base: Base, template: str | Sequence[str], values: dict[str, str]) -> Begun:
    return Begun(lambda: base.run(parse(filled(template, values), "--after")))


def _on_a_worker(shared: tuple[Base, str | Sequence[str], Path], values: dict[str, str]) -> ScriptCell:
    base, template, folder = shared
    os.chdir(folder)
    return _cell(base, _begin(base, template, values), values)


def _cell(base: Base, begun: Begun, values: dict[str, str]) -> ScriptCell:
    try:
        outcome = base.answer(begun).outcome
    except LumosError as error:
        out_of_memory = "OutOfMemoryError" in str(error)
        return ScriptCell(values, None, fits=False if out_of_memory else None, refused=str(error))
    memory = outcome.memory
    return ScriptCell(values, outcome.step_time_s, outcome.step_time_low_s, outcome.step_time_high_s, memory.peak_bytes, memory.fits)
