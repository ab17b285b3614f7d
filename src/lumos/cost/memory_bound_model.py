"""Kernels bound by memory: normalisation, activation, residual, softmax, rotary, loss, optimizer, casts, accumulation.

    stream = ( cached bytes / (1 + speedup) + other bytes ) / bandwidth · (1 + overhead)
    issue  = instructions / (cores · instructions a clock · clock)
    fetch  = elements in turn / (cores · threads of a core) · latency of memory
    time   = launch + sqrt(stream² + issue² + fetch²)

Bytes are what the kernel must read and write. Up to `cache share · cache size` of them are still in the last-level cache from
the kernel before, and are read that much faster than from memory. A kernel that computes addresses or functions for each element may
be held back by how fast its cores issue instructions, and one whose threads fetch an element only when they are done with the one
before, by the latency of memory. Both are 0 where nothing is stated. As in multiplications, the parts overlap, but not fully.

The work of a kernel is stated per element (`WORK`): the tensors that it reads and writes in the dtype of the activations, and the bytes
of other dtypes. `fused` joins neighbouring kernels as Apex, Transformer Engine and torch.compile do: what one kernel writes only for the
next to read never leaves the chip.

Where a class of kernels was not fitted on an accelerator, its launch takes as much longer or shorter than on all accelerators together
as that of a contiguous pass does: how fast a device starts and ends a kernel does not depend on what the kernel computes.

Sources of the counts: the kernels' own algorithms (Korthikanti et al., Reducing Activation Recomputation, 2022, table of
activations; PyTorch ATen kernels). Limits: contiguous tensors; reductions in one pass; no contention with other streams.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.cost.cluster import Accelerator, dtype_of
from lumos.cost.coefficients import GENERIC, Book, estimate, find, outside, shipped_coefficients
from lumos.cost.estimate import Bound, Estimate, Float64, ModelledTime
from lumos.errors import UsageError
from lumos.vocabulary import DType

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike


#: Instructions of single threads that a core issues in a clock: four schedulers, each one instruction of 32 threads (NVIDIA, whitepapers of
#: the architectures of Tesla V100, A100 and H100, the streaming multiprocessor).
ISSUED_PER_CLOCK = 128
#: Threads that a core holds (the same whitepapers), and clocks until a value from memory arrives at one of them where nothing else is
#: fetched: 466 on A100, 479 on H100 (Luo et al., Benchmarking and Dissecting the Nvidia Hopper GPU Architecture, arXiv:2402.13499).
THREADS_OF_CORE = 2048
LATENCY_CLOCKS = 479


class MemoryCoefficients(NamedTuple):
    """The fitted numbers: least time of a kernel (µs), overhead over the datasheet's bandwidth (a fraction), speed of the cache
    over that of memory, and usable share of the cache."""

    launch_us: float
    overhead: float
    cache_speedup: float
    cache_share: float


MEMORY_PRIOR = MemoryCoefficients(2.0, 0.15, 2.5, 0.5)


class ElementwiseWork(NamedTuple):
    """Traffic per element: tensors of the activations' dtype read and written, and bytes of other dtypes."""

    reads: float
    writes: float
    other_bytes: float = 0.0


#: Classes with coefficients of their own: one pass over contiguous tensors; one with broadcast or permuted operands; one that
#: reduces many elements to few; one that reduces and then passes over the tensor again.
POINTWISE, STRIDED, REDUCTION, NORMALISATION = TRAFFIC_CLASSES = ("pointwise", "strided", "reduction", "normalisation")
_CLASS_OF = {
    **dict.fromkeys(("transpose", "rotary", "rotary_backward", "embedding", "embedding_backward", "bias"), STRIDED),
    **dict.fromkeys(("gradient_norm", "cross_entropy"), REDUCTION),
    **dict.fromkeys(
        ("layer_norm", "layer_norm_backward", "rms_norm", "rms_norm_backward", "softmax", "softmax_backward", "masked_softmax"),
        NORMALISATION,
    ),
}

#: Traffic per element of each kind of kernel.
WORK = {
    "copy": ElementwiseWork(1, 1),
    "transpose": ElementwiseWork(1, 1),
    "cast_to_fp32": ElementwiseWork(1, 0, 4),
    "cast_from_fp32": ElementwiseWork(0, 1, 4),
    "cast_to_fp8": ElementwiseWork(1, 0, 1),
    "fill": ElementwiseWork(0, 1),
    "residual": ElementwiseWork(2, 1),
    "bias": ElementwiseWork(1, 1),
    "activation": ElementwiseWork(1, 1),
    "activation_backward": ElementwiseWork(2, 1),
    "gated_activation": ElementwiseWork(2, 1),  # per element of the product: gate and up read
    "gated_activation_backward": ElementwiseWork(3, 2),
    "layer_norm": ElementwiseWork(1, 1),
    "layer_norm_backward": ElementwiseWork(4, 1),  # input gradient, then the weights' gradients from the same two tensors
    "rms_norm": ElementwiseWork(1, 1),
    "rms_norm_backward": ElementwiseWork(4, 1),
    "dropout": ElementwiseWork(1, 1, 1),
    "dropout_backward": ElementwiseWork(1, 1, 1),
    "softmax": ElementwiseWork(1, 1),
    "softmax_backward": ElementwiseWork(2, 1),
    "masked_softmax": ElementwiseWork(1, 1, 1),
    "rotary": ElementwiseWork(1, 1),
    "rotary_backward": ElementwiseWork(1, 1),
    "cross_entropy": ElementwiseWork(2, 0),  # per logit: maximum, then the sum of exponentials
    "cross_entropy_backward": ElementwiseWork(1, 1),
    "embedding": ElementwiseWork(1, 1),
    "embedding_backward": ElementwiseWork(2, 1),
    "gradient_accumulation": ElementwiseWork(1, 0, 8),  # into fp32: read and write
    "gradient_norm": ElementwiseWork(0, 0, 4),
    "sgd": ElementwiseWork(0, 0, 12),
    "adam": ElementwiseWork(0, 1, 28),  # fp32 master, two moments read and written, fp32 gradient read; new parameter written
}


