"""Attention that is not one kernel: unfused (as in Megatron-LM before 2022), and split over ranks (context parallelism)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from lumos.cost.attention import attention, directions_of
from lumos.cost.cluster import Accelerator, Cluster, dtype_of
from lumos.cost.collective import collective
from lumos.cost.estimate import Estimate
from lumos.cost.gemm import gemm
from lumos.cost.memory_bound import memory_bound
from lumos.errors import UsageError
from lumos.vocabulary import AttentionKernel, CollectiveKind, Direction, DType

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from lumos.cost.coefficients import Book


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


def context_parallel_attention(
    batch: ArrayLike,
    seq_len: ArrayLike,
    heads: ArrayLike,
    head_dim: ArrayLike,
    ranks: int,
    cluster: Cluster,
    dtype: str = DType.BF16,
    *,
    kv_heads: ArrayLike | None = None,
    causal: bool = True,
    direction: str = Direction.FORWARD,
    method: str = "ring",
    kernel: str = AttentionKernel.FLASH,
    per_node: int | None = None,
    clock: float = 1.0,
    book: Book | None = None,
) -> Estimate:
    """Attention over a sequence of `seq_len`, of which each of `ranks` ranks holds an equal part with an equal share of the work.

    method: "ring", `ranks` steps, each over the K and V of one rank, while those of the next rank are being transferred (Liu et
    al., Ring Attention, 2023); with a causal mask each rank holds an early and a late part of the sequence, so that it does half
    the work in every step. "all_gather": K and V are gathered first (Llama 3, section 3.3.2). Raises UsageError for another
    method.
    """
    if method not in ("ring", "all_gather"):
        raise UsageError(f"context parallel attention: method {method!r} is not known; valid: ring, all_gather")
    groups = heads if kv_heads is None else kv_heads
    options: dict[str, Any] = {"kv_heads": groups, "direction": direction, "kernel": kernel, "clock": clock, "book": book}
    accelerator = cluster.accelerator
    if ranks == 1:
        return attention(batch, seq_len, heads, head_dim, accelerator, dtype, causal=causal, **options)
    part = np.ceil(np.asarray(seq_len, float) / ranks)
    kv_bytes = 2 * np.asarray(batch, float) * np.asarray(groups, float) * part * np.asarray(head_dim, float) * dtype_of(dtype).bytes
    half = 0.5 if causal else 1.0
    trips = sum(
        2.0 if one is Direction.BACKWARD else 1.0 for one in directions_of(direction)
    )  # backward also moves the gradients of K and V
    if method == "all_gather":
        local = attention(batch, part, heads, head_dim, accelerator, dtype, kv_len=np.ceil(part * ranks * half), causal=False, **options)
        return local + collective(CollectiveKind.ALL_GATHER, ranks, kv_bytes * ranks, cluster, per_node=per_node, book=book).scaled(trips)
    step = attention(batch, part, heads, head_dim, accelerator, dtype, kv_len=np.ceil(part * half), causal=False, **options)
    hop = collective(
        CollectiveKind.SEND_RECEIVE, np.full(np.shape(kv_bytes), 2), kv_bytes, cluster, per_node=1 if per_node == 1 else None, book=book
    ).scaled(trips)
    return step + longer(step, hop).scaled(ranks - 1)


def longer(a: Estimate, b: Estimate) -> Estimate:
    """Both at once: the time until the later end, with the later ends of the intervals; bound by what bounds the longer."""
    first = a.time >= b.time
    return Estimate(
        np.maximum(a.time, b.time),
        np.maximum(a.low, b.low),
        np.maximum(a.high, b.high),
        np.where(first, a.bound_by, b.bound_by),
        np.maximum(a.roofline, b.roofline),
        a.extrapolated | b.extrapolated,
        (a + b).source,
        (a + b).diagnostics,
    )
