"""Bytes that an ATen operator's kernel moves, from its input shapes: what links a trace's operators to `memory_bound`.

Contiguous tensors are assumed; a broadcast operand is read once. Operators whose traffic does not follow from shapes
(convolutions, indexing with unknown hits, sorting) are not listed and give None.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from lumos.cost.memory_bound import NORMALISATION, POINTWISE, REDUCTION, STRIDED
from lumos.cost.operators import OperatorTime, Shape, elements
from lumos.vocabulary import DType

Tensor = tuple[Shape, int]


Rule = Callable[[list[Tensor]], float]


def _pointwise(operands: int, in_place: bool) -> Rule:
    """Every operand read once, one result of their broadcast shape written (a further tensor is the result's place)."""

    def rule(tensors: list[Tensor]) -> float:
        read = tensors[:operands]
        shape = tensors[0][0] if in_place else np.broadcast_shapes(*(s for s, _ in read))
        return sum(elements(s) * size for s, size in read) + elements(shape) * max(size for _, size in read)

    return rule


def _first(reads: float, writes: float) -> Rule:
    """The first tensor read and written so many times."""
    return lambda tensors: elements(tensors[0][0]) * tensors[0][1] * (reads + writes)


_UNARY = ("neg", "pow", "sqrt", "rsqrt", "exp", "sin", "cos", "tanh", "sigmoid", "silu", "gelu", "relu", "clamp_min", "clamp", "abs",
          "square", "reciprocal", "leaky_relu")  # fmt: skip
_BINARY = ("add", "sub", "mul", "div", "threshold_backward", "gelu_backward", "silu_backward", "sigmoid_backward", "tanh_backward",
           "masked_fill", "mse_loss_backward")  # fmt: skip
_TERNARY = ("where", "addcmul", "addcdiv")
_POINTWISE = {name: n for n, names in enumerate((_UNARY, _BINARY, _TERNARY), 1) for name in names}

#: Operator → (class of kernel, bytes of its tensors).
_RULES: dict[str, tuple[str, Rule]] = {
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
    """Class of kernel and bytes read and written by one call; None where they do not follow from its shapes."""
    found = _RULES.get(operator.name)
    if found is None:
        return None
    typed = [(s, DType.parse(d)) for s, d in zip(operator.shapes, operator.dtypes, strict=True) if elements(s) > 0]
    tensors = [(s, dtype.bytes) for s, dtype in typed if dtype is not None]
    if not tensors:
        return None
    kernel_class = STRIDED if found[0] == POINTWISE and _strided(operator.name, tensors) else found[0]
    try:
        return kernel_class, float(found[1](tensors))
    except ValueError:  # shapes that do not broadcast: no such call ran
        return None


def _strided(name: str, tensors: list[Tensor]) -> bool:
    """Whether the kernel cannot read and write straight on: a broadcast operand, or a copy that is not a plain one.

    A copy between equal dtypes that runs as a kernel changes the layout: a plain one is a memcpy.
    """
    if name == "aten::copy_":
        return len(tensors) > 1 and tensors[0][1] == tensors[1][1]
    shapes = {s for s, _ in tensors if elements(s) > 1}
    return name == "aten::cat" or len(shapes) > 1
