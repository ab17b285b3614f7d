"""Fitting a model's few coefficients to measured times, with errors on rows that the fit did not see.

Coefficients are positive and fitted as logarithms. Residuals are ln(modelled / measured), so that a row twice too slow weighs as
much as one twice too fast, under a soft-L1 loss, so that outliers have little influence. Each coefficient is pulled weakly
towards its prior, so that it keeps a physical value where the data do not determine it. Rows are held out by group (all rows of
an (n, k) pair, or of a size), in folds: every row is predicted once, by coefficients fitted without its group. A model's coefficients
are a named tuple of numbers and of tuples of numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from lumos.cost.coefficients import Coefficients, stored
from lumos.cost.estimate import Float64
from lumos.errors import LumosError

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Residual (on the logarithmic scale) from which the loss grows linearly.
LOSS_SCALE = 0.05
#: Weight of the pull towards the prior: a coefficient that is off by a factor of e costs as much as one row that is off by 15 %.
PRIOR_WEIGHT = 0.15
FOLDS = 3
#: The interval contains this share of the held-out rows.
INTERVAL_SHARE = 0.8

#: From positive parameters to the modelled seconds of some rows.
_Model = Callable[[Float64], Float64]
#: The coefficients of a model.
C = TypeVar("C", bound="tuple[float | tuple[float, ...], ...]")


class MeasuredRows(NamedTuple):
    """Measured times of one cluster and variant (a dtype, an attention kernel, a kind of collective).

    sizes: of every row, by name; seconds: of every row; formula: the seconds of such sizes by coefficients of the rows' model.
    """

    cluster: str
    variant: str
    sizes: Mapping[str, Float64]
    seconds: Float64
    formula: Callable[[Mapping[str, Float64], Any], Float64]

    def where(self, mask: NDArray[np.bool_]) -> MeasuredRows:
        """The rows of the mask."""
        return self._replace(sizes={name: column[mask] for name, column in self.sizes.items()}, seconds=self.seconds[mask])

    def modelled(self, coefficients: object) -> Float64:
        """Seconds of every row by the coefficients."""
        return self.formula(self.sizes, coefficients)


class Fitted(NamedTuple):
    """A fitted set, and each row's seconds as modelled while its group was held out (NaN where nothing was left to fit)."""

    coefficients: Coefficients
    modelled: Float64


def minimise(residuals: Callable[[Float64], Float64], start: Float64, steps: int = 40) -> Float64:
    """Parameters that minimise the soft-L1 loss of `residuals`, by Levenberg-Marquardt with a numerical Jacobian.

    residuals: from parameters (P,) to (N,); its last P entries may be the pull towards the prior. Deterministic.
    """
    point, damping = np.array(start, float), 1e-2
    current = residuals(point)
    for _ in range(steps):
        jacobian = _jacobian(residuals, point, current)
        weight = 1 / np.sqrt(1 + np.square(current / LOSS_SCALE))
        normal = jacobian.T @ (weight[:, None] * jacobian)
        gradient = jacobian.T @ (weight * current)
        before = _loss(current)
        while damping < 1e8:
            scale = damping * np.maximum(np.diag(normal), 1e-9)
            trial: Float64 = point - np.clip(np.linalg.solve(normal + np.diag(scale), gradient), -1, 1)
            trial_residuals = residuals(trial)
            if _loss(trial_residuals) < before:
                break
            damping *= 4
        else:
            return point
        point, current, damping = trial, trial_residuals, max(damping / 6, 1e-7)
        if before - _loss(current) < 1e-7 * before:
            return point
    return point


def _jacobian(residuals: Callable[[Float64], Float64], point: Float64, current: Float64, step: float = 1e-4) -> Float64:
    columns = []
    for i in range(len(point)):
        moved = point.copy()
        moved[i] += step
        columns.append((residuals(moved) - current) / step)
    return np.stack(columns, 1)


def _loss(residuals: Float64) -> float:
    return float(np.sum(np.sqrt(1 + np.square(residuals / LOSS_SCALE)) - 1))


