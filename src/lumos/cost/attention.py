"""Attention: flash kernels by tiles of queries over cores, unfused attention from its parts, and ring attention.

A flash kernel gives each core blocks of 128 queries of one head and walks over blocks of 128 keys:

    block   = 2 · 128² · (d_qk + d_v) · cores / peak · (1 + overhead) + 128² · softmax cycles / clock
    blocks  = batch · heads · Σ over query blocks of the key blocks it sees (causal: only up to its own diagonal)
    compute = (blocks / cores + tail · key blocks of the longest query block) · block
    memory  = (Q + K + V + O bytes) / bandwidth · (1 + memory overhead)
    time    = launch + per-query-block prologue + sqrt(compute² + memory²)

The softmax term is what keeps small heads slow: exponentials run on few units per core (Shah et al., FlashAttention-3,
2024, section 3). Head sizes are padded to 32, 64, 96, 128, 192 or 256 as the kernels do. The backward pass does five
multiplications for the forward's two (Dao, FlashAttention-2, 2023), at its own overhead. A sequence that does not divide
by 128 is rounded up. Unfused attention (Megatron-LM before 2022) is two batched multiplications and a softmax that writes
the score matrix: `unfused_attention`.

Limits: no sliding windows, no paged keys, no dropout inside the kernel; sequences of one batch have equal length.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from lumos.cost.cluster import Accelerator, dtype_of
from lumos.cost.coefficients import Book, estimate, find, outside
from lumos.cost.estimate import Bound, Estimate, Float64
from lumos.errors import UsageError
from lumos.vocabulary import AttentionKernel, Direction, DType

BLOCK = 128
#: Head sizes that the kernels are compiled for; others are padded up.
HEAD_SIZES = np.array([32, 64, 96, 128, 192, 256])
#: Multiplications of the backward pass per forward one: five against two.
BACKWARD_FLOPS = 2.5
#: Kernels with fitted sets, and the order in which "flash" looks for one (after a set of its own, from calibrate).
KERNELS = (AttentionKernel.FA3, AttentionKernel.CUDNN, AttentionKernel.FA2, AttentionKernel.TRTLLM)
#: The passes that one time may cover, by the word of the command line and of tables.
DIRECTIONS = {
    "fwd": (Direction.FORWARD,),
    "bwd": (Direction.BACKWARD,),
    "fwd+bwd": (Direction.FORWARD, Direction.BACKWARD),
}


class AttentionCoefficients(NamedTuple):
    """What is fitted. Times in µs, overheads as fractions ≥ 0, softmax in clock cycles of a core per score."""

    launch_us: float
    overhead: float
    softmax_cycles: float
    tail: float
    prologue_us: float
    memory_overhead: float
    backward_overhead: float


PRIOR = AttentionCoefficients(8.0, 0.2, 0.03, 0.5, 0.5, 0.3, 0.2)


class AttentionShape(NamedTuple):
    """Sizes of one shape (arrays): query and key lengths differ in ring attention and with cached keys."""

    batch: Float64
    queries: Float64
    keys: Float64
    heads: Float64
    kv_heads: Float64
    head_dim: Float64
    value_dim: Float64


def attention(
    batch: ArrayLike,
    seq_len: ArrayLike,
    heads: ArrayLike,
    head_dim: ArrayLike,
    accelerator: Accelerator,
    dtype: str = DType.BF16,
    *,
    kv_heads: ArrayLike | None = None,
    value_dim: ArrayLike | None = None,
    kv_len: ArrayLike | None = None,
    causal: bool = True,
    direction: str = Direction.FORWARD,
    kernel: str = AttentionKernel.FLASH,
    clock: float = 1.0,
    book: Book | None = None,
) -> Estimate:
    """Time of one fused attention kernel (backward: with its small companions). Sizes are broadcast together.

    kv_heads: heads of K and V (GQA, MQA; default: heads). value_dim: head size of V where it differs from that of Q and
    K (MLA: head_dim 192, value_dim 128). kv_len: keys where they are not as many as the queries; causal then masks the
    last queries' future. kernel: "flash" (the accelerator's best known), or one of `KERNELS`. Raises UsageError for bad
    sizes, kernel, direction or dtype, LumosError where the accelerator lacks a number.
    """
    directions = directions_of(direction)
    if kernel != AttentionKernel.FLASH and kernel not in KERNELS:
        raise UsageError(f"attention: kernel {kernel!r} is not known; valid: flash, {', '.join(KERNELS)}")
    if not 0 < clock <= 1:
        raise UsageError(f"attention: clock is a fraction of the boost clock in (0, 1], not {clock:g}")
    s = shape_of(batch, seq_len, heads, head_dim, kv_heads, value_dim, kv_len)
    found, notes = find("attention", accelerator, (AttentionKernel.FLASH, *KERNELS) if kernel == AttentionKernel.FLASH else (kernel,), book)
    coefficients = AttentionCoefficients(**found.values)  # type: ignore[arg-type]
    seconds, bound, roof = attention_seconds(s, causal, directions, accelerator, dtype_of(dtype), coefficients, clock)
    beyond = outside(found.seen, batch=s.batch, seq_len=s.keys, heads=s.heads, head_dim=s.head_dim)
    return estimate(seconds, roof, bound, beyond, found, notes)


def directions_of(word: str) -> tuple[Direction, ...]:
    """The passes that "fwd", "bwd" or "fwd+bwd" names. Raises UsageError for any other word."""
    if word not in DIRECTIONS:
        raise UsageError(f"attention: direction {word!r} is not known; valid: {', '.join(DIRECTIONS)}")
    return DIRECTIONS[word]


def shape_of(
    batch: ArrayLike,
    seq_len: ArrayLike,
    heads: ArrayLike,
    head_dim: ArrayLike,
    kv_heads: ArrayLike | None = None,
    value_dim: ArrayLike | None = None,
    kv_len: ArrayLike | None = None,
) -> AttentionShape:
    """The sizes, broadcast together and checked."""
    sizes = (
        batch,
        seq_len,
        seq_len if kv_len is None else kv_len,
        heads,
        heads if kv_heads is None else kv_heads,
        head_dim,
        head_dim if value_dim is None else value_dim,
    )
    shape = AttentionShape(*(np.asarray(x, float) for x in np.broadcast_arrays(*sizes)))
    if any(np.any(~(x >= 0)) for x in shape):
        raise UsageError("attention: sizes must be zero or more")
    if np.any(shape.kv_heads > shape.heads) or np.any(shape.head_dim > HEAD_SIZES[-1]):
        raise UsageError(f"attention: kv_heads must be at most heads, and head_dim at most {HEAD_SIZES[-1]}")
    return shape


def attention_seconds(
    s: AttentionShape,
    causal: bool,
    directions: tuple[Direction, ...],
    accelerator: Accelerator,
    dtype: DType,
    c: AttentionCoefficients,
    clock: float = 1.0,
) -> tuple[Float64, Float64, Float64]:
    """Seconds of all `directions` together, `Bound` of the last one, and roofline seconds, of each shape: the formula alone."""
    parts = [_one_direction(s, causal, direction, accelerator, dtype, c, clock) for direction in directions]
    seconds = np.asarray(sum(p[0] for p in parts))
    roof = np.asarray(sum(p[2] for p in parts))
    return seconds, parts[-1][1], roof


def _one_direction(
    s: AttentionShape, causal: bool, direction: Direction, accelerator: Accelerator, dtype: DType, c: AttentionCoefficients, clock: float
) -> tuple[Float64, Float64, Float64]:
    cores, hertz = accelerator.require("cores"), accelerator.require("clock_hz")
    peak, bandwidth = accelerator.peak(dtype), accelerator.require("memory_bytes_per_s")
    backward = direction is Direction.BACKWARD
    pairs, blocks, longest, starts = _blocks(s, causal)
    work = BACKWARD_FLOPS if backward else 1.0
    slower = (1 + c.backward_overhead) if backward else 1.0
    block_flops = 2.0 * BLOCK**2 * (_padded(s.head_dim) + _padded(s.value_dim))
    block = (work * block_flops * cores / peak * (1 + c.overhead) + BLOCK**2 * c.softmax_cycles / hertz) * slower / clock
    compute = (blocks / cores + c.tail * longest) * block
    rows = s.batch * s.heads * s.queries
    columns = s.batch * s.kv_heads * s.keys
    elements = (rows + columns) * (s.head_dim + s.value_dim) * (2 if backward else 1)
    stream = elements * dtype.bytes / bandwidth
    memory = stream * (1 + c.memory_overhead)
    fixed = c.launch_us * 1e-6 + starts / cores * c.prologue_us * 1e-6
    seconds = fixed + np.sqrt(np.square(compute) + np.square(memory))
    ideal = work * 2 * pairs * (s.head_dim + s.value_dim) / peak
    bound = np.array([Bound.LATENCY, Bound.COMPUTE, Bound.MEMORY], np.uint8)[np.stack([fixed, compute, memory]).argmax(0)]
    some = (pairs > 0) & (s.head_dim > 0)
    return np.where(some, seconds, 0.0), bound, np.where(some, np.maximum(ideal, stream), 0.0)


def _blocks(s: AttentionShape, causal: bool) -> tuple[Float64, Float64, Float64, Float64]:
    """Scores needed, blocks computed, key blocks of the longest query block, query blocks."""
    q, k = np.ceil(s.queries / BLOCK), np.ceil(s.keys / BLOCK)
    each = s.batch * s.heads
    if not causal:
        return each * s.queries * s.keys, each * q * k, k, each * q
    # query i sees keys up to keys − queries + i: a trapezium, or with fewer keys than queries a triangle of the keys
    seen = np.minimum(s.queries, s.keys)
    pairs = each * (seen * s.keys - seen * (seen - 1) / 2)
    walked = np.minimum(q, k)
    return pairs, each * (walked * k - walked * (walked - 1) / 2), k, each * q


def _padded(head_dim: Float64) -> Float64:
    return HEAD_SIZES[np.searchsorted(HEAD_SIZES, head_dim)].astype(float)
