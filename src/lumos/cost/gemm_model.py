"""Matrix multiplication C[m, n] = A[m, k] · B[k, n]: tiles in waves over the cores, against memory and cache traffic.

For each tile (tm × tn, split s ways along k) that the library could choose,

    compute = ceil(tiles · s / cores) · (2 · tm · tn · k/s · cores / peak · (1 + overhead + tile overhead) + prologue)
    memory  = (A + B + C bytes) / memory bandwidth · (1 + memory overhead)
    cache   = ceil(tiles · s / cores) · (tm + tn) · k/s · bytes / (bytes per clock and core · clock)
    time    = launch + min over candidates of sqrt(compute² + memory² + cache²)

It is the minimum because the library's heuristic picks well, and the root of squares because the three parts overlap, but not
fully. The time of each candidate grows with m, n and k, therefore so does the minimum. Large multiplications draw full power,
which lowers the clock: compute is multiplied by 1 + throttle · ln(1 + ideal / 0.3 ms), constant beyond 50 ms.
Inside a step the device is never idle: what power allows for long limits the rate of every multiplication, sustained · peak FLOP/s,
which multiplications of tens of milliseconds reach alone. A less efficient one draws less power, and is not slowed. There each is also
launched for itself, on operands that are not in the cache: it takes `STARTED_S` more than in the loops to which the coefficients were
fitted. A multiplication in fp8 adds the cast of its activation: 2 bytes read and 1 written per element, with its own launch.

fp32 and fp64 are multiplied number by number, not by matrix units (`SCALAR`). Power does not limit their rate, alone or in a step. The
issue of instructions may: a thread multiplies an 8 x 8 block of C, for which it takes 16 elements of A and B from shared memory, four by
one instruction, so that 68 instructions do 64 multiplications and additions. They are split along k only where tiles of 64 x 64 leave cores
idle, which is what splitting is for (NVIDIA, CUTLASS, Efficient GEMM in CUDA). No table has products in fp32.

Tile and wave quantisation: NVIDIA, Matrix Multiplication Background User's Guide (docs.nvidia.com/deeplearning/performance).
Limits: transposed operands cost the same (true of bf16 on the tensor cores of Ampere and later, to a few percent; the
measurements are of the forward form only); epilogues are free; structured sparsity is not modelled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.cost.cluster import Accelerator, dtype_of
from lumos.cost.coefficients import Book, estimate, find, outside
from lumos.cost.estimate import Bound, Estimate, Float64, ModelledTime
from lumos.cost.memory_bound_model import ISSUED_PER_CLOCK
from lumos.errors import UsageError
from lumos.vocabulary import DType

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


class Tile(NamedTuple):
    """A candidate kernel. m, n: rows and columns of C per core. splits: the numbers of parts into which it may split k."""

    m: int
    n: int
    splits: tuple[int, ...]


#: Tile shapes that CUTLASS and cuBLAS offer on Ampere to Blackwell; the square ones also split k.
TILES = (
    Tile(256, 128, (1,)),
    Tile(128, 256, (1,)),
    Tile(128, 128, (1, 2, 4, 8)),
    Tile(256, 256, (1,)),
    Tile(128, 64, (1,)),
    Tile(64, 128, (1,)),
    Tile(64, 64, (1, 2, 4, 8)),
)
#: Elements of k that a core processes at once.
K_STEP = 64
#: Ideal seconds of a multiplication at which the clock starts to fall under load, and at which it falls no further.
THROTTLE_START_S, THROTTLE_END_S = 3e-4, 0.05
#: Types without matrix units. Their peak is a small part of that in 16 bits (a sixteenth on A100), so that power does not limit them as it
#: limits 16 bits. A product in fp32 of 512 x 100,000 x 1,024 was recorded at 96 % of the peak of an A100 of 300 W, to which 16 bits leave
#: 67 % of theirs.
SCALAR = frozenset({DType.FP32, DType.FP64})
#: Instructions for an operation (a multiplication or an addition) of a product in `SCALAR`, as the text above counts them.
INSTRUCTIONS_PER_FLOP = 68 / 64 / 2
#: Bytes that a core reads from or writes to its shared memory in a clock (NVIDIA, whitepapers of the architectures of V100, A100 and H100).
SHARED_PER_CLOCK = 128
#: Seconds that a multiplication within a step takes beyond one of a benchmark's loop over the same operands. Recorded less modelled time,
#: median over the eleven products in TF32 of a recorded DLRM step on A100 that fill at most one wave of 64 x 64 elements a core and have
#: k of at most 256: with longer k it is more, so that this is the part that does not depend on k. Seven products of less than 15 us of
#: two models recorded on H100, which are not part of the median, take 2.0 to 3.6 us more.
STARTED_S = 2.2e-6
#: Number of shapes evaluated together, so that the temporaries stay in the processor's cache.
CHUNK = 4096

_PARTS = (Bound.COMPUTE, Bound.MEMORY, Bound.CACHE, Bound.LATENCY)


class GemmCoefficients(NamedTuple):
    """The fitted numbers. Times in µs; overheads are fractions ≥ 0 by which work takes longer than at the datasheet's rate."""

    launch_us: float
    compute_overhead: float
    memory_overhead: float
    cache_bytes_per_clock_core: float
    prologue_us: float
    throttle: float
    cast_us: float
    cast_overhead: float
    tile_overhead: tuple[float, ...]
    sustained: float = 1.0  # share of the peak that long multiplications reach (`lumos.cost.fitting.models`)


