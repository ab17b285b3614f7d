"""Sums that torch makes out of place for tensors of a subclass, as tensors without data are, put back to those in place of plain tensors.

Where `isTensorSubclassLike` holds, some operators of ATen avoid writing into a tensor. A script that runs for real has plain tensors there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from lumos.emulation.record import Operator, Tensor

if TYPE_CHECKING:
    from collections.abc import Mapping

_SUM, _IN_PLACE = "aten::add", "aten::add_"
#: What adds to its own result.
_CALLERS = ("aten::linear", "aten::_scaled_dot_product_attention_math")
#: The engine adds up gradients in place where nothing else has them (accumulate in torch/csrc/autograd/input_buffer.cpp).
_ENGINE = "autograd::engine::evaluate_function: "


def as_plain(operators: list[Operator], freed: Mapping[int, int]) -> list[Operator]:
    """The same operators, ascending by their begins, with the names that plain tensors would have given them. freed: when each storage was
    given back, by its number: a gradient that nothing else has is given back as soon as the sum is made."""
    found: list[Operator] = []
    stacks: dict[int, list[Operator]] = {}
    ordered = sorted(operators, key=lambda operator: operator.begin)
    for each, until in zip(ordered, _next_begins(ordered), strict=True):
        stack = stacks.setdefault(each.thread, [])
        while stack and stack[-1].end < each.begin:
            stack.pop()
        caller = stack[-1].name if stack else ""
        adds = each.name == _SUM and (caller in _CALLERS or (caller.startswith(_ENGINE) and _is_last(each, freed, until)))
        stack.append(each)
        found.append(msgspec.structs.replace(each, name=_IN_PLACE) if adds else each)
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
