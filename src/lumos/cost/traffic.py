"""Bytes that the kernels of one of torch's operators read and write, from its input shapes; `memory_bound` then gives the time.

Which of its tensors an operator reads and writes is in the table of operators. Tensors are taken as contiguous; a broadcast operand is
read once. Operators whose bytes do not follow from the shapes of their inputs (convolutions, indexing) give None.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lumos.cost.memory_bound_model import POINTWISE, STRIDED
from lumos.operators.kernels import has_own_kernels, kernels_of
from lumos.operators.shaped import elements, result_shapes
from lumos.operators.table import OperatorKind, calls_others, kind_of, of_torch, operands
from lumos.vocabulary import DType

if TYPE_CHECKING:
    from lumos.cost.operators import OperatorTime
    from lumos.operators.shaped import ShapedOperator
    from lumos.operators.table import Shape


def traffic(operator: OperatorTime | ShapedOperator) -> tuple[str, float] | None:
    """The class of kernel, and the bytes that one call reads and writes; None where they do not follow from its shapes."""
    name = operator.name
    kernels = kernels_of(name) if of_torch(name) and (has_own_kernels(name) or not calls_others(name)) else None
    typed = [(s, DType.parse(d)) for s, d in zip(operator.shapes, operator.dtypes, strict=True) if elements(s) > 0]
    tensors = [(s, dtype.bytes) for s, dtype in typed if dtype is not None][: operands(name)]
    if not kernels or not tensors:
        return None
    results: list[int] | None = []
    if kind_of(name) is not OperatorKind.REDUCTION and any(kernel.of_results for kernel in kernels):
        results = _results(operator, tensors)
    if results is None:
        return None
    inputs = [elements(s) * size for s, size in tensors]
    moved = sum(kernel.moves(inputs, results) for kernel in kernels)
    kernel_class = kernels[0].kernel_class
    if kernel_class == POINTWISE and _strided(name, tensors):
        kernel_class = STRIDED
    return (kernel_class, float(moved)) if moved else None


def _results(operator: OperatorTime | ShapedOperator, tensors: list[tuple[Shape, int]]) -> list[int] | None:
    """The bytes of each result; None where they do not follow, or where the shapes cannot be those of the call that ran."""
    if operator.name.endswith("_"):
        return [elements(tensors[0][0]) * tensors[0][1]]
    in_order = kind_of(operator.name) is not OperatorKind.POINTWISE
    try:
        shapes = result_shapes(operator.name, operator.shapes if in_order else tuple(shape for shape, _ in tensors))
    except ValueError:  # the shapes do not broadcast
        return None
    width = tensors[0][1] if in_order else max(size for _, size in tensors)
    return None if shapes is None else [elements(shape) * width for shape in shapes]


def _strided(name: str, tensors: list[tuple[Shape, int]]) -> bool:
    """Whether the kernel does not pass over contiguous memory: it has a broadcast operand, or is a copy that changes the layout.

    A copy between equal dtypes changes the layout if it runs as a kernel; otherwise it would be a memcpy.
    """
    if kind_of(name) is OperatorKind.COPY:
        return len(tensors) > 1 and tensors[0][1] == tensors[1][1]
    return len({s for s, _ in tensors if elements(s) > 1}) > 1
