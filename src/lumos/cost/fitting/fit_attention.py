"""Fit of the attention model: per accelerator and kernel, and per kernel over all accelerators."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.cost.attention_model import ATTENTION_PRIOR, AttentionCoefficients, AttentionShape, attention_seconds
from lumos.cost.fitting.fit import fit_positive, held_out, input_ranges, summarise

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from lumos.cost.cluster import Accelerator
    from lumos.cost.coefficients import Coefficients
    from lumos.cost.estimate import Float64
    from lumos.vocabulary import Direction, DType


class AttentionRows(NamedTuple):
    """Measured attention of one accelerator, kernel, dtype, directions and mask. Sizes and seconds are arrays of one length."""

    accelerator: Accelerator
    dtype: DType
    directions: tuple[Direction, ...]
    causal: bool
    shape: AttentionShape
    seconds: Float64

    def where(self, mask: NDArray[np.bool_]) -> AttentionRows:
        """The rows of the mask."""
        return self._replace(shape=AttentionShape(*(x[mask] for x in self.shape)), seconds=self.seconds[mask])


def fit_attention(tables: Sequence[AttentionRows]) -> tuple[Coefficients, Float64]:
    """Coefficients shared by the tables, and each row's seconds as modelled while its (heads, kv_heads, head_dim) was
    held out."""
    measured = np.concatenate([t.seconds for t in tables])
    merged = AttentionShape(*(np.concatenate(x) for x in zip(*(t.shape for t in tables), strict=True)))
    groups = list(zip(merged.heads.tolist(), merged.kv_heads.tolist(), merged.head_dim.tolist(), strict=True))
    borders = np.cumsum([len(t.seconds) for t in tables])[:-1]

    def split(mask: NDArray[np.bool_]) -> list[AttentionRows]:
        return [t.where(part) for t, part in zip(tables, np.split(mask, borders), strict=True)]

    if len(set(groups)) > 2:
        modelled = held_out(lambda mask: lambda other: _predict(_fit(split(mask)), split(other)), measured, groups)
    else:  # too few sizes of heads to hold any out: hold out sequence lengths
        modelled = held_out(lambda mask: lambda other: _predict(_fit(split(mask)), split(other)), measured, merged.keys.tolist())
    seen = input_ranges(batch=merged.batch, seq_len=merged.keys, heads=merged.heads, head_dim=merged.head_dim)
    values: dict[str, float | list[float]] = dict(_fit(tables)._asdict())
    return summarise(values, modelled, measured, seen), modelled


def _fit(tables: Sequence[AttentionRows]) -> AttentionCoefficients:
    some = [t for t in tables if len(t.seconds)]
    models = [lambda values, t=t: _seconds(t, AttentionCoefficients(*map(float, values))) for t in some]
    return AttentionCoefficients(*map(float, fit_positive(models, [t.seconds for t in some], np.array(ATTENTION_PRIOR))))


def _seconds(t: AttentionRows, c: AttentionCoefficients) -> Float64:
    return attention_seconds(t.shape, t.causal, t.directions, t.accelerator, t.dtype, c).seconds


def _predict(c: AttentionCoefficients, tables: Sequence[AttentionRows]) -> Float64:
    return np.concatenate([_seconds(t, c) for t in tables])
