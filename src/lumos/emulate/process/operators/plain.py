"""Operators that torch replaces by others for tensors of a subclass, as tensors without data are, put back to those of plain tensors.

Where `isTensorSubclassLike` holds, some operators of ATen avoid writing into a tensor or sharing its memory by other means than a
view. A script that runs for real has plain tensors there.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from lumos.emulate.record import Operator, Tensor

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


def as_plain(operators: list[Operator]) -> list[Operator]:
    """The same operators with the names that plain tensors would have given them. They may be in any order."""
    found: list[Operator] = []
    aliases: set[int] = set()
    stacks: dict[int, list[Operator]] = {}
    for each in sorted(operators, key=lambda operator: operator.begin):
        stack = stacks.setdefault(each.thread, [])
        while stack and stack[-1].end < each.begin:
            stack.pop()
        name = _name(each, stack[-1].name if stack else "", aliases)
        stack.append(each)
        found.append(each if name == each.name else msgspec.structs.replace(each, name=name))
    return found


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
