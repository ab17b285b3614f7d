"""The batch of a model of any kind, and the shapes of its weights, from the operators that use weights.

The leading dimension of what goes into convolutions and linear layers is the batch, or the batch times something (positions,
samples). Recurrent operators name it in their hidden state. The most frequent value counts: layers agree on it.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

from lumos.segment.products import ShapedOperator, factors, product
from lumos.segment.recurrence import is_recurrent

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lumos.cost.operators import Shape

_CONVOLUTION = re.compile(r"(aten::)?(conv\dd|convolution|_convolution|cudnn_convolution|miopen_convolution|mkldnn_convolution)$")
_CONVOLUTION_BACKWARD = re.compile(r"(aten::)?(\w*convolution_backward(_input|_weight)?)$")


def batch(counted: Iterable[tuple[ShapedOperator, int]]) -> int:
    """The batch of the operators with their numbers of calls; 0 where no operator with weights shows it.

    Operators that name their layer (convolutions, linear layers) count before bare multiplications, some of which belong to the
    backward pass and have features in front.
    """
    layers: Counter[int] = Counter()
    bare: Counter[int] = Counter()
    for o, count in counted:
        if is_recurrent(o.name):
            hidden = next((s for s in o.shapes[1:] if len(s) == 3 and s[1] in o.shapes[0][:2]), None)
            layers[hidden[1] if hidden else 0] += count
        elif _CONVOLUTION.match(o.name) or o.name in ("aten::linear", "aten::mkldnn_linear"):
            layers[o.shapes[0][0] if o.shapes and len(o.shapes[0]) > 1 else 0] += count
        elif o.name == "aten::addmm" and (found := product(o)) is not None:
            layers[found.m] += count
        elif (found := product(o)) is not None:
            bare[found.m] += count
    for counts in (layers, bare):
        del counts[0]
        if counts:
            return counts.most_common(1)[0][0]
    return 0


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


def batched(shape: Shape, old: int, new: int, weights: frozenset[Shape]) -> Shape:
    """The shape of an activation whose model has a batch of `new` instead of `old`; the same shape where it does not show the batch.

    The batch is the first dimension or a factor of it, or the second dimension of a sequence of steps. A batch of 1 is a factor of
    everything, so only tensors of three dimensions and more are then taken to have it.
    """
    if not shape or not old or shape in weights:
        return shape
    if len(shape) == 3 and shape[1] == old and shape[0] % old:
        return (shape[0], new, shape[2])
    if shape[0] % old or not shape[0] or (old == 1 and len(shape) < 3):
        return shape
    return (shape[0] // old * new, *shape[1:])


def batched_product(o: ShapedOperator, old: int, new: int, weights: frozenset[Shape]) -> tuple[Shape, ...]:
    """The same for the inputs of a multiplication of two matrices. If the second factor is a weight, the rows hold the batch; if the
    result is one (its gradient), the depth does; else the first of rows and depth that is a multiple of the batch."""
    found = factors(o)
    sizes = product(o)
    if found is None or sizes is None or not old:
        return o.shapes
    a, b = o.shapes[found.first], o.shapes[found.second]
    rows, depth = sizes.m % old == 0, sizes.k % old == 0
    by_rows = b in weights and rows
    by_depth = (sizes.m, sizes.n) in weights and depth
    if not by_rows and not by_depth:
        by_rows, by_depth = old > 1 and rows, old > 1 and depth and not rows
    out = list(o.shapes)
    if by_rows:
        out[found.first] = (a[0] // old * new, *a[1:]) if a[0] % old == 0 else a
    elif by_depth and len(a) == 2:
        out[found.first] = (a[0], a[1] // old * new)
        out[found.second] = (b[0], b[1] // old * new) if found.transposed else (b[0] // old * new, b[1])
    return tuple(out)
