"""Which values integer tensors must have for an operator to accept them: indices within what they index.

A trace holds no data. Floating point values may be anything; an index must lie in range, and the offsets of bags must
ascend. The rules are those of the operators' documentation; an integer tensor under no rule is filled with zeros, which
every index may be.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

Shape = tuple[int, ...]
#: (position of the index among the arguments, its bound from the arguments' shapes and plain values)
Rule = tuple[int, Callable[[Sequence[Shape | None], Sequence[Any]], int]]


def _rows(source: int) -> Callable[[Sequence[Shape | None], Sequence[Any]], int]:
    """Indices into the first dimension of the tensor argument `source`."""
    return lambda shapes, values: _size(shapes, source, 0)


def _along(shapes: Sequence[Shape | None], values: Sequence[Any]) -> int:
    """Indices into the dimension that argument 1 names of the tensor argument 0."""
    return _size(shapes, 0, values[1] if isinstance(values[1], int) else 0)


def _classes(source: int) -> Callable[[Sequence[Shape | None], Sequence[Any]], int]:
    """Class numbers of the scores in the tensor argument `source`: [classes] or [batch, classes, …]."""
    return lambda shapes, values: _size(shapes, source, 1 if len(shapes[source] or ()) > 1 else 0)


def _count(position: int) -> Callable[[Sequence[Shape | None], Sequence[Any]], int]:
    """Indices below a plain argument."""
    return lambda shapes, values: values[position] if position < len(values) and isinstance(values[position], int) else 1


def _plane(shapes: Sequence[Shape | None], values: Sequence[Any]) -> int:
    """Indices into the flattened last two dimensions of the tensor argument 1."""
    return math.prod((shapes[1] or (1,))[-2:])


def _ascending(source: int) -> Callable[[Sequence[Shape | None], Sequence[Any]], int]:
    """Positions in the tensor argument `source` in ascending order: told from plain indices by the sign."""
    return lambda shapes, values: -_size(shapes, source, 0)


def _size(shapes: Sequence[Shape | None], position: int, dimension: int) -> int:
    shape = shapes[position] if position < len(shapes) else None
    return shape[dimension] if shape and -len(shape) <= dimension < len(shape) else 1


_SCATTER: tuple[Rule, ...] = ((2, _along),)
_BAG: tuple[Rule, ...] = ((1, _rows(0)), (2, _ascending(1)))

RULES: dict[str, tuple[Rule, ...]] = {
    "aten::embedding": ((1, _rows(0)),),
    "aten::embedding_backward": ((1, _count(2)),),
    "aten::embedding_dense_backward": ((1, _count(2)),),
    "aten::embedding_bag": _BAG,
    "aten::_embedding_bag": _BAG,
    "aten::_embedding_bag_forward_only": _BAG,
    "aten::_embedding_bag_backward": ((1, _count(6)), (2, _ascending(1)), (3, _ascending(0))),
    "aten::_embedding_bag_dense_backward": ((1, _count(5)), (2, _ascending(0))),
    "aten::max_pool2d_with_indices_backward": ((7, _plane),),
    "aten::take": ((1, lambda shapes, values: math.prod(shapes[0] or (1,))),),
    **dict.fromkeys(("aten::nll_loss", "aten::nll_loss_nd", "aten::nll_loss_forward", "aten::nll_loss2d", "aten::nll_loss2d_forward",
                     "aten::cross_entropy_loss"), ((1, _classes(0)),)),
    **dict.fromkeys(("aten::nll_loss_backward", "aten::nll_loss2d_backward"), ((2, _classes(1)),)),
    **dict.fromkeys(("aten::index_select", "aten::gather", "aten::index_add", "aten::index_add_", "aten::index_copy", "aten::index_copy_",
                     "aten::index_fill", "aten::index_fill_", "aten::scatter", "aten::scatter_", "aten::scatter_add",
                     "aten::scatter_add_", "aten::scatter_reduce", "aten::scatter_reduce_"), _SCATTER),
    "aten::index_select_backward": ((3, lambda shapes, values: _at(values, 1, values[2])),),
    "aten::gather_backward": ((3, lambda shapes, values: _size(shapes, 1, values[2] if isinstance(values[2], int) else 0)),),
}  # fmt: skip

#: Operators whose integer outputs hold the values of their first tensor: a bound on the one is a bound on the other.
_KEEPS = (
    "view reshape _unsafe_view as_strided slice select narrow transpose t permute expand expand_as unsqueeze squeeze flatten "
    "unflatten contiguous clone detach alias to _to_copy unbind split split_with_sizes chunk repeat movedim swapaxes"
)
KEEPS_VALUES = frozenset(f"aten::{name}" for name in _KEEPS.split())


def bounds(name: str, shapes: Sequence[Shape | None], values: Sequence[Any]) -> dict[int, int]:
    """Bound of each tensor argument of an operator that is an index, by position; negative where it must ascend.

    shapes: of the arguments that are tensors, None elsewhere. values: the plain arguments, None elsewhere.
    """
    return {
        position: bound(shapes, values) or 1
        for position, bound in RULES.get(name, ())
        if position < len(shapes) and shapes[position] is not None
    }


def _at(values: Sequence[Any], position: int, item: Any) -> int:
    sizes = values[position]
    return sizes[item] if isinstance(sizes, list) and isinstance(item, int) and -len(sizes) <= item < len(sizes) else 1


#: Operators that are slow, or not a number, on negative values: square roots and logarithms.
_ROOTS = "sqrt sqrt_ rsqrt rsqrt_ log log_ log2 log10 _foreach_sqrt _foreach_sqrt_ _foreach_rsqrt"
NEEDS_NON_NEGATIVE = frozenset(f"aten::{name}" for name in _ROOTS.split())
