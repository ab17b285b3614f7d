"""Attention that is not one kernel: unfused, as in Megatron-LM before 2022."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from lumos.cost.attention_model import directions_of
from lumos.cost.gemm_model import gemm
from lumos.cost.memory_bound_model import memory_bound
from lumos.vocabulary import Direction, DType

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from lumos.cost.cluster import Accelerator
    from lumos.cost.coefficients import Book
    from lumos.cost.estimate import Estimate


def unfused_attention(
    batch: ArrayLike,
    seq_len: ArrayLike,
    heads: ArrayLike,
    head_dim: ArrayLike,
    accelerator: Accelerator,
    dtype: str = DType.BF16,
    *,
    direction: str = Direction.FORWARD,
    dropout: bool = True,
    fused_softmax: bool = True,
    clock: float = 1.0,
    book: Book | None = None,
) -> Estimate:
    """Attention that writes its scores to memory: two batched multiplications, with scale, mask, softmax and dropout between them.

    Masked scores are computed too (as in Megatron-LM's core attention). fused_softmax: whether scale, mask and softmax are one
    kernel or three. Backward: four multiplications and the gradients of the other kernels.
    """
    directions = directions_of(direction)
    each = np.asarray(batch, float) * np.asarray(heads, float)
    s, d = np.asarray(seq_len, float), np.asarray(head_dim, float)
    scores = each * s * s
    options: dict[str, Any] = {"batch": each, "clock": clock, "book": book}
    products = gemm(s, s, d, accelerator, dtype, **options) + gemm(s, d, s, accelerator, dtype, **options)
    forward = ["masked_softmax"] if fused_softmax else ["copy", "residual", "softmax"]
    backward = ["softmax_backward"] if fused_softmax else ["softmax_backward", "copy", "copy"]
    total = None
    for one in directions:
        first = one is Direction.FORWARD
        kinds = forward + ["dropout"] * dropout if first else backward + ["dropout_backward"] * dropout
        part = products if first else products.scaled(2)
        for kind in kinds:
            part = part + memory_bound(kind, scores, accelerator, dtype, book=book)
        total = part if total is None else total + part
    assert total is not None
    return total
