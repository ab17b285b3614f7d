"""Operators that torch replaces by others for tensors of a subclass, as tensors without data are, put back to those of plain tensors.

Where `isTensorSubclassLike` holds, some operators of ATen avoid writing into a tensor or sharing its memory by other means than a
view. A script that runs for real has plain tensors there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec

from lumos.emulate.record import Operator, Tensor

if TYPE_CHECKING:
    from collections.abc import Mapping

_SUM = "aten::add_"
_ENGINE = "autograd::engine::evaluate_function: "


class Replaced(NamedTuple):
    """An operator below a caller, and what plain tensors have in its place."""

    caller: str
    operator: str
    plain: str


_REPLACED = (
    Replaced("aten::linear", "aten::add", "aten::add_"),
    Replaced("aten::_scaled_dot_product_attention_math", "aten::add", "aten::add_"),
    # The engine adds up gradients in place (accumulate in torch/csrc/autograd/input_buffer.cpp).
    Replaced(_ENGINE, "aten::add", "aten::add_"),
)


def as_plain(operators: list[Operator], freed: Mapping[int, int]) -> list[Operator]:
    """The same operators with the names that plain tensors would have given them. They may be in any order. freed: when each storage was
    given back, by its number. The engine adds to a gradient in place where nothing else has it, so that it is given back as soon as the
    sum is made."""
    found: list[Operator] = []
    aliases: set[int] = set()
    stacks: dict[int, list[Operator]] = {}
    ordered = sorted(operators, key=lambda operator: operator.begin)
    following = _next_begins(ordered)
    for each, until in zip(ordered, following, strict=True):
        stack = stacks.setdefault(each.thread, [])
        while stack and stack[-1].end < each.begin:
            stack.pop()
        name = _name(each, stack[-1].name if stack else "", aliases)
        if name == _SUM and name != each.name and stack[-1].name.startswith(_ENGINE) and not _is_last(each, freed, until):
            name = each.name
        stack.append(each)
        found.append(each if name == each.name else msgspec.structs.replace(each, name=name))
    return found


def _next_begins(ordered: list[Operator]) -> list[int]:
    """When the next operator that is not inside of it begins, of each on its thread."""
    after: dict[int, list[int]] = {}
    found = []
    for each in reversed(ordered):
        later = after.setdefault(each.thread, [])
        while later and later[-1] < each.end:
            later.pop()
        found.append(later[-1] if later else each.end + 1)
        later.append(each.begin)
    return found[::-1]


def _is_last(operator: Operator, freed: Mapping[int, int], until: int) -> bool:
    """Whether nothing else has what an operator adds to."""
    first = operator.inputs[0] if operator.inputs else None
    return not isinstance(first, Tensor) or freed.get(first.storage, until) < until


def _name(operator: Operator, caller: str, aliases: set[int]) -> str:
    """aliases: sequence numbers of reshapes that share memory without a view, to which those found are added."""
    if caller == "aten::reshape" and operator.name == "aten::view" and not _is_contiguous(operator):
        aliases.add(operator.sequence)
        return "aten::_reshape_alias"
    if operator.sequence >= 0 and operator.sequence in aliases:
        return operator.name.replace("ViewBackward0", "ReshapeAliasBackward0")
    for each in _REPLACED:
        if operator.name == each.operator and (caller.startswith(_ENGINE) if each.caller == _ENGINE else caller == each.caller):
            return each.plain
    return operator.name


def _is_contiguous(operator: Operator) -> bool:
    tensor = operator.inputs[0] if operator.inputs else None
    if not isinstance(tensor, Tensor):
        return True
    expected = 1
    for size, stride in zip(reversed(tensor.shape), reversed(tensor.stride), strict=True):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True
