"""Where each operator of an emulated process stands in its script, so that the same one is found in another run of it.

A place is the module's path, with the numbers in it set aside, the phase of the step, the operator, and which of that name it is in that
call of the module. The numbers and the microbatch say which of several alike. An operator of the backward pass is the module's whose
operator of the forward pass it belongs to; what accumulates a gradient, the module's whose gradient was made just before.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from lumos.emulation.record import ENGINE_PREFIX, enclosed
from lumos.graph.places import MARK
from lumos.vocabulary import MODULE_PREFIX, Phase

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lumos.emulation.record import Process

#: How torch names the ranges of an optimizer's methods (torch/optim/optimizer.py).
_OPTIMIZER = "Optimizer."


class ScriptPlace(NamedTuple):
    """Equal for operators that do the same in layers and microbatches that do the same. phase: forward is also what a script does outside
    of its modules."""

    phase: Phase
    module: str
    operator: str
    occurrence: int


class ScriptInstance(NamedTuple):
    """Which of those with one place. numbers: in the path of its module."""

    microbatch: int
    numbers: tuple[int, ...]


class ScriptPlaces(NamedTuple):
    """By operator of a process: its step (index of the mark, -1 outside), the operator around it (-1 without), its place and instance.
    unwrapped: the place without modules that only wrap another one, as those do that copy gradients, shard, compile or recompute."""

    step: list[int]
    parent: list[int]
    place: list[ScriptPlace]
    instance: list[ScriptInstance]
    unwrapped: list[ScriptPlace]


class _Call(NamedTuple):
    """A call of a module, or what is outside of all."""

    number: int
    module: str
    microbatch: int


def step_bounds(process: Process) -> list[tuple[int, int]]:
    """Begin and end of each recorded step."""
    return sorted((mark.begin, mark.end) for mark in process.marks if mark.name.startswith(MARK))


def step_holding(bounds: list[tuple[int, int]], position: int) -> int:
    """The step that a reading of the counter lies in; what follows one belongs to it, and what precedes all to the first."""
    return max(bisect_right(bounds, (position, 1 << 62)) - 1, 0)


def forward_operators(process: Process) -> dict[tuple[int, int], int]:
    """The operators of the forward pass, by their thread and the number that those of the backward pass have too."""
    return {
        (operator.thread, operator.sequence): i
        for i, operator in enumerate(process.operators)
        if operator.sequence >= 0 and operator.forward_thread < 0
    }


def placed(process: Process) -> ScriptPlaces:
    """The places of all operators of a process."""
    return _Placing(process).found


class _Placing:
    def __init__(self, process: Process) -> None:
        self.process, self.bounds = process, step_bounds(process)
        n = len(process.operators)
        nowhere = ScriptPlace(Phase.FORWARD, "", "", 0)
        self.found = ScriptPlaces([0] * n, [-1] * n, [nowhere] * n, [ScriptInstance(0, ())] * n, [nowhere] * n)
        self.calls: list[_Call] = [_Call(0, "", 0)] * n
        self.phase = [Phase.FORWARD] * n
        self._nest()
        self._backward()
        self._count()

    def _nest(self) -> None:
        """Parents, steps, the modules around operators, and what is inside an optimizer."""
        p = self.process
        spans = [(operator.thread, operator.begin, operator.end, i) for i, operator in enumerate(p.operators)]
        marks = [i for i, mark in enumerate(p.marks) if mark.name.startswith((MODULE_PREFIX, _OPTIMIZER))]
        spans += [(p.marks[i].thread, p.marks[i].begin, p.marks[i].end, ~i) for i in marks]
        outermost = Counter[int]()
        calls: dict[int, _Call] = {}  # of modules, by the complement of the index of their marks
        for i, around in enclosed(spans):
            step = step_holding(self.bounds, p.operators[i].begin if i >= 0 else p.marks[~i].begin)
            parent = next((index for index in reversed(around) if index >= 0), -1)
            call = next((calls[index] for index in reversed(around) if index in calls), None)
            if i < 0:
                name = p.marks[~i].name
                if name.startswith(MODULE_PREFIX):
                    outermost[step] += call is None and parent < 0
                    calls[i] = _Call(-i, p.modules.get(name, name), max(outermost[step] - 1, 0))
                continue
            updating = any(index < 0 and index not in calls for index in around)
            self.found.step[i], self.found.parent[i] = step, parent
            self.calls[i] = call or _Call(0, "", 0 if updating else max(outermost[step] - 1, 0))
            self.phase[i] = Phase.OPTIMIZER if updating else Phase.FORWARD

    def _backward(self) -> None:
        """The modules of the backward pass. What a checkpoint runs again there lies in calls of modules of its own."""
        operators, parents = self.process.operators, self.found.parent
        forward = forward_operators(self.process)
        before: dict[int, _Call] = {}
        for i, operator in enumerate(operators):
            parent = parents[i]
            if operator.forward_thread >= 0 or operator.name.startswith(ENGINE_PREFIX):
                source = forward.get((operator.forward_thread, operator.sequence), -1)
                call = self.calls[source] if source >= 0 else before.get(operator.thread, _Call(0, "", 0))
                before[operator.thread] = call
            elif parent >= 0 and self.phase[parent] is Phase.BACKWARD:
                call = self.calls[i] if self.calls[i].number else self.calls[parent]
            else:
                continue
            self.calls[i], self.phase[i] = call, Phase.BACKWARD

    def _count(self) -> None:
        """Which of its name each operator is in its call of a module."""
        counted = Counter[tuple[object, ...]]()
        unwrapped = _unwrapped(self.process.modules)
        for i, operator in enumerate(self.process.operators):
            call, phase = self.calls[i], self.phase[i]
            key = (self.found.step[i], call.number, call.microbatch, phase, operator.name)
            path, numbers = _without_numbers(call.module)
            self.found.place[i] = ScriptPlace(phase, path, operator.name, counted[key])
            self.found.instance[i] = ScriptInstance(call.microbatch, numbers)
            inner, _ = _without_numbers(unwrapped.get(call.module, call.module))
            self.found.unwrapped[i] = self.found.place[i]._replace(module=inner)
            counted[key] += 1


@cache
def _without_numbers(path: str) -> tuple[str, tuple[int, ...]]:
    """A path with a star for each number in it, and the numbers."""
    parts = path.split(".")
    return ".".join("*" if part.isdigit() else part for part in parts), tuple(int(part) for part in parts if part.isdigit())


def _unwrapped(modules: Mapping[str, str]) -> dict[str, str]:
    """By path of a module the path without the parts that are the only one in the module around them; numbers stay. modules: the paths by
    the names of the ranges; that of an outermost module is the name of its class."""
    inside = {path: "" if name.startswith(f"{MODULE_PREFIX}{path}_") else path for name, path in modules.items()}
    parts: dict[str, set[str]] = defaultdict(set)
    for path in inside.values():
        around = ""
        for part in path.split(".") if path else ():
            parts[around].add(part)
            around = f"{around}.{part}"

    def shorter(path: str) -> str:
        around, left = "", []
        for part in path.split(".") if path else ():
            left += [part] if part.isdigit() or len(parts[around]) > 1 else []
            around = f"{around}.{part}"
        return ".".join(left)

    return {path: shorter(its) for path, its in inside.items()}
