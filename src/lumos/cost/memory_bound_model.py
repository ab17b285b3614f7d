"""Kernels bound by memory: normalisation, activation, residual, softmax, rotary, loss, optimizer, casts, accumulation.

    stream = ( cached bytes / (1 + speedup) + other bytes ) / bandwidth · (1 + overhead)
    issue  = instructions / (cores · instructions a clock · clock)
    fetch  = elements in turn / (cores · threads of a core) · latency of memory
    time   = launch + sqrt(stream² + issue² + fetch²)

Bytes are what the kernel must read and write. Up to `cache share · cache size` of them are still in the last-level cache from
the kernel before, and are read that much faster than from memory. A kernel that computes addresses or functions for each element may
be held back by how fast its cores issue instructions, and one whose threads fetch an element only when they are done with the one
before, by the latency of memory. Both are 0 where nothing is stated. As in multiplications, the parts overlap, but not fully.

Where a class of kernels was not fitted on an accelerator, its launch takes as much longer or shorter than on all accelerators together
as that of a contiguous pass does: how fast a device starts and ends a kernel does not depend on what the kernel computes.

Limits: contiguous tensors; reductions in one pass; no contention with other streams.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.cost.coefficients import GENERIC, Book, estimate, find, outside, shipped_coefficients
from lumos.cost.estimate import Bound, Estimate, Float64, ModelledTime
from lumos.errors import UsageError

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from lumos.cost.cluster import Accelerator

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


#: Classes with coefficients of their own: one pass over contiguous tensors; one with broadcast or permuted operands; one that
#: reduces many elements to few; one that reduces and then passes over the tensor again.
POINTWISE, STRIDED, REDUCTION, NORMALISATION = TRAFFIC_CLASSES = ("pointwise", "strided", "reduction", "normalisation")


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
    traffic, instructions, in_turn = (np.asarray(amount, float) for amount in (traffic, instructions, in_turn))
    if not all(np.all(amount >= 0) for amount in (traffic, instructions, in_turn)):
        raise UsageError("memory-bound kernel: sizes must be zero or more")
    fitted, notes = find("memory_bound", accelerator, (kernel_class,), book)
    c = fitted.read_as(MemoryCoefficients)
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
    return own.read_as(MemoryCoefficients).launch_us / together.read_as(MemoryCoefficients).launch_us


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
