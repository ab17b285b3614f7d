"""Fit of the GEMM model: per accelerator and dtype, and over all accelerators together."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.cost.fitting.fit import fit_positive, held_out, input_ranges, summarise
from lumos.cost.gemm_model import GEMM_PRIOR, TILES, GemmCoefficients, gemm_seconds, work_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from lumos.cost.cluster import Accelerator
    from lumos.cost.coefficients import Coefficients
    from lumos.cost.estimate import Float64
    from lumos.vocabulary import DType

_SCALARS = tuple(name for name in GemmCoefficients._fields if name not in ("tile_overhead", "sustained"))
#: Multiplications of at least this many seconds at the datasheet's rate show what power allows for long, if there are so many.
LONG_S, LONG_ROWS = 0.03, 3


class GemmRows(NamedTuple):
    """Measured multiplications of one accelerator and dtype. Arrays of one length."""

    accelerator: Accelerator
    dtype: DType
    m: Float64
    n: Float64
    k: Float64
    seconds: Float64

    def where(self, mask: NDArray[np.bool_]) -> GemmRows:
        """The rows of the mask."""
        return self._replace(m=self.m[mask], n=self.n[mask], k=self.k[mask], seconds=self.seconds[mask])


def fit_gemm(rows: GemmRows) -> tuple[Coefficients, Float64]:
    """Coefficients fitted on all rows, and each row's seconds as modelled while its (n, k) pair was held out."""
    pairs = list(zip(rows.n.tolist(), rows.k.tolist(), strict=True))
    modelled = held_out(lambda mask: lambda other: _predict(_fit([rows.where(mask)]), rows.where(other)), rows.seconds, pairs)
    values = _stored(_fit([rows])._replace(sustained=sustained([rows])))
    return summarise(values, modelled, rows.seconds, input_ranges(m=rows.m, n=rows.n, k=rows.k)), modelled


def fit_generic(tables: Sequence[GemmRows], most: int = 800) -> tuple[Coefficients, Mapping[str, Float64]]:
    """Coefficients over all accelerators (from at most about `most` evenly spread rows of each), and each accelerator's seconds by
    coefficients fitted without it."""
    thinned = [t.where(np.arange(len(t.m)) % max(1, len(t.m) // most) == 0) for t in tables]
    modelled = {}
    for table in tables:
        others = [t for t in thinned if t.accelerator.name != table.accelerator.name]
        modelled[table.accelerator.name] = _predict(_fit(others), table) if others else np.full(len(table.m), np.nan)
    measured = np.concatenate([t.seconds for t in tables])
    seen = input_ranges(**{key: np.concatenate([getattr(t, key) for t in tables]) for key in "mnk"})
    values = _stored(_fit(thinned)._replace(sustained=sustained(tables)))
    return summarise(values, np.concatenate([modelled[t.accelerator.name] for t in tables]), measured, seen), modelled


def sustained(tables: Sequence[GemmRows]) -> float:
    """Share of the peak that long multiplications reach: the median over accelerators of each one's median; 1 (no limit is known) where
    no accelerator has enough of them."""
    shares = []
    for t in tables:
        ideal = 2 * t.m * t.n * t.k / t.accelerator.peak(t.dtype)
        if (ideal >= LONG_S).sum() >= LONG_ROWS:
            shares.append(float(np.median((ideal / t.seconds)[ideal >= LONG_S])))
    return min(1.0, float(np.median(shares))) if shares else 1.0


def _fit(tables: Sequence[GemmRows]) -> GemmCoefficients:
    prior = np.array([*(getattr(GEMM_PRIOR, name) for name in _SCALARS), *GEMM_PRIOR.tile_overhead])
    models = [lambda values, t=t: _predict(_unpacked(values), t) for t in tables]
    return _unpacked(fit_positive(models, [t.seconds for t in tables], prior))


def _predict(coefficients: GemmCoefficients, t: GemmRows) -> Float64:
    return gemm_seconds(t.m, t.n, t.k, work_of(t.accelerator, t.dtype), coefficients)


def _unpacked(values: Float64) -> GemmCoefficients:
    scalars = dict(zip(_SCALARS, map(float, values), strict=False))
    return GemmCoefficients(**scalars, tile_overhead=tuple(map(float, values[-len(TILES) :])))


def _stored(c: GemmCoefficients) -> dict[str, float | list[float]]:
    return {key: list(v) if isinstance(v, tuple) else v for key, v in c._asdict().items()}