#: Textbook values: the fit starts from them and is pulled towards them where there are few data.
GEMM_PRIOR = GemmCoefficients(2.0, 0.1, 0.2, 40.0, 0.3, 0.1, 3.0, 0.5, (0.05,) * len(TILES))


def gemm(
    m: ArrayLike,
    n: ArrayLike,
    k: ArrayLike,
    accelerator: Accelerator,
    dtype: str = DType.BF16,
    *,
    batch: ArrayLike = 1,
    grouped: bool = False,
    out_bytes: int | None = None,
    accumulate: bool = False,
    cast: bool = True,
    taps: int = 1,
    shared_bytes: ArrayLike = 0,
    split: bool = True,
    clock: float = 1.0,
    in_step: bool = False,
    book: Book | None = None,
) -> Estimate:
    """Time of equal multiplications in one kernel, as many as batch: sizes are broadcast together; a size of 0 means no work.

    m, n, k: A is m × k, B is k × n. accelerator: an `Accelerator`, or the name of a cluster with it. dtype: bf16, fp8, tf32, …
    grouped: whether m lists, along its last axis, the rows of groups with weights of their own, as those of experts: each is rounded up to
    whole tiles, and the tiles of all run in common waves, so that an uneven split costs what its tiles cost.
    out_bytes: bytes of an element of C (default: the dtype's, 2 for fp8). accumulate: whether C is read as well (for a weight
    gradient that is added in fp32: out_bytes=4, accumulate=True). cast: for fp8 only, whether the activation is in 16 bits and
    must be cast. taps: how often each element of A stands in the multiplied matrix, as in a convolution, whose taps read one image:
    it is read from memory once. shared_bytes: what passes through the shared memory of all cores, where that may take longer than to
    multiply: `SHARED_PER_CLOCK` a core. split: whether the library has kernels that split k. clock: the clock that the device holds
    under load / that of the measured device, where its power limit is another. in_step: whether other work comes before and after, so
    that what power allows for long limits also a short multiplication, and each starts for itself (`STARTED_S`). The data gradient is
    gemm(m, k, n), the weight gradient gemm(k, n, m). book: coefficients in place of those that ship (`lumos.calibrate(…).book`). Raises
    UsageError for a negative size, no taps or a dtype that the device does not have, LumosError where the accelerator lacks a number.
    """
    if taps < 1:
        raise UsageError(f"gemm: taps must be one or more, not {taps}")
    rows = np.asarray(m, float)
    rows = rows if grouped else rows[..., None]
    others = {"n": n, "k": k, "batch": batch, "shared_bytes": shared_bytes}
    shape = np.broadcast_shapes(rows.shape[:-1], *map(np.shape, others.values()))
    sizes = (_sizes(name, x, shape) for name, x in others.items())
    work = work_of(accelerator, dtype, out_bytes, accumulate, cast, clock)._replace(taps=taps, split=split, in_step=in_step)
    return _estimate(_Shapes(_sizes("m", rows, (*shape, rows.shape[-1])), *sizes), accelerator, dtype, work, book)


