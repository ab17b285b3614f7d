"""What a kernel takes on a pretended accelerator of this folder's own: no function or constant of Lumos' cost models is used.

A multiplication is cut into tiles, which run in waves over the processors; the library picks the tiles that it believes to be fastest.
Attention is cut into blocks of queries. Everything else moves bytes. Each kernel's time is then multiplied by a factor of its name and
one of its name and shape, drawn once and for all from the seed: no formula knows them, so how a kernel's time changes with its shape can
only be known roughly, as on a real device. Sizes are those of an A100 with 40 GB (NVIDIA's data sheet); efficiencies are invented.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from math import ceil, exp

SEED = 20
PROCESSORS = 108
#: FLOPs a second by type of the operands; bytes a second of memory, and of the cache, which holds CACHE bytes, and at most the share
#: HELD of what a kernel reads and writes.
PEAK = {"float": 19.5e12, "tf32": 156e12, "c10::BFloat16": 312e12, "c10::Half": 312e12}
MEMORY, CACHED, CACHE, HELD = 1.32e12, 3.6e12, 30e6, 0.6
#: Spread of the factors, as standard deviations of logarithms: of a name, of a name and shape, of one launch.
BY_NAME, BY_SHAPE, BY_LAUNCH = 0.06, 0.02, 0.008
#: Shapes of tiles and what each reaches of the peak.
TILES = ((256, 128, 0.90), (128, 256, 0.89), (128, 128, 0.84), (128, 64, 0.72), (64, 128, 0.71), (64, 64, 0.58), (64, 32, 0.40))
SPLITS = (1, 2, 4, 8)


class Kind(StrEnum):
    """How a kernel's work is priced."""

    MULTIPLY = "multiply"
    ATTENTION = "attention"
    MOVE = "move"


@dataclass(frozen=True)
class Work:
    """What a kernel does. shape: batch, m, n, k of a multiplication; batch · heads, queries, keys, head size of attention; () else.

    name: of the kernel; of a multiplication what precedes and follows the tile. times: how often the attention's multiplications are done
    (2 forward, 5 backward, half of that where it is causal). bytes: read and written.
    """

    kind: Kind
    name: str
    dtype: str
    bytes: float
    shape: tuple[int, ...] = ()
    times: float = 1.0

    @property
    def amount(self) -> float:
        """FLOPs of a multiplication and of attention, bytes of everything else."""
        if self.kind is Kind.MOVE:
            return self.bytes
        batch, m, n, k = self.shape
        return 2.0 * batch * m * n * k * self.times


@dataclass(frozen=True)
class Priced:
    """A kernel: its name, its time in µs, its grid."""

    name: str
    us: float
    grid: int


@cache
def factor(key: str, spread: float) -> float:
    """The factor of a name, or of whatever the key says; its logarithm is normal with that spread."""
    return exp(random.Random(f"{SEED}:{key}").gauss(0, spread))


def price(work: Work) -> Priced:
    """What the kernel takes."""
    match work.kind:
        case Kind.MULTIPLY:
            plain = _multiplication(work)
        case Kind.ATTENTION:
            plain = _attention(work)
        case Kind.MOVE:
            blocks = ceil(work.bytes / 4096)
            cached = HELD * min(1.0, CACHE / max(work.bytes, 1.0))
            seconds = 1.4e-6 + work.bytes * ((1 - cached) / MEMORY + cached / CACHED) * _rounded(blocks / (PROCESSORS * 8))
            plain = Priced(work.name, seconds * 1e6, blocks)
    shape = f"{plain.name}:{work.shape}:{work.bytes:g}"
    return Priced(plain.name, plain.us * factor(plain.name, BY_NAME) * factor(shape, BY_SHAPE), plain.grid)


def _rounded(waves: float) -> float:
    """How much longer whole waves take than the waves."""
    return ceil(waves) / waves if waves else 1.0


def _multiplication(work: Work) -> Priced:
    batch, m, n, k = work.shape
    prefix, _, suffix = work.name.partition("{}")
    aligned = work.dtype == "float" or not (m % 8 or n % 8 or k % 8)
    best: tuple[float, str, int] | None = None
    for tile_m, tile_n, reached in TILES:
        for split in SPLITS:
            if split > 1 and k // split < 512:
                continue
            blocks = batch * ceil(m / tile_m) * ceil(n / tile_n) * split
            tile = 2.0 * tile_m * tile_n * 32 * ceil(k / split / 32)
            seconds = ceil(blocks / PROCESSORS) * tile / (PEAK[work.dtype] / PROCESSORS * reached * (1.0 if aligned else 0.45))
            seconds = 2.2e-6 + max(seconds, work.bytes / MEMORY) + (4.0 * batch * m * n * (split + 1) / MEMORY if split > 1 else 0)
            name = f"{prefix}{tile_m}x{tile_n}{suffix}{'_splitK' if split > 1 else ''}{'' if aligned else '_align1'}"
            if best is None or seconds < best[0]:
                best = (seconds, name, blocks)
    assert best is not None
    return Priced(best[1], best[0] * 1e6, best[2])


def _attention(work: Work) -> Priced:
    heads, queries, keys, size = work.shape
    blocks = heads * ceil(queries / 128)
    one = 2.0 * 128 * 64 * ceil(keys / 64) * 32 * ceil(size / 32) * work.times
    seconds = 3e-6 + ceil(blocks / PROCESSORS) * one / (PEAK[work.dtype] / PROCESSORS * 0.55)
    return Priced(work.name, max(seconds, work.bytes / MEMORY) * 1e6, blocks)
