"""The table of operators (`data/operators.toml`): how the axes of an operator's inputs and results belong together.

An operator that the table does not have is taken as one of which nothing is known: its inputs are what they were made as, and its results
are recognised by their shapes where they are used.
"""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path
from typing import NamedTuple

Shape = tuple[int, ...]

#: The place of one axis: the input, and the axis counted from the first.
AxisPlace = tuple[int, int]


class Pattern(NamedTuple):
    """The axes of one tensor: letters before and after a stretch of any number of axes, which `stretch` marks; "" without one. like: the
    input whose axes a result has, -1 where letters say them."""

    before: str
    after: str
    stretch: str
    weight: bool
    like: int = -1

    def fits(self, axes: int) -> bool:
        """Whether a tensor with so many axes has the pattern."""
        least = len(self.before) + len(self.after)
        return axes >= least if self.stretch else axes == least

    def letters(self, axes: int) -> list[str]:
        """The name of each axis of a tensor with so many; those of a stretch are numbered from the last."""
        stretch = axes - len(self.before) - len(self.after)
        return [*self.before, *(f"{self.stretch}{stretch - i}" for i in range(stretch)), *self.after]


class Rule(NamedTuple):
    """How the axes of one operator belong together. inputs: None for one whose axes do not matter."""

    inputs: tuple[Pattern | None, ...]
    results: tuple[Pattern, ...]

    @property
    def weights(self) -> tuple[int, ...]:
        """The inputs that are weights of the model."""
        return tuple(i for i, pattern in enumerate(self.inputs) if pattern is not None and pattern.weight)


@cache
def _table() -> dict[str, dict[str, object]]:
    return tomllib.loads((Path(__file__).parent / "data" / "operators.toml").read_text(encoding="utf-8"))


@cache
def axis_rules() -> dict[str, Rule]:
    """The operators whose axes are said by letters."""
    return {name: _rule(str(text)) for name, text in _table()["axes"].items()}


@cache
def views() -> dict[str, str]:
    """The operators whose result follows from the values of their arguments, each with the function that says how."""
    return {name: how for how, names in _table()["views"].items() if isinstance(names, list) for name in names}


@cache
def elementwise_names() -> frozenset[str]:
    """The operators whose result has the axes of their inputs."""
    names = _table()["elementwise"]["operators"]
    return frozenset(names) if isinstance(names, list) else frozenset()


@cache
def own_name(name: str) -> str:
    """The name of an operator without its namespace and without the underscore of those that work in place."""
    return name.rpartition("::")[2].rstrip("_") or name


def _rule(text: str) -> Rule:
    inputs, _, results = text.partition("->")
    return Rule(tuple(map(_pattern, inputs.split())), tuple(p for p in map(_pattern, results.split()) if p is not None))


def _pattern(word: str) -> Pattern | None:
    if word == ".":
        return None
    if word.startswith("="):
        return Pattern("", "", "", False, int(word[1:]))
    stretch = next((mark for mark in "*+" if mark in word), "")
    before, _, after = word.removeprefix("!").partition(stretch or " ")
    return Pattern(before, after, stretch, word.startswith("!"))


def forced(name: str, shapes: tuple[Shape, ...]) -> list[tuple[AxisPlace, AxisPlace]]:
    """The pairs of axes that a call of an operator makes equal, of those that have the same recorded size."""
    base = own_name(name)
    rule = axis_rules().get(base)
    if rule is not None:
        return _by_letters(rule, shapes)
    if base in elementwise_names():
        return _aligned(shapes)
    return _of_convolution(shapes) if views().get(base) == "convolved" else []


def _by_letters(rule: Rule, shapes: tuple[Shape, ...]) -> list[tuple[AxisPlace, AxisPlace]]:
    first: dict[tuple[str, int], AxisPlace] = {}
    out = []
    for i, (pattern, shape) in enumerate(zip(rule.inputs, shapes, strict=False)):
        if pattern is None or not shape or not pattern.fits(len(shape)):
            continue
        for axis, letter in enumerate(pattern.letters(len(shape))):
            known = first.setdefault((letter, shape[axis]), (i, axis))
            if known != (i, axis) and not letter.startswith("+"):
                out.append((known, (i, axis)))
    return out


def _aligned(shapes: tuple[Shape, ...]) -> list[tuple[AxisPlace, AxisPlace]]:
    """Axes from the last one on, as tensors of one operation element by element are laid over each other."""
    first: dict[tuple[int, int], AxisPlace] = {}
    out = []
    for i, shape in enumerate(shapes):
        for back in range(1, len(shape) + 1):
            size = shape[-back]
            known = first.setdefault((back, size), (i, len(shape) - back))
            if known != (i, len(shape) - back) and size != 1:
                out.append((known, (i, len(shape) - back)))
    return out


def _of_convolution(shapes: tuple[Shape, ...]) -> list[tuple[AxisPlace, AxisPlace]]:
    if len(shapes) < 2 or len(shapes[0]) != len(shapes[1]) or len(shapes[0]) < 3:
        return []
    channels: list[tuple[AxisPlace, AxisPlace]] = [((0, 1), (1, 1))] if shapes[0][1] == shapes[1][1] else []
    bias: list[tuple[AxisPlace, AxisPlace]] = [((1, 0), (2, 0))] if len(shapes) > 2 and shapes[2] == shapes[1][:1] else []
    return channels + bias


def weights_of(name: str) -> tuple[int, ...]:
    """The inputs of an operator that are weights of the model."""
    base = own_name(name)
    rule = axis_rules().get(base)
    return rule.weights if rule is not None else (1, 2) if views().get(base) == "convolved" else ()
