"""The table of operators (`data/operators.toml`): the kind of each, and how the axes of its inputs and results belong together.

What torch itself says of its operators is in `data/torch.json`, which `tools/operators.py` writes: which are pointwise, reductions or
views, which only call others, and where the settings of attention and convolutions stand among their arguments. An operator that neither
has is taken as one of which nothing is known: its inputs are what they were made as, and its results are recognised by their shapes where
they are used.
"""

from __future__ import annotations

import json
import tomllib
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from lumos.characters import is_whole

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

A = TypeVar("A")
Shape = tuple[int, ...]

#: The place of one axis: the input, and the axis counted from the first.
AxisPlace = tuple[int, int]

_DATA = Path(__file__).parent / "data"


class OperatorKind(StrEnum):
    """What an operator does. The value is the spelling in the table."""

    MULTIPLICATION = "multiplication"
    ATTENTION = "attention"
    CONVOLUTION = "convolution"
    RECURRENT = "recurrent"
    NORMALISATION = "normalisation"
    POINTWISE = "pointwise"
    REDUCTION = "reduction"
    VIEW = "view"
    COPY = "copy"
    FILL = "fill"
    GATHER = "gather"
    SCATTER = "scatter"
    SORTING = "sorting"
    WINDOW = "window"
    EXCHANGE = "exchange"


class Pattern(NamedTuple):
    """The axes of one tensor: letters before and after a stretch of any number of axes, which `stretch` marks; "" without one. like: the
    input whose axes a result has, -1 where letters say them."""

    before: str
    after: str
    stretch: str
    weight: bool
    like: int = -1

    @property
    def least(self) -> int:
        """How many axes a tensor of the pattern has without its stretch."""
        return len(self.before) + len(self.after)

    def fits(self, axes: int) -> bool:
        """Whether a tensor with so many axes has the pattern."""
        return axes >= self.least if self.stretch else axes == self.least

    def letters(self, axes: int) -> list[str]:
        """The name of each axis of a tensor with so many; those of a stretch are numbered from the last."""
        stretch = axes - self.least
        return [*self.before, *(f"{self.stretch}{stretch - i}" for i in range(stretch)), *self.after]

    def has(self, letter: str) -> bool:
        """Whether one of its axes has that name."""
        return letter in self.before + self.after or letter[0] == self.stretch


class Rule(NamedTuple):
    """How the axes of one operator belong together. inputs: None for one whose axes do not matter."""

    inputs: tuple[Pattern | None, ...]
    results: tuple[Pattern, ...]

    def fits(self, shapes: tuple[Shape, ...]) -> bool:
        """Whether every input of a call that is a tensor has the axes of its letters."""
        pairs = zip(self.inputs, shapes, strict=False)
        return all(pattern is None or not shape or pattern.fits(len(shape)) for pattern, shape in pairs)

    def made(self, tensors: Mapping[int, Sequence[tuple[int, A]]], one: A) -> list[tuple[tuple[int, A], ...] | None]:
        """The axes of each result, None for one of which the letters do not say them: that of the inputs with their letter, the longest of
        several. tensors: by input its axes, as their sizes and what stands for them. one: stands for an axis of length one."""
        fitting = [(pattern, tensors[i]) for i, pattern in enumerate(self.inputs) if pattern is not None and i in tensors]
        fitting = [(pattern, axes) for pattern, axes in fitting if pattern.fits(len(axes))]
        stretch = max((len(axes) - pattern.least for pattern, axes in fitting if pattern.stretch == "*"), default=0)
        named: dict[str, tuple[int, A]] = {}
        for pattern, axes in fitting:
            for letter, axis in zip(pattern.letters(len(axes)), axes, strict=True):
                if letter not in named or named[letter][0] < axis[0]:
                    named[letter] = axis
        named["1"] = 1, one
        out: list[tuple[tuple[int, A], ...] | None] = []
        for pattern in self.results:
            letters = pattern.letters(pattern.least + (stretch if pattern.stretch else 0))
            like = tuple(tensors[pattern.like]) if pattern.like in tensors else None
            out.append(like if pattern.like >= 0 else tuple(named[of] for of in letters) if named.keys() >= set(letters) else None)
        return out

    @property
    def weights(self) -> tuple[int, ...]:
        """The inputs that are weights of the model."""
        return tuple(i for i, pattern in enumerate(self.inputs) if pattern is not None and pattern.weight)


@cache
def operator_table() -> dict[str, Any]:
    """The parts of the table, as the file has them."""
    return tomllib.loads((_DATA / "operators.toml").read_text(encoding="utf-8"))


@cache
def said_by_torch() -> dict[str, Any]:
    """What torch says of its operators."""
    said: dict[str, Any] = json.loads((_DATA / "torch.json").read_text(encoding="utf-8"))
    return said


@cache
def _kinds() -> dict[str, OperatorKind]:
    table, torch = operator_table(), said_by_torch()
    out = {name: OperatorKind(kind) for kind in ("pointwise", "reduction", "view") for name in torch[kind]}
    for part in ("kinds", "elementwise"):
        out |= {name: OperatorKind(kind) for kind, names in table[part].items() for name in names}
    out |= {name: OperatorKind(kind) for kind, rules in table["axes"].items() for name in rules}
    return out | {name: OperatorKind(kind) for kind, ways in table["arguments"].items() for names in ways.values() for name in names}


