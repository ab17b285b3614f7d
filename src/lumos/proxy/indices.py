"""Which values an integer tensor must have so that an operator accepts it as indices.

A trace contains no data. Floating point values can be anything, but an index must be in range, and the offsets of embedding bags
must ascend. The rules follow the operators' documentation. An integer tensor without a rule is filled with zeros, which are valid
as any index.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

_Shape = tuple[int, ...]


class Arguments(NamedTuple):
    """The arguments of an operator. shapes: of tensors, None for other arguments. values: of plain arguments, None for others."""

    shapes: Sequence[_Shape | None]
    values: Sequence[Any]

    def size(self, position: int, dimension: int) -> int:
        """A dimension of the tensor argument at `position`; 1 where there is none."""
        shape = self.shapes[position] if position < len(self.shapes) else None
        return shape[dimension] if shape and -len(shape) <= dimension < len(shape) else 1

    def number(self, position: int, default: int = 1) -> int:
        """The plain argument at `position`, where it is a whole number."""
        value = self.values[position] if position < len(self.values) else None
        return value if isinstance(value, int) else default

    def classes(self, position: int) -> int:
        """How many classes the scores in a tensor argument have: [classes] or [batch, classes, …]."""
        return self.size(position, 1 if len(self.shapes[position] or ()) > 1 else 0)


#: The position of an index among the arguments, and its bound; negative where the values must ascend.
_Rule = tuple[int, Callable[[Arguments], int]]

_ROW_OF_FIRST: tuple[_Rule, ...] = ((1, lambda given: given.size(0, 0)),)
_COUNTED: tuple[_Rule, ...] = ((1, lambda given: given.number(2)),)
_ALONG: tuple[_Rule, ...] = ((2, lambda given: given.size(0, given.number(1, 0))),)
_BAG: tuple[_Rule, ...] = (*_ROW_OF_FIRST, (2, lambda given: -given.size(1, 0)))

_RULES: dict[str, tuple[_Rule, ...]] = {
    "aten::embedding": _ROW_OF_FIRST,
    **dict.fromkeys(("aten::embedding_backward", "aten::embedding_dense_backward"), _COUNTED),
    **dict.fromkeys(("aten::embedding_bag", "aten::_embedding_bag", "aten::_embedding_bag_forward_only"), _BAG),
    "aten::_embedding_bag_backward": (
        (1, lambda given: given.number(6)), (2, lambda given: -given.size(1, 0)), (3, lambda given: -given.size(0, 0)),
    ),
    "aten::_embedding_bag_dense_backward": ((1, lambda given: given.number(5)), (2, lambda given: -given.size(0, 0))),
    "aten::max_pool2d_with_indices_backward": ((7, lambda given: math.prod((given.shapes[1] or (1,))[-2:])),),
    "aten::take": ((1, lambda given: math.prod(given.shapes[0] or (1,))),),
    **dict.fromkeys(("aten::nll_loss", "aten::nll_loss_nd", "aten::nll_loss_forward", "aten::nll_loss2d", "aten::nll_loss2d_forward",
                     "aten::cross_entropy_loss"), ((1, lambda given: given.classes(0)),)),
    **dict.fromkeys(("aten::nll_loss_backward", "aten::nll_loss2d_backward"), ((2, lambda given: given.classes(1)),)),
    **dict.fromkeys(("aten::index_select", "aten::gather", "aten::index_add", "aten::index_add_", "aten::index_copy", "aten::index_copy_",
                     "aten::index_fill", "aten::index_fill_", "aten::scatter", "aten::scatter_", "aten::scatter_add",
                     "aten::scatter_add_", "aten::scatter_reduce", "aten::scatter_reduce_"), _ALONG),
    "aten::index_select_backward": ((3, lambda given: _at(given.values, 1, given.values[2])),),
    "aten::gather_backward": ((3, lambda given: given.size(1, given.number(2, 0))),),
}  # fmt: skip

#: Operators whose integer outputs have the values of their first input, so that a bound on either holds for both.
_KEEPS = (
    "view reshape _unsafe_view as_strided slice select narrow transpose t permute expand expand_as unsqueeze squeeze flatten "
    "unflatten contiguous clone detach alias to _to_copy unbind split split_with_sizes chunk repeat movedim swapaxes"
)
KEEPS_VALUES = frozenset(f"aten::{name}" for name in _KEEPS.split())


def bounds(name: str, given: Arguments) -> dict[int, int]:
    """By position, the bound of each tensor argument of an operator that is an index; negative where the values must ascend."""
    shapes = given.shapes
    return {
        position: bound(given) or 1 for position, bound in _RULES.get(name, ()) if position < len(shapes) and shapes[position] is not None
    }


def _at(values: Sequence[Any], position: int, item: Any) -> int:
    sizes = values[position]
    return sizes[item] if isinstance(sizes, list) and isinstance(item, int) and -len(sizes) <= item < len(sizes) else 1


#: Operators that are slow on negative values, or return NaN: square roots and logarithms.
_ROOTS = "sqrt sqrt_ rsqrt rsqrt_ log log_ log2 log10 _foreach_sqrt _foreach_sqrt_ _foreach_rsqrt"
NEEDS_NON_NEGATIVE = frozenset(f"aten::{name}" for name in _ROOTS.split())
