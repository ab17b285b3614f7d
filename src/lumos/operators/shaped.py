"""Operators with the shapes of their inputs: which of them multiply, and what their sizes are.

PyTorch's own operators are known by name. An operator of another library multiplies if it launches a kernel that does; its factors
are then the first two of its inputs whose shapes fit together.

An operator of recurrent layers runs all steps of a sequence through one layer, or through all of them. Its inputs are the sequence, the
hidden state and weights: matrices by which the inputs and the hidden state are multiplied, [gates · width, width].
"""

from __future__ import annotations

import re
from itertools import combinations
from math import prod
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lumos.operators.table import Shape

_ATTENTION = re.compile(r"aten::(_scaled_dot_product|scaled_dot_product|_?flash_attention|_efficient_attention|_cudnn_attention)")
_RECURRENT = re.compile(r"(aten::)?(_?\w*_rnn(_layer)?|lstm|gru|rnn_tanh|rnn_relu|_thnn_fused_(lstm|gru)_cell)(_backward)?$")
_CONVOLUTION = re.compile(r"(aten::)?(conv\dd|convolution|_convolution|cudnn_convolution|miopen_convolution|mkldnn_convolution)$")
_CONVOLUTION_BACKWARD = re.compile(r"(aten::)?(\w*convolution_backward(_input|_weight)?)$")


class FactorPlaces(NamedTuple):
    """Where the two factors of a multiplication are among the inputs of its operator. transposed: whether the second is [n, k]."""

    first: int
    second: int
    transposed: bool


#: The factors of the operators that PyTorch itself has.
PRODUCTS = {
    "aten::mm": FactorPlaces(0, 1, False),
    "aten::bmm": FactorPlaces(0, 1, False),
    "aten::addmm": FactorPlaces(1, 2, False),
    "aten::baddbmm": FactorPlaces(1, 2, False),
    "aten::_scaled_mm": FactorPlaces(0, 1, False),
    "aten::linear": FactorPlaces(0, 1, True),
    "aten::mkldnn_linear": FactorPlaces(0, 1, True),
}


class ShapedOperator(NamedTuple):
    """An operator row's name, input shapes (() where an input is no tensor) and dtypes. multiplies: it is no operator of PyTorch's, and
    launches a multiplication."""

    name: str
    shapes: tuple[Shape, ...]
    dtypes: tuple[str, ...]
    multiplies: bool = False


class Product(NamedTuple):
    """A multiplication [m, k] · [k, n], `batch` equal ones in a kernel."""

    m: int
    n: int
    k: int
    batch: int


def factors(o: ShapedOperator) -> FactorPlaces | None:
    """The factors of a multiplication; None where the operator is no multiplication or lacks their shapes."""
    known = PRODUCTS.get(o.name)
    if known is not None:
        fit = len(o.shapes) > known.second and min(len(o.shapes[known.first]), len(o.shapes[known.second])) > 1
        return known if fit else None
    return _by_shape(o.shapes) if o.multiplies else None


def product(o: ShapedOperator) -> Product | None:
    """The sizes of a multiplication; None where the operator is no multiplication or lacks shapes."""
    found = factors(o)
    if found is None:
        return None
    a, b = o.shapes[found.first], o.shapes[found.second]
    if found.transposed:
        return Product(elements(a[:-1]), b[0], b[1], 1)
    return Product(a[-2], b[-1], a[-1], a[0] if len(a) == 3 else 1)


def grouped_product(o: ShapedOperator) -> Product | None:
    """The sizes of a multiplication of tokens by the matrix of the expert that each goes to, or, for the gradients of these matrices, of
    the tokens of each expert by their gradients, where every expert has equally many; None for other operators."""
    if "grouped_mm" not in o.name or len(o.shapes) < 2 or len(o.shapes[0]) != 2:
        return None
    a, b = o.shapes[:2]
    if len(b) == 3:
        return Product(max(a[0] // max(b[0], 1), 1), b[2], a[1], b[0])
    experts = next((s[0] for s in o.shapes[2:] if len(s) == 1), 0)
    return Product(a[0], b[1], max(a[1] // experts, 1), experts) if len(b) == 2 and experts else None


def routed(o: ShapedOperator) -> int:
    """The tokens that experts multiply together, each counted once for every expert that it goes to; 0 for other operators."""
    if grouped_product(o) is None:
        return 0
    a, b = o.shapes[:2]
    return a[0] if len(b) == 3 else a[1]


def _by_shape(shapes: tuple[Shape, ...]) -> FactorPlaces | None:
    """The first two tensors that can be multiplied: [m, k] and [k, n], or else [m, k] and the weight [n, k]."""
    wide = [i for i, shape in enumerate(shapes) if len(shape) > 1]
    for first, second in combinations(wide, 2):
        a, b = shapes[first], shapes[second]
        if len(a) == len(b) and a[:-2] == b[:-2] and a[-1] == b[-2]:
            return FactorPlaces(first, second, False)
        if len(b) == 2 and a[-1] == b[1]:
            return FactorPlaces(first, second, True)
    return None


def elements(shape: Shape) -> int:
    """Elements of a tensor of that shape."""
    return prod(shape)


def is_attention(name: str) -> bool:
    """Whether an operator computes a whole attention."""
    return bool(_ATTENTION.match(name))


def positions_first(name: str) -> bool:
    """Whether an attention operator takes [batch, position, head, width], and not [batch, head, position, width]."""
    return bool(re.search(r"_(flash|efficient)_attention_(forward|backward)", name)) and "scaled_dot_product" not in name


def is_recurrent(name: str) -> bool:
    """Whether an operator runs a whole recurrent layer, or the cell of one."""
    return bool(_RECURRENT.match(name))


class Recurrence(NamedTuple):
    """What an operator of recurrent layers works on. rows: sequences of the batch. inputs, state: shapes of the weights by which the
    inputs and the hidden state are multiplied, [gates · width, width]."""

    steps: int
    rows: int
    inputs: Shape
    state: Shape

    @property
    def tokens(self) -> int:
        """Rows of the inputs of all steps."""
        return self.steps * self.rows

    @property
    def weights(self) -> int:
        """Elements of the two weights."""
        return prod(self.inputs) + prod(self.state)


def recurrence(o: ShapedOperator) -> Recurrence | None:
    """The sizes of an operator of recurrent layers; None where it is none or does not show them."""
    if not is_recurrent(o.name) or not o.shapes or len(o.shapes[0]) != 3:
        return None
    leading = o.shapes[0][:2]
    rows = next((s[-2] for s in o.shapes[1:] if len(s) > 1 and s[-2] in leading), 0)
    matrices = [s for s in o.shapes[1:] if len(s) == 2 and s[0] not in leading]
    if not rows or not matrices:
        return None
    return Recurrence(leading[0] * leading[1] // rows, rows, matrices[0], matrices[min(1, len(matrices) - 1)])


def recurrent_multiplications(o: ShapedOperator) -> int:
    """Multiplications of one layer over all steps; twice as many backward, for the gradients of inputs and weights. 0 where unknown."""
    found = recurrence(o)
    return 0 if found is None else found.tokens * found.weights * (2 if "backward" in o.name else 1)


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