class _Shapes(NamedTuple):
    """Sizes of multiplications: m[..., g] rows of each group g; n, k, batch and bytes through shared memory of one common shape."""

    m: Float64
    n: Float64
    k: Float64
    batch: Float64
    shared: Float64


def _sizes(name: str, values: ArrayLike, shape: tuple[int, ...]) -> Float64:
    array = np.asarray(values, float)
    if not np.all(array >= 0):
        raise UsageError(f"gemm: {name} must be zero or more, not {np.min(array):g}")
    return np.broadcast_to(array, shape)


class GemmWork(NamedTuple):
    """What the formula needs to know about the device, the dtype and the options."""

    peak_flops: float
    memory_bytes_per_s: float
    cores: int
    clock_hz: float
    in_bytes: int
    out_bytes: int
    accumulate: bool
    cast: bool
    clock: float
    taps: int = 1
    split: bool = True
    in_step: bool = False
    least_s_per_flop: float = 0.0  # what power allows for long, or the issue of instructions
    scalar: bool = False


def work_of(
    accelerator: Accelerator, dtype: str, out_bytes: int | None = None, accumulate: bool = False, cast: bool = True, clock: float = 1.0
) -> GemmWork:
    """The device's numbers for multiplications in `dtype`."""
    if not clock > 0:
        raise UsageError(f"gemm: clock is a fraction of the measured device's clock and must be above 0, not {clock:g}")
    name = dtype_of(dtype)
    in_bytes = name.bytes
    return GemmWork(
        accelerator.peak(name),
        accelerator.require("memory_bytes_per_s"),
        accelerator.require("cores"),
        accelerator.require("clock_hz"),
        in_bytes,
        max(in_bytes, 2) if out_bytes is None else out_bytes,
        accumulate,
        cast and name.quantised,
        clock,
    )


def _estimate(shapes: _Shapes, accelerator: Accelerator, dtype: str, work: GemmWork, book: Book | None) -> Estimate:
    name = dtype_of(dtype)
    fitted, notes = find("gemm", accelerator, (name, DType.FP8 if name.bytes == 1 else DType.BF16), book)
    coefficients = fitted.read_as(GemmCoefficients)
    if name in SCALAR:
        work = work._replace(scalar=True, least_s_per_flop=INSTRUCTIONS_PER_FLOP / (work.cores * ISSUED_PER_CLOCK * work.clock_hz))
    elif work.in_step:
        reached = min(1.0, coefficients.sustained * work.clock) * work.peak_flops  # or as the vendor states
        work = work._replace(least_s_per_flop=1 / (accelerator.achievable_flops.get(name, reached) * fitted.ratio))
    shape = shapes.n.shape
    size, groups = shapes.n.size, shapes.m.shape[-1]
    flat = _Shapes(shapes.m.reshape(size, groups), *(column.reshape(size) for column in shapes[1:]))
    seconds, roof, bound = np.empty(size), np.empty(size), np.empty(size, np.uint8)
    for i in range(0, size, CHUNK):
        part = slice(i, i + CHUNK)
        seconds[part], bound[part], roof[part] = _seconds(_Shapes(*(column[part] for column in flat)), work, coefficients)
    beyond = outside(fitted.seen, m=flat.m.sum(-1), n=flat.n, k=flat.k)
    return estimate(seconds.reshape(shape), roof.reshape(shape), bound.reshape(shape), beyond.reshape(shape), fitted, notes)