def fit_positive(models: Sequence[_Model], measured: Sequence[Float64], prior: Float64) -> Float64:
    """Positive parameters shared by all `models`. measured: seconds of each model's rows. prior: where the fit starts and what
    it is pulled towards.

    Raises LumosError where there is nothing to fit or a measured time is not positive.
    """
    if not sum(map(len, measured)):
        raise LumosError("calibrate: no rows to fit; the table needs measured times of this kind")
    if any(np.any(~(t > 0)) for t in measured):
        raise LumosError("calibrate: a measured time is not positive; remove the row or correct it")
    logs = [np.log(t) for t in measured]
    origin = np.log(prior)

    def residuals(point: Float64) -> Float64:
        values = np.exp(np.clip(point, origin - 12, origin + 12))
        rows = [np.log(model(values)) - log for model, log in zip(models, logs, strict=True)]
        return np.concatenate([*rows, PRIOR_WEIGHT * (point - origin)])

    fitted: Float64 = np.exp(np.clip(minimise(residuals, origin), origin - 12, origin + 12))
    return fitted


def folds(groups: Sequence[Hashable], count: int = FOLDS) -> NDArray[np.int64]:
    """Fold of each row. Rows of one group share a fold; groups are distributed in a shuffled order, always the same."""
    names = sorted(set(groups), key=str)
    order = np.random.default_rng(0).permutation(len(names))
    fold = {names[j]: i % count for i, j in enumerate(order)}
    return np.array([fold[g] for g in groups], np.int64)


def fitted_to(rows: Sequence[MeasuredRows], prior: C) -> C:
    """Coefficients shared by all rows."""
    some = [r for r in rows if len(r.seconds)]
    models = [lambda values, r=r: r.modelled(_shaped(values, prior)) for r in some]
    start = np.concatenate([np.atleast_1d(value) for value in prior])
    return _shaped(fit_positive(models, [r.seconds for r in some], start), prior)


def _shaped(values: Float64, like: C) -> C:
    """The values, one after the other, as coefficients."""
    left = iter(values.tolist())
    return like._make(tuple(next(left) for _ in value) if isinstance(value, tuple) else next(left) for value in like)  # type: ignore[attr-defined, no-any-return]


def held_out(rows: Sequence[MeasuredRows], prior: C, groups: Sequence[Hashable], count: int = FOLDS) -> Float64:
    """Modelled seconds of every row, by coefficients fitted without the row's group; NaN where there is no other. groups: of all rows."""
    fold, borders = folds(groups, count), np.cumsum([len(r.seconds) for r in rows])[:-1]

    def split(mask: NDArray[np.bool_]) -> list[MeasuredRows]:
        return [r.where(part) for r, part in zip(rows, np.split(mask, borders), strict=True)]

    modelled = np.full(len(fold), np.nan)
    for i in range(int(fold.max()) + 1):
        if np.any(fold != i):
            others = fitted_to(split(fold != i), prior)
            modelled[fold == i] = np.concatenate([r.modelled(others) for r in split(fold == i)])
    return modelled


def summarise(coefficients: C, modelled: Float64, rows: Sequence[MeasuredRows], seen: Sequence[str]) -> Coefficients:
    """A fitted set with its errors, its interval and the range of the sizes named in `seen`. modelled: of each row while it was held out,
    NaN where it was not modelled."""
    measured, known = np.concatenate([r.seconds for r in rows]), np.isfinite(modelled)
    ratio = measured[known] / modelled[known]
    error = np.abs(modelled[known] / measured[known] - 1)
    tail = (1 - INTERVAL_SHARE) / 2
    low, high = np.quantile(ratio, [tail, 1 - tail]) if len(ratio) else (0.8, 1.25)
    columns = {name: all_sizes(rows, name) for name in seen}
    return Coefficients(
        stored(coefficients),
        (min(float(low), 1.0), max(float(high), 1.0)),
        {name: (float(np.min(column)), float(np.max(column))) for name, column in columns.items()},
        rows=len(measured),
        held_out_rows=int(known.sum()),
        median_error=float(np.median(error)) if len(error) else None,
        p90_error=float(np.quantile(error, 0.9)) if len(error) else None,
    )


def all_sizes(rows: Sequence[MeasuredRows], name: str) -> Float64:
    """One of the sizes, of all rows together."""
    return np.concatenate([r.sizes[name] for r in rows])
