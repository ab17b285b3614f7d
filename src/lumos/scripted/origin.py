"""Where in a script something comes from: the line that called an operator, and the module around it; and where two runs of it part.

An operator of the backward pass comes from where that of the forward pass does whose gradient it makes.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from functools import cached_property
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from lumos.scripted.match import sizes_in_words
from lumos.scripted.places import forward_operators, placed, step_bounds, step_holding
from lumos.scripted.script import given

if TYPE_CHECKING:
    from lumos.emulation.record import Operator, Process
    from lumos.scripted.match import Matched
    from lumos.scripted.places import ScriptPlaces
    from lumos.scripted.recorded import RecordedCosts
    from lumos.scripted.script import Kindred, Script


class ScriptOrigin(NamedTuple):
    """module: its path, as "layers.3.mlp"; line: of the user's own files, as "train.py:41". Each is "" where there is none."""

    module: str
    line: str

    def __str__(self) -> str:
        return " at ".join(part for part in self if part)


def origins(process: Process, places: ScriptPlaces) -> list[ScriptOrigin]:
    """Of each operator of a process."""
    operators, around = process.operators, places.parent
    line = [operator.line for operator in operators]
    for i in reversed(range(len(line))):  # what only calls others is where the first of them is
        if around[i] >= 0 and operators[around[i]].line < 0 and line[i] >= 0:
            line[around[i]] = line[i]
    forward, out = forward_operators(process), []
    for i, (operator, script_place, instance) in enumerate(zip(operators, places.place, places.instance, strict=True)):
        source = forward.get((operator.forward_thread, operator.sequence), -1)
        if source >= 0 or (line[i] < 0 and around[i] >= 0):
            line[i] = line[source if source >= 0 else around[i]]
        numbers = iter(instance.numbers)
        module = ".".join(str(next(numbers)) if part == "*" else part for part in script_place.module.split("."))
        out.append(ScriptOrigin(module, process.lines[line[i]].removeprefix(f"{Path.cwd()}{os.sep}") if line[i] >= 0 else ""))
    return out


class TaskOrigins:
    """Where the tasks of a recording come from. matched: the recording with its script."""

    def __init__(self, recording: RecordedCosts, matched: Matched, script: Script) -> None:
        self._recording, self._matched, self._script = recording, matched, script

    @cached_property
    def _of_kind(self) -> list[list[ScriptOrigin]]:
        return [origins(kind.process, kind.placed) for kind in self._script.kinds]

    def __call__(self, task: int) -> str:
        """Where a task of the recording's graph comes from, "" where no operator of the script is known to have made it."""
        return str(self.of(task))

    def of(self, task: int) -> ScriptOrigin:
        """The same, in parts."""
        owners = self._recording.owners
        rank = owners.graph.ranks[owners.rank[task]]
        owner, row = self._matched.owner.get(rank, ()), int(self._recording.row[task])
        operator = int(owner[row]) if 0 <= row < len(owner) else -1
        return self._of_kind[self._script.ranks.of[rank]][operator] if operator >= 0 else ScriptOrigin("", "")


class Gone(NamedTuple):
    """Operators of one name that a changed script calls less often. calls: by how much, in a step. origins: where they stand."""

    operator: str
    calls: float
    origins: list[str]


def gone(before: Kindred, after: Kindred) -> list[Gone]:
    """What the first kind of rank does and the second does less often, most calls first."""
    counts = [Counter(kindred.placed.unwrapped) for kindred in (before, after)]
    steps = [max(len(step_bounds(kindred.process)), 1) for kindred in (before, after)]
    calls, places = defaultdict[str, float](float), defaultdict[str, dict[str, None]](dict)
    for script_place, origin in zip(before.placed.unwrapped, origins(before.process, before.placed), strict=True):
        fewer = counts[0][script_place] / steps[0] - counts[1][script_place] / steps[1]
        if fewer > 0:
            calls[script_place.operator] += fewer / counts[0][script_place]
            places[script_place.operator][str(origin)] = None
    return [Gone(operator, number, [*places[operator]]) for operator, number in sorted(calls.items(), key=lambda pair: -pair[1])]


def differing_steps(process: Process) -> bool:
    """Whether the recorded steps of a process are not all alike."""
    steps = [[_asked(operator) for operator in step] for step in _steps(process)]
    return any(step != steps[0] for step in steps[1:])


def first_difference(one: Process, other: Process) -> str:
    """Where two runs of a script first do something else, in the steps that both have; "" where they never do."""
    for both in zip(_steps(one), _steps(other), strict=False):
        for mine, its in zip_longest(*both):
            if _asked(mine) != _asked(its):
                return f"{_said(one, mine)} in one, {_said(other, its)} in the other"
    return ""


def _steps(process: Process) -> list[list[Operator]]:
    """The operators of each recorded step: of the thread that trains, then of those of the backward pass. What runs beside them may come
    earlier or later in every run."""
    operators = process.operators
    chosen = {0, *(operator.thread for operator in operators if operator.forward_thread >= 0)}
    bounds = step_bounds(process)
    out: list[list[Operator]] = [[] for _ in bounds]
    for operator in operators:
        if operator.thread in chosen:
            out[step_holding(bounds, operator.begin)].append(operator)
    return [sorted(step, key=lambda operator: (operator.thread, operator.begin)) for step in out]


def _asked(operator: Operator | None) -> tuple[object, ...]:
    return () if operator is None else (operator.name, given(operator))


def _said(process: Process, operator: Operator | None) -> str:
    if operator is None:
        return "nothing more"
    origin = origins(process, placed(process))[process.operators.index(operator)]
    return f"{operator.name} of {sizes_in_words(given(operator))}{f' ({origin})' if any(origin) else ''}"
