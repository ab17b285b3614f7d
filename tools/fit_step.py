"""Fit the global coefficients of a step to published runs.

Every source has the same weight, whatever its number of rows. Within a source the mean absolute logarithmic error is minimised
(by iteratively reweighted least squares), so that single outliers have little influence. Every coefficient is pulled towards
its prior (`STRENGTH`). The logarithm of the step's time is linearised in the coefficients by finite differences, `_ROUNDS` times.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
import numpy as np
from numpy.typing import NDArray

from lumos.errors import LumosError
from lumos.prediction.arrange import arrange
from lumos.prediction.assemble import assemble
from lumos.prediction.step_time import time_of
from lumos.prediction.validate import Pricers, PublishedRun, job_of, published_step

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lumos.blocks.price import StepCoefficients
    from lumos.plan.job import PlannedJob
    from lumos.prediction.layout import Layout

_Float64 = NDArray[np.float64]

#: The coefficients that are fitted: standard deviation of the prior, lower and upper bound. What a launch costs is not among
#: them: it belongs to a framework's profile and to its host, and only one source of the tables is bound by it, which would set it for all.
FITTED_COEFFICIENTS = {
    "gemm": (0.05, 0.8, 1.3),
    "attention": (0.08, 0.7, 1.4),
    "traffic": (0.15, 0.7, 1.8),
    "collective": (0.2, 0.8, 2.0),
    "contention": (0.2, 0.0, 1.0),
    "step": (0.5, 0.2, 4.0),
}
#: Rows with a smaller error than this have the same weight as rows with this error.
NEAR = 0.02
#: Step of the finite differences.
DELTA = 0.02
_ROUNDS = 2


@dataclass(slots=True)
class FitProblem:
    """Rows to fit: their jobs, layouts (which do not depend on the coefficients), measured seconds and sources."""

    jobs: list[PlannedJob]
    layouts: list[Layout]
    measured: _Float64
    sources: list[str]


def problem(rows: Sequence[PublishedRun]) -> FitProblem:
    """The rows that can be read, with their layouts."""
    jobs, layouts, measured, sources = [], [], [], []
    for row in rows:
        try:
            seconds, job = published_step(row), job_of(row)
        except LumosError:
            continue
        jobs.append(job)
        layouts.append(arrange(job.model, job.plan, job.framework, job.cluster.node.devices))
        measured.append(seconds)
        sources.append(row.get("source", ""))
    return FitProblem(jobs, layouts, np.array(measured), sources)


def predicted(p: FitProblem, coefficients: StepCoefficients) -> _Float64:
    """Predicted seconds of every row."""
    pricers = Pricers(coefficients)
    pairs = zip(p.jobs, p.layouts, strict=True)
    return np.array([time_of(assemble(lay, pricers.of(job.cluster), True), job, coefficients).time_s for job, lay in pairs])


@dataclass(frozen=True, slots=True, eq=False)
class Linear:
    """The logarithm of every row's seconds near the coefficients `at`: value [rows], slope [rows, coefficients]."""

    at: _Float64
    value: _Float64
    slope: _Float64


def linearise(p: FitProblem, coefficients: StepCoefficients) -> Linear:
    at = np.array([getattr(coefficients, key) for key in FITTED_COEFFICIENTS])
    base = np.log(predicted(p, coefficients))
    columns = []
    for key, value in zip(FITTED_COEFFICIENTS, at, strict=True):
        moved = msgspec.structs.replace(coefficients, **{key: float(value + DELTA)})
        columns.append((np.log(predicted(p, moved)) - base) / DELTA)
    return Linear(at, base, np.stack(columns, axis=1))


def solve(linear: Linear, p: FitProblem, use: NDArray[np.bool_], prior: StepCoefficients) -> _Float64:
    """The coefficients that fit the rows of the mask `use` best, in the order of `FITTED_COEFFICIENTS`."""
    names = list(FITTED_COEFFICIENTS)
    centre = np.array([getattr(prior, key) for key in names])
    sigma, low, high = (np.array([FITTED_COEFFICIENTS[key][i] for key in names]) for i in range(3))
    residual0 = linear.value - np.log(p.measured)
    counts = {s: sum(1 for t, u in zip(p.sources, use, strict=True) if u and t == s) for s in set(p.sources)}
    share = np.array([1.0 / counts[s] if u else 0.0 for s, u in zip(p.sources, use, strict=True)])
    x = linear.at.copy()
    for _ in range(30):
        residual = residual0 + linear.slope @ (x - linear.at)
        weight = share / np.maximum(np.abs(residual), NEAR) / NEAR  # makes the weighted square |error| / NEAR
        a = linear.slope.T @ (weight[:, None] * linear.slope) + np.diag(1 / sigma**2) * STRENGTH
        b = linear.slope.T @ (weight * (linear.slope @ linear.at - residual0)) + STRENGTH * centre / sigma**2
        x = np.clip(np.linalg.solve(a, b), low, high)
    return x


#: Weight of the priors: the fit minimises Σ over sources of mean |error| / NEAR, plus STRENGTH / 2 · Σ ((x − prior) / σ)².
STRENGTH = 0.2


def fit(
    p: FitProblem, prior: StepCoefficients, leave_out: str | None = None, start: Linear | None = None, rounds: int = _ROUNDS
) -> StepCoefficients:
    """The coefficients fitted to all rows, or to those of other sources than `leave_out`.

    start: the linearisation for the first round (default: at the prior).
    """
    use = np.array([s != leave_out for s in p.sources])
    current = prior
    for turn in range(rounds):
        linear = start if turn == 0 and start is not None else linearise(p, current)
        x = solve(linear, p, use, prior)
        current = msgspec.structs.replace(prior, **{key: round(float(v), 4) for key, v in zip(FITTED_COEFFICIENTS, x, strict=True)})
    return current
