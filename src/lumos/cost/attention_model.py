"""Attention: flash kernels by tiles of queries over cores, unfused attention from its parts, and ring attention.

In a flash kernel each core takes a block of 128 queries of one head and loops over blocks of 128 keys:

    inner   = the longer of 2 · 128² · (d_qk + d_v) · cores / peak, and bytes through shared memory / (bytes per clock · clock)
    block   = inner · (1 + overhead) + 128² · softmax cycles / clock
    blocks  = batch · heads · Σ over query blocks of their key blocks (causal: only those up to the diagonal)
    compute = (blocks / cores + tail · key blocks of the longest query block) · block
    memory  = (Q + K + V + O bytes) / bandwidth · (1 + memory overhead)
    time    = launch + per-query-block prologue + sqrt(compute² + memory²)

Blocks of queries that a core holds at once start together, and each start takes as much longer. So a kernel that does not fill the device
has, of prologues, at least as many as a core holds, not a share of one. Where a length is no multiple of 128, every block of queries runs
code that masks and checks bounds, as long as that for some blocks of keys more (both in `QUERY_BLOCKS`).

The softmax term makes small heads slow, because a core has few units for exponentials (Shah et al., FlashAttention-3, 2024,
section 3). Head sizes are padded to 32, 64, 96, 128, 192 or 256, as the kernels do. The backward pass does five multiplications
where the forward pass does two (Dao, FlashAttention-2, 2023), and has an overhead of its own. Shared memory holds it back where
multiplications became faster and shared memory did not (Zadouri et al., FlashAttention-4, arXiv:2603.05451: B200 multiplies twice as
fast as H100, with the same 128 bytes a clock). Sequence lengths are rounded up to multiples of 128.

Limits: no unfused attention, which is several kernels (`lumos.blocks.layer_parts`), no sliding windows, no paged keys, no dropout inside
the kernel; sequences of one batch have equal length.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.cost.cluster import Accelerator, dtype_of
from lumos.cost.coefficients import Book, estimate, find, outside
from lumos.cost.estimate import Bound, Estimate, Float64, ModelledTime
from lumos.errors import UsageError
from lumos.vocabulary import AttentionKernel, Direction, DType

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

_BLOCK = 128
#: Head sizes that the kernels are compiled for; others are padded to the next of these.
HEAD_SIZES = np.array([32, 64, 96, 128, 192, 256])
#: Multiplications of the backward pass over those of the forward pass: five over two.
BACKWARD_FLOPS = 2.5
#: Kernels with fitted coefficients, in the order in which they are tried for "flash" (after coefficients for "flash" itself, which
#: only calibration on a trace gives).
KERNELS = (AttentionKernel.FA3, AttentionKernel.CUDNN, AttentionKernel.FA2, AttentionKernel.TRTLLM)


class QueryBlocks(NamedTuple):
    """How a kernel runs its blocks of queries in the forward pass. resident: how many of them a core holds at once. uneven: how many
    blocks of keys each costs more where a length is no multiple of 128."""

    resident: int = 0
    uneven: int = 0


#: By kernels that are asked for by name. FlashAttention 2 runs a block of queries in 128 threads with 255 registers (as the launches
#: recorded on H100 say), of 65,536 that a core has. Its code for heads of 64 with a causal mask (version 2.7.3, compiled with CUDA 13.0
#: for compute capability 9.0) has 1,109 instructions for a block of keys, and outside of that loop 2,323 where lengths are known to be
#: multiples of 128, 4,529 elsewhere: there one more of the loop's rounds is unrolled, and some 1,060 instructions are left, about as many
#: as a round has. Every row to which its coefficients were fitted fills the device, with lengths that are multiples.
QUERY_BLOCKS = {AttentionKernel.FA2: QueryBlocks(resident=2, uneven=1)}
#: The passes that one time may cover, by the word of the command line and of tables.
DIRECTIONS = {
    "fwd": (Direction.FORWARD,),
    "bwd": (Direction.BACKWARD,),
    "fwd+bwd": (Direction.FORWARD, Direction.BACKWARD),
}


class AttentionCoefficients(NamedTuple):
    """The fitted numbers. Times in µs, overheads as fractions ≥ 0, softmax in clock cycles of a core per score."""

    launch_us: float
    overhead: float
    softmax_cycles: float
    tail: float
    prologue_us: float
    memory_overhead: float
    backward_overhead: float


#: Launch as of the other kernels: measured sequences are too long to show it.
ATTENTION_PRIOR = AttentionCoefficients(2.0, 0.2, 0.03, 0.5, 0.5, 0.3, 0.2)


class AttentionShape(NamedTuple):
    """Sizes, arrays of one shape. The lengths of queries and keys differ in ring attention and with cached keys."""

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
    """Time of one fused attention kernel (backward: with the small kernels that belong to it). Sizes are broadcast together.

    batch, seq_len: sequences, and queries of each. heads, head_dim: their number and size. causal: whether a query sees no later key.
    direction: fwd, bwd or fwd+bwd. accelerator, dtype, clock, book: as of `lumos.cost.gemm`.
    kv_heads: heads of K and V (GQA, MQA; default: heads). value_dim: head size of V where it differs from that of Q and
    K (MLA: head_dim 192, value_dim 128). kv_len: number of keys where it differs from that of queries; a causal mask is then
    aligned at the last query, which sees all keys. kernel: one of `KERNELS`, or "flash": the first of the accelerator's own
    `attention_kernels`, else of `KERNELS`, that was measured on it or on a relative. Raises UsageError for bad sizes, kernel, direction
    or dtype, LumosError where the accelerator lacks a number.
    """
    directions = directions_of(direction)
    if kernel != AttentionKernel.FLASH and kernel not in KERNELS:
        raise UsageError(f"attention: kernel {kernel!r} is not known; valid: flash, {', '.join(KERNELS)}")
    if not 0 < clock <= 1:
        raise UsageError(f"attention: clock is a fraction of the boost clock in (0, 1], not {clock:g}")
    s = shape_of(batch, seq_len, heads, head_dim, kv_heads, value_dim, kv_len)
    variants = (AttentionKernel.FLASH, *(accelerator.attention_kernels or KERNELS)) if kernel == AttentionKernel.FLASH else (kernel,)
    fitted, notes = find("attention", accelerator, variants, book)
    coefficients = fitted.read_as(AttentionCoefficients)
    how = QUERY_BLOCKS.get(AttentionKernel(kernel), QueryBlocks())
    parts = [attention_seconds(s, causal, one, accelerator, dtype_of(dtype), coefficients, clock, how) for one in directions]
    seconds, roof = (np.asarray(sum(column)) for column in ([p.seconds for p in parts], [p.roofline for p in parts]))
    beyond = outside(fitted.seen, batch=s.batch, seq_len=s.keys, heads=s.heads, head_dim=s.head_dim)
    return estimate(seconds, roof, parts[-1].bound, beyond, fitted, notes)


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
    direction: Direction,
    accelerator: Accelerator,
    dtype: DType,
    c: AttentionCoefficients,
    clock: float = 1.0,
    how: QueryBlocks = QueryBlocks(),
) -> ModelledTime:
    """By the formula above, of each shape, in one direction. how: of the forward pass."""
    cores, hertz = accelerator.require("cores"), accelerator.require("clock_hz")
    peak, bandwidth = accelerator.peak(dtype), accelerator.require("memory_bytes_per_s")
    backward = direction is Direction.BACKWARD
    how = QueryBlocks() if backward else how
    pairs, blocks, longest, starts = _blocks(s, causal)
    blocks = blocks + how.uneven * starts * ((s.queries % _BLOCK > 0) | (s.keys % _BLOCK > 0))
    work = BACKWARD_FLOPS if backward else 1.0
    slower = (1 + c.backward_overhead) if backward else 1.0
    block_flops = 2.0 * _BLOCK**2 * (_padded(s.head_dim) + _padded(s.value_dim))
    softmax = _BLOCK**2 * c.softmax_cycles / (hertz * (accelerator.exponential_rate or 1.0))
    inner = np.maximum(work * block_flops * cores / peak, _shared_seconds(s, backward, accelerator, dtype))
    block = (inner * (1 + c.overhead) + softmax) * slower / clock
    compute = (blocks / cores + c.tail * longest) * block
    rows = s.batch * s.heads * s.queries
    columns = s.batch * s.kv_heads * s.keys
    elements = (rows + columns) * (s.head_dim + s.value_dim) * (2 if backward else 1)
    stream = elements * dtype.bytes / bandwidth
    memory = stream * (1 + c.memory_overhead)
    prologues = np.maximum(starts / cores, how.resident)
    fixed = c.launch_us * 1e-6 + prologues * c.prologue_us * 1e-6
    seconds = fixed + np.sqrt(np.square(compute) + np.square(memory))
    ideal = work * 2 * pairs * (s.head_dim + s.value_dim) / peak
    bound = np.array([Bound.LATENCY, Bound.COMPUTE, Bound.MEMORY], np.uint8)[np.stack([fixed, compute, memory]).argmax(0)]
    some = (pairs > 0) & (s.head_dim > 0)
    return ModelledTime(np.where(some, seconds, 0.0), bound, np.where(some, np.maximum(ideal, stream), 0.0))


def _shared_seconds(s: AttentionShape, backward: bool, accelerator: Accelerator, dtype: DType) -> Float64:
    """Seconds that one block's bytes take through a core's shared memory; 0 where its rate is not given.

    As the kernels of Blackwell are built: a multiplication reads both operands from shared memory, but for the scores and their
    gradient, which stay in tensor memory. Forward: Q, K; V. Backward: Q, K; dO, V; dO; Q; dS, K, where dS is also written, and the
    gradient of Q is written and read in fp32. For heads of 128 in 16 bit: 768 and 3,328 clocks of 128 bytes.
    """
    if accelerator.shared_bytes_per_clock is None:
        return np.zeros_like(s.head_dim)
    query, value = _BLOCK * _padded(s.head_dim) * dtype.bytes, _BLOCK * _padded(s.value_dim) * dtype.bytes
    moved = 2 * query + value
    if backward:
        moved = 4 * query + 3 * value + 2 * _BLOCK**2 * dtype.bytes + 2 * _BLOCK * _padded(s.head_dim) * DType.FP32.bytes
    return np.asarray(moved / (accelerator.shared_bytes_per_clock * accelerator.require("clock_hz")))


def _blocks(s: AttentionShape, causal: bool) -> tuple[Float64, Float64, Float64, Float64]:
    """Number of scores needed, of blocks computed, of key blocks of the longest query block, and of query blocks."""
    q, k = np.ceil(s.queries / _BLOCK), np.ceil(s.keys / _BLOCK)
    heads = s.batch * s.heads
    if not causal:
        return heads * s.queries * s.keys, heads * q * k, k, heads * q
    # Query i sees the keys up to keys − queries + i: a trapezium of scores or, with fewer keys than queries, a triangle.
    rows = np.minimum(s.queries, s.keys)
    pairs = heads * (rows * s.keys - rows * (rows - 1) / 2)
    block_rows = np.minimum(q, k)
    return pairs, heads * (block_rows * k - block_rows * (block_rows - 1) / 2), k, heads * q


def _padded(head_dim: Float64) -> Float64:
    return HEAD_SIZES[np.searchsorted(HEAD_SIZES, head_dim)].astype(float)
