"""Bytes that an ATen operator's kernel reads and writes, from its input shapes; `memory_bound` then gives the time.

Tensors are taken as contiguous; a broadcast operand is read once. Operators whose bytes do not follow from shapes (convolutions,
indexing, sorting) are not listed and give None.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from lumos.cost.memory_bound_model import NORMALISATION, POINTWISE, REDUCTION, STRIDED
from lumos.operators.shaped import elements
from lumos.operators.table import Shape
from lumos.vocabulary import DType

if TYPE_CHECKING:
    from lumos.cost.operators import OperatorTime

_Tensor = tuple[Shape, int]


_Rule = Callable[[list[_Tensor]], float]


def _pointwise(operands: int, in_place: bool) -> _Rule:
    """Every operand is read once, and one result of their broadcast shape is written. Further tensors are outputs."""

    def rule(tensors: list[_Tensor]) -> float:
        read = tensors[:operands]
        shape = tensors[0][0] if in_place else np.broadcast_shapes(*(s for s, _ in read))
        return sum(elements(s) * size for s, size in read) + elements(shape) * max(size for _, size in read)

    return rule


def _first(reads: float, writes: float) -> _Rule:
    """The first tensor is read `reads` times and written `writes` times."""
    return lambda tensors: elements(tensors[0][0]) * tensors[0][1] * (reads + writes)


_UNARY = ("neg", "pow", "sqrt", "rsqrt", "exp", "sin", "cos", "tanh", "sigmoid", "silu", "gelu", "relu", "clamp_min", "clamp", "abs",
          "square", "reciprocal", "leaky_relu")  # fmt: skip
_BINARY = ("add", "sub", "mul", "div", "threshold_backward", "gelu_backward", "silu_backward", "sigmoid_backward", "tanh_backward",
           "masked_fill", "mse_loss_backward")  # fmt: skip
_TERNARY = ("where", "addcmul", "addcdiv")
_POINTWISE = {name: n for n, names in enumerate((_UNARY, _BINARY, _TERNARY), 1) for name in names}

#: By operator: the class of its kernel, and the rule for its bytes.
_RULES: dict[str, tuple[str, _Rule]] = {
    **{f"aten::{name}": (POINTWISE, _pointwise(n, False)) for name, n in _POINTWISE.items()},
    **{f"aten::{name}_": (POINTWISE, _pointwise(n, True)) for name, n in _POINTWISE.items()},
    "aten::copy_": (POINTWISE, lambda tensors: sum(elements(s) * size for s, size in tensors[:2])),
    "aten::cat": (POINTWISE, lambda tensors: 2 * sum(elements(s) * size for s, size in tensors)),
    "aten::fill_": (POINTWISE, _first(0, 1)),
    "aten::zero_": (POINTWISE, _first(0, 1)),
    "aten::sum": (REDUCTION, _first(1, 0)),
    "aten::mean": (REDUCTION, _first(1, 0)),
    "aten::native_layer_norm": (NORMALISATION, _first(1, 1)),
    "aten::_softmax": (NORMALISATION, _first(1, 1)),
    "aten::_log_softmax": (NORMALISATION, _first(1, 1)),
    "aten::_softmax_backward_data": (NORMALISATION, _first(2, 1)),
    "aten::_log_softmax_backward_data": (NORMALISATION, _first(2, 1)),
    "aten::native_batch_norm": (NORMALISATION, _first(2, 1)),
    "aten::cudnn_batch_norm": (NORMALISATION, _first(2, 1)),
    "aten::miopen_batch_norm": (NORMALISATION, _first(2, 1)),
    "aten::native_batch_norm_backward": (NORMALISATION, _first(4, 1)),
    "aten::cudnn_batch_norm_backward": (NORMALISATION, _first(4, 1)),
}


def traffic(operator: OperatorTime) -> tuple[str, float] | None:
    """The class of kernel, and the bytes that one call reads and writes; None where they do not follow from its shapes."""
    if operator.name not in _RULES:
        return None
    kernel_class, rule = _RULES[operator.name]
    typed = [(s, DType.parse(d)) for s, d in zip(operator.shapes, operator.dtypes, strict=True) if elements(s) > 0]
    tensors = [(s, dtype.bytes) for s, dtype in typed if dtype is not None]
    if not tensors:
        return None
    if kernel_class == POINTWISE and _strided(operator.name, tensors):
        kernel_class = STRIDED
    try:
        return kernel_class, float(rule(tensors))
    except ValueError:  # the shapes do not broadcast, so this cannot be the call that ran
        return None


def _strided(name: str, tensors: list[_Tensor]) -> bool:
    """Whether the kernel does not pass over contiguous memory: it has a broadcast operand, or is a copy that changes the layout.

    A copy between equal dtypes changes the layout if it runs as a kernel; otherwise it would be a memcpy.
    """
    if name == "aten::copy_":
        return len(tensors) > 1 and tensors[0][1] == tensors[1][1]
    shapes = {s for s, _ in tensors if elements(s) > 1}
    return name == "aten::cat" or len(shapes) > 1
