"""Multiplications among the operators of a trace, and their sizes.

PyTorch's own operators are known by name. An operator of another library multiplies if it launches a kernel that does; its factors
are then the first two of its inputs whose shapes fit together.
"""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.cost.operators import Shape, elements
from lumos.graph.kernel_names import KernelClass, kernel_class
from lumos.trace.table import Category

if TYPE_CHECKING:
    from lumos.trace.table import Trace


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


def multiplying(trace: Trace) -> frozenset[int]:
    """Names, as indices of the trace's strings, of the operators that launch a multiplication and are none of PyTorch's."""
    kernels = np.flatnonzero(trace.category == Category.KERNEL)
    names = np.unique(trace.name[kernels])
    products = names[[kernel_class(trace.strings[i]) is KernelClass.GEMM for i in names.tolist()]] if len(names) else names
    ids = np.unique(trace.external_id[kernels[np.isin(trace.name[kernels], products)]])
    operators = np.flatnonzero((trace.category == Category.OPERATOR) & (trace.external_id >= 0))
    found = np.unique(trace.name[operators[np.isin(trace.external_id[operators], ids)]])
    return frozenset(i for i in found.tolist() if not trace.strings[i].startswith("aten::"))