def memory_bound(
    kind: str,
    elements: ArrayLike,
    accelerator: Accelerator,
    dtype: str = DType.BF16,
    *,
    book: Book | None = None,
) -> Estimate:
    """Time of one kernel of `kind` over `elements` elements. Raises UsageError for an unknown kind (they are listed),
    dtype or negative size, LumosError where the accelerator lacks a number."""
    traffic = np.asarray(elements, float) * bytes_per_element(kind, dtype)
    return moved(traffic, accelerator, _CLASS_OF.get(kind, POINTWISE), book=book)


def fused(
    kinds: Sequence[str], elements: ArrayLike, accelerator: Accelerator, dtype: str = DType.BF16, *, book: Book | None = None
) -> Estimate:
    """Time of neighbouring kernels over the same elements joined into one kernel, which does not write what one part of it passes
    to the next."""
    if not kinds:
        raise UsageError("fused: no kinds given")
    size = dtype_of(dtype).bytes
    traffic = sum(bytes_per_element(kind, dtype) for kind in kinds) - 2 * size * (len(kinds) - 1)
    classes = {_CLASS_OF.get(kind, POINTWISE) for kind in kinds}
    slowest = next(name for name in (NORMALISATION, REDUCTION, STRIDED, POINTWISE) if name in classes)
    return moved(np.asarray(elements, float) * traffic, accelerator, slowest, book=book)


def bytes_per_element(kind: str, dtype: str) -> float:
    """Bytes read and written per element."""
    if kind not in WORK:
        raise UsageError(f"memory-bound kernel {kind!r} is not known; valid: {', '.join(WORK)}")
    work = WORK[kind]
    return (work.reads + work.writes) * dtype_of(dtype).bytes + work.other_bytes


def moved(
    traffic: ArrayLike,
    accelerator: Accelerator,
    kernel_class: str = POINTWISE,
    *,
    instructions: ArrayLike = 0.0,
    in_turn: ArrayLike = 0.0,
    book: Book | None = None,
) -> Estimate:
    """Time of a kernel that reads and writes `traffic` bytes in total. kernel_class: one of `TRAFFIC_CLASSES`. instructions: what all its
    threads issue together. in_turn: elements that threads fetch one after the other. Raises UsageError for a negative size, LumosError
    where the accelerator lacks a number."""
    traffic, instructions, in_turn = (np.asarray(each, float) for each in (traffic, instructions, in_turn))
    if not all(np.all(each >= 0) for each in (traffic, instructions, in_turn)):
        raise UsageError("memory-bound kernel: sizes must be zero or more")
    fitted, notes = find("memory_bound", accelerator, (kernel_class,), book)
    c = MemoryCoefficients(**fitted.values)  # type: ignore[arg-type]
    if any(note.code == "generic-coefficients" for note in notes):
        c = c._replace(launch_us=c.launch_us * _launch_ratio(accelerator, book))
    seconds, bound, roof = moved_seconds(traffic, accelerator, c, _held_back(instructions, in_turn, accelerator))
    return estimate(seconds, roof, bound, outside(fitted.seen, bytes=traffic), fitted, notes)


def _launch_ratio(accelerator: Accelerator, book: Book | None) -> float:
    """The launch of a contiguous pass on an accelerator / on all together; 1 where it was not fitted on both."""
    together = (shipped_coefficients() if book is None else book).get("memory_bound", {}).get(GENERIC, {}).get(POINTWISE)
    if together is None:
        return 1.0
    own, _ = find("memory_bound", accelerator, (POINTWISE,), book)
    return MemoryCoefficients(**own.values).launch_us / MemoryCoefficients(**together.values).launch_us  # type: ignore[arg-type]


def _held_back(instructions: Float64, in_turn: Float64, accelerator: Accelerator) -> Float64:
    """Seconds by which issue and fetch, of the formula above, hold a kernel back."""
    if not (np.any(instructions) or np.any(in_turn)):
        return np.zeros(())
    clocks = np.hypot(instructions / ISSUED_PER_CLOCK, in_turn * (LATENCY_CLOCKS / THREADS_OF_CORE))
    return np.asarray(clocks / (accelerator.require("cores") * accelerator.require("clock_hz")))


def moved_seconds(traffic: Float64, accelerator: Accelerator, c: MemoryCoefficients, held_back: Float64 | float = 0.0) -> ModelledTime:
    """The time of traffic in bytes, by the formula above. held_back: seconds of issue and fetch together. The roofline counts the cache."""
    bandwidth = accelerator.require("memory_bytes_per_s")
    cached = np.minimum(traffic, c.cache_share * accelerator.require("cache_bytes"))
    roof = (cached / (1 + c.cache_speedup) + traffic - cached) / bandwidth
    stream = roof * (1 + c.overhead)
    launch = c.launch_us * 1e-6
    some = traffic > 0
    body = np.hypot(stream, held_back)
    slowest = np.where(held_back > stream, Bound.COMPUTE, np.where(cached < traffic, Bound.MEMORY, Bound.CACHE))
    bound = np.where(body > launch, slowest, Bound.LATENCY)
    return ModelledTime(np.where(some, launch + body, 0.0), bound, np.where(some, np.maximum(roof, held_back), 0.0))