@cache
def kind_of(name: str) -> OperatorKind | None:
    """What an operator of torch does; None for one that neither the table nor torch's own tags have."""
    return _kinds().get(own_name(name))


def of_torch(name: str) -> bool:
    """Whether an operator is one of torch's own."""
    return name.startswith("aten::")


@cache
def without_work(name: str) -> bool:
    """Whether an operator of torch itself does nothing to the elements of its inputs: it describes memory, or only calls others."""
    if not of_torch(name) or kind_of(name) is OperatorKind.RECURRENT:
        return False
    return kind_of(name) is OperatorKind.VIEW or only_calls(name)


@cache
def only_calls(name: str) -> bool:
    """Whether an operator has no kernel of its own on any device, but calls other operators."""
    return own_name(name) in _said("composite")


@cache
def calls_others(name: str) -> bool:
    """Whether an operator works by calling others: it has no kernel for processors and accelerators."""
    return own_name(name) in _said("calling")


@cache
def _said(what: str) -> frozenset[str]:
    return frozenset(said_by_torch()[what])


def operands(name: str) -> int | None:
    """How many tensors a pointwise operator is given; further ones are where it writes. None where torch does not say it."""
    result_of: int | None = said_by_torch()["pointwise"].get(own_name(name))
    return result_of


def argument_places(name: str) -> dict[str, int]:
    """Where the settings of an attention or a convolution stand among its arguments, by their names in torch's schema."""
    positions: dict[str, int] = said_by_torch()["settings"].get(own_name(name), {})
    return positions


class ConvolutionWindow(NamedTuple):
    """One side of a convolution. positions: of its output."""

    stride: int
    padding: int
    dilation: int
    positions: int


def convolution_windows(name: str, values: Sequence[str], image: Shape, taps: Shape) -> list[ConvolutionWindow] | None:
    """How a convolution goes along each side of its images; None where the recording does not have its settings, or it is transposed.
    values: of its arguments, as the profiler writes them. image, taps: the sides of the images and of the weights."""
    places = argument_places(name)
    if "stride" not in places or len(values) <= max(places.values()) or ("transposed" in places and values[places["transposed"]] == "True"):
        return None
    settings = [_numbers(values[places[key]]) for key in ("stride", "padding", "dilation")]
    if len(image) != len(taps) or not taps or any(len(setting) not in (1, len(taps)) for setting in settings) or min(settings[0]) < 1:
        return None
    sides = zip(image, taps, *(setting * len(taps) if len(setting) == 1 else setting for setting in settings), strict=True)
    return [ConvolutionWindow(step, pad, gap, (size + 2 * pad - gap * (n - 1) - 1) // step + 1) for size, n, step, pad, gap in sides]


def _numbers(text: str) -> list[int]:
    """The whole numbers of a list such as "[1, 1]"; none where the text is no list of them."""
    words = [word.strip() for word in text.strip("[]").split(",")]
    return [int(word) for word in words] if all(is_whole(word.removeprefix("-")) for word in words) else []


@cache
def _axis_rules() -> dict[str, tuple[Rule, ...]]:
    return {name: tuple(map(_rule, text.split("|"))) for rules in operator_table()["axes"].values() for name, text in rules.items()}


def axis_rule(name: str, shapes: tuple[Shape, ...]) -> Rule | None:
    """How letters say that the axes of a call belong together, by the first reading that its inputs fit; None where none says it."""
    rules = _axis_rules().get(own_name(name))
    if rules is None or len(rules) == 1:
        return rules[0] if rules else None
    return next((rule for rule in rules if rule.fits(shapes)), rules[0])


@cache
def views() -> dict[str, str]:
    """The operators whose result follows from the values of their arguments, each with the function that says how."""
    return {name: how for ways in operator_table()["arguments"].values() for how, names in ways.items() for name in names}


@cache
def clears() -> dict[str, str]:
    """By the names of operators that have their result cleared before they write to it, the operator that they call for that."""
    return {name: called for called, names in operator_table()["clears"].items() for name in names}


@cache
def elementwise_names() -> frozenset[str]:
    """The operators whose result has the axes of their inputs."""
    of_torch = {name for name in said_by_torch()["pointwise"] if _kinds()[name] is OperatorKind.POINTWISE}
    return frozenset(name for names in operator_table()["elementwise"].values() for name in names) | of_torch - _axis_rules().keys()


@cache
def own_name(name: str) -> str:
    """The name of an operator without its namespace and without the underscore of those that work in place."""
    last = name.rpartition("::")[2]
    return last if last.startswith("__") else last.rstrip("_") or name


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
    base, rule = own_name(name), axis_rule(name, shapes)
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
    rules = _axis_rules().get(own_name(name))
    return rules[0].weights if rules else (1, 2) if views().get(own_name(name)) == "convolved" else ()