def gemm_seconds(m: Float64, n: Float64, k: Float64, work: GemmWork, coefficients: GemmCoefficients) -> Float64:
    """The formula without coefficients' lookup or interval, for fitting. m, n, k: (N,). Returns seconds (N,)."""
    return _seconds(_Shapes(m[:, None], n, k, np.ones(len(m)), np.zeros(len(m))), work, coefficients).seconds


def _tiles(s: _Shapes, tile: Tile) -> Float64:
    """Tiles of C, of all groups and of the whole batch together. Returns (N,)."""
    rows = np.ceil(s.m[:, 0] / tile.m) if s.m.shape[1] == 1 else np.ceil(s.m / tile.m).sum(1)
    return np.asarray(rows * np.ceil(s.n / tile.n) * s.batch)


def _seconds(s: _Shapes, w: GemmWork, c: GemmCoefficients) -> ModelledTime:
    """The time of each shape: m (N, groups), the rest (N,)."""
    groups = s.m.shape[1]
    rows = s.m[:, 0] if groups == 1 else s.m.sum(1)
    weights = groups if groups == 1 else (s.m > 0).sum(1)
    flops = 2.0 * s.batch * rows * s.n * s.k
    ideal = flops / w.peak_flops
    read, written = rows * s.k / w.taps + weights * s.n * s.k, rows * s.n * (2 if w.accumulate else 1)
    traffic = s.batch * (read * w.in_bytes + written * w.out_bytes)
    stream = traffic / w.memory_bytes_per_s
    memory2 = np.square(stream * (1 + c.memory_overhead))
    throttle = 0.0 if w.scalar else c.throttle
    slowdown = 1 + throttle * np.log1p(np.minimum(ideal, THROTTLE_END_S) / THROTTLE_START_S)
    per_element = 2.0 * w.cores / w.peak_flops * (1 + c.compute_overhead) * slowdown
    core_rate = c.cache_bytes_per_clock_core * w.clock_hz
    best = np.full(len(rows), np.inf)
    compute_part = np.zeros(len(rows))
    cache_part = np.zeros(len(rows))
    idle = _tiles(s, TILES[-1]) < w.cores if w.scalar else None
    for tile, overhead in zip(TILES, c.tile_overhead, strict=True):
        tiles = _tiles(s, tile)
        for split in tile.splits if w.split else (1,):
            waves = np.ceil(tiles * (split / w.cores))
            k_steps = waves * np.ceil(s.k / (split * K_STEP))
            compute = k_steps * (K_STEP * tile.m * tile.n * (1 + overhead)) * per_element
            compute += waves * ((1e-6 if split == 1 else 2e-6) * c.prologue_us)
            cache_seconds = k_steps * (K_STEP * (tile.m + tile.n) * w.in_bytes / core_rate)
            total = compute * compute
            if split == 1:
                total += memory2
            else:  # partial sums in fp32, written and read once more
                total += np.square(np.sqrt(memory2) + tiles * (tile.m * tile.n * 8.0 * split / (core_rate * w.cores)))
            total += cache_seconds * cache_seconds
            better = total < best
            if idle is not None and split > 1:
                better &= idle
            np.copyto(best, total, where=better)
            np.copyto(compute_part, compute, where=better)
            np.copyto(cache_part, cache_seconds, where=better)
    body = np.maximum(np.sqrt(best), flops * w.least_s_per_flop)
    body = np.maximum(body, s.shared / (w.cores * SHARED_PER_CLOCK * w.clock_hz))
    fixed = np.full(len(rows), c.launch_us * 1e-6 + (STARTED_S if w.in_step else 0.0))
    if w.cast:
        elements = s.batch * rows * s.k
        fixed += c.cast_us * 1e-6
        body = body + elements * (3 * (1 + c.cast_overhead) / w.memory_bytes_per_s)
        stream = stream + elements * (2 / w.memory_bytes_per_s)
    parts = np.stack([compute_part, np.sqrt(memory2), cache_part, fixed])
    bound = np.array(_PARTS, np.uint8)[parts.argmax(0)]
    work = flops > 0
    return ModelledTime(np.where(work, body + fixed, 0.0), bound, np.where(work, np.maximum(ideal, stream), 0.0))
