"""The shapes of a model's weights, from the operators that use them, and the arithmetic of convolutions."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from lumos.segment.products import ShapedOperator, product
from lumos.segment.recurrence import is_recurrent

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lumos.cost.operators import Shape

_CONVOLUTION = re.compile(r"(aten::)?(conv\dd|convolution|_convolution|cudnn_convolution|miopen_convolution|mkldnn_convolution)$")
_CONVOLUTION_BACKWARD = re.compile(r"(aten::)?(\w*convolution_backward(_input|_weight)?)$")


def shapes_of_weights(counted: Iterable[tuple[ShapedOperator, int]]) -> frozenset[Shape]:
    """The shapes of the weights that forward operators use, and of their transposes."""
    found: set[Shape] = set()
    for o, _ in counted:
        if o.name == "aten::embedding":
            found.update(o.shapes[:1])
        elif _CONVOLUTION.match(o.name) or ("norm" in o.name and "backward" not in o.name):
            found.update(s for s in o.shapes[1:] if s)
        elif is_recurrent(o.name) and o.shapes:
            found.update(s for s in o.shapes[1:] if 0 < len(s) < 3 and s[0] not in o.shapes[0][:2])
        elif o.name in ("aten::linear", "aten::mkldnn_linear"):
            found.update(s for s in o.shapes[1:3] if s)
        elif o.name == "aten::addmm" and product(o) is not None:
            found.update((o.shapes[0], o.shapes[2]))
    return frozenset(found | {s[::-1] for s in found if len(s) == 2})


def convolution_work(o: ShapedOperator) -> int:
    """Multiplications of a convolution, forward or backward, but for its stride; 0 where the operator is none."""
    weight = 1 if _CONVOLUTION.match(o.name) else 2 if _CONVOLUTION_BACKWARD.match(o.name) else 0
    if not weight or len(o.shapes) <= weight or min(len(o.shapes[0]), len(o.shapes[weight])) < 3:
        return 0
    out = 1
    for size in (*o.shapes[0], *o.shapes[weight][2:], o.shapes[weight][weight - 1]):
        out *= size
    return out
