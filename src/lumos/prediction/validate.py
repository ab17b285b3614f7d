"""`lumos.validate`: predict every row of tables of published runs, and compare the predictions with the measured steps.

    lumos.validate("runs.csv")
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from lumos.blocks.memory import peak_memory
from lumos.blocks.price import Pricer
from lumos.errors import LumosError
from lumos.measured_table import read_rows, table_number
from lumos.prediction.predict import predict_job
from lumos.prediction.published import PublishedRun, job_of, published_step
from lumos.prediction.unknowns import open_step_time
from lumos.result import Shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from lumos.blocks.coefficients import StepCoefficients
    from lumos.cost.cluster import Cluster
    from lumos.plan.job import PlannedJob
    from lumos.prediction.step_time import PredictedStep
    from lumos.prediction.unknowns import Open

REQUIRED = ("id", "source", "gpu", "n_gpus", "seq_len", "global_batch")
#: A group of rows that differ only in the plan is ranked if it has at least this many.
RANKED = 5


@dataclass(frozen=True, slots=True)
class Scored:
    """One row with its measured and its predicted step. skipped: why it has no prediction, if it has none."""

    id: str
    source: str
    row: PublishedRun
    measured_s: float = 0.0
    predicted: PredictedStep | None = None
    job: PlannedJob | None = None
    measured_peak_bytes: int | None = None
    peak_bytes: int | None = None
    skipped: str | None = None
    unknowns: tuple[Open, ...] = ()

    @property
    def error(self) -> float:
        """(predicted − measured) / measured."""
        assert self.predicted is not None
        return self.predicted.time_s / self.measured_s - 1


def read_tables(paths: Sequence[str]) -> Iterator[PublishedRun]:
    """The rows of the tables. Raises LumosError if a file is not a table or lacks a required column."""
    for path in paths:
        columns, rows = read_rows(path)
        missing = [key for key in REQUIRED if key not in columns]
        if missing:
            raise LumosError(f"{path}: line 1: no column {', '.join(missing)}; a table of runs needs {', '.join(REQUIRED)}")
        yield from rows


class Pricers:
    """One pricer for each cluster that the rows name."""

    def __init__(self, coefficients: StepCoefficients | None = None) -> None:
        self._coefficients = coefficients
        self._known: dict[bytes, Pricer] = {}

    def of(self, cluster: Cluster) -> Pricer:
        key = msgspec.json.encode(cluster)
        if key not in self._known:
            self._known[key] = Pricer(cluster, self._coefficients)
        return self._known[key]


def score(
    rows: Iterable[PublishedRun],
    coefficients: StepCoefficients | None = None,
    progress: Callable[[int, int], None] | None = None,
    unprofiled_frameworks: bool = False,
) -> list[Scored]:
    """Predict every row; rows that cannot be read are skipped, with the reason. progress: called with (rows done, all rows).
    unprofiled_frameworks: predict as if no framework had a profile."""
    rows = list(rows)
    pricers = Pricers(coefficients)
    out = []
    for i, row in enumerate(rows):
        out.append(_score(row, pricers, unprofiled_frameworks))
        if progress is not None:
            progress(i + 1, len(rows))
    return out


def _score(row: PublishedRun, pricers: Pricers, unprofiled_framework: bool) -> Scored:
    name, source = row.get("id", "?"), row.get("source", "?")
    try:
        measured = published_step(row)
        job = job_of(row, unprofiled_framework)
        predicted, unknowns = open_step_time(job, pricers.of(job.cluster))
        peak = row.get("peak_memory_bytes", "").strip()
        measured_peak = int(table_number(peak, "peak_memory_bytes")) if peak else None
        memory = peak_memory(job).peak_bytes if measured_peak else None
    except LumosError as error:
        return Scored(name, source, row, skipped=str(error))
    return Scored(name, source, row, measured, predicted, job, measured_peak, memory, unknowns=tuple(unknowns))


def explained(scored: Sequence[Scored], count: int) -> list[tuple[Scored, dict[str, float]]]:
    """The `count` rows with the largest errors, each with its predicted critical path by kind of work (shares)."""
    good = [s for s in scored if s.job is not None and s.predicted is not None]
    worst = sorted(good, key=lambda s: -abs(s.error))[:count]
    return [(s, predict_job(s.job, coarse=True).critical_path) for s in worst if s.job is not None]


def summary(scored: Sequence[Scored]) -> dict[str, Any]:
    """The keys of `lumos validate --json`, over all rows and by source, device, number of devices and parallelism."""
    good = [s for s in scored if s.skipped is None]
    return {
        **figures(good),
        "skipped_count": len(scored) - len(good),
        "by_source": {source: figures([s for s in good if s.source == source]) for source in dict.fromkeys(s.source for s in scored)},
        "by_gpu": figures_by(good, lambda s: s.row.get("gpu", "")),
        "by_devices": figures_by(good, lambda s: s.row.get("n_gpus", "")),
        "by_parallel": figures_by(good, parallel_kind),
        "memory": memory_figures(good),
    }


def figures_by(scored: Sequence[Scored], key: Callable[[Scored], str]) -> dict[str, Any]:
    """`figures` of the rows with each value of `key`."""
    names = sorted({key(s) for s in scored})
    return {name: figures([s for s in scored if key(s) == name]) for name in names}


def parallel_kind(s: Scored) -> str:
    """The kinds of parallelism that a row uses: "tp+pp", "zero3", "dp", …"""
    assert s.job is not None
    p = s.job.plan
    parts = [name for name, size in (("tp", p.tp), ("pp", p.pp), ("cp", p.cp), ("ep", p.ep)) if size > 1]
    if p.dp > 1:
        parts.append(f"zero{p.zero}" if p.zero else "dp")
    return "+".join(parts) or "one device"


def figures(scored: Sequence[Scored]) -> dict[str, Any]:
    """Errors over the rows; None for each figure if there are no rows."""
    if not scored:
        keys = ("mean_abs_error", "median_abs_error", "p90_abs_error", "bias", "spearman_within", "interval_coverage")
        return {"scored": 0, **dict.fromkeys(keys)}
    error = np.array([s.error for s in scored])
    size = np.abs(error)
    inside = [s.predicted.low_s <= s.measured_s <= s.predicted.high_s for s in scored if s.predicted is not None]
    return {
        "scored": len(scored),
        "mean_abs_error": float(size.mean()),
        "median_abs_error": float(np.median(size)),
        "p90_abs_error": float(np.quantile(size, 0.9)),
        "bias": float(error.mean()),
        "spearman_within": spearman_within(scored),
        "interval_coverage": float(np.mean(inside)),
    }


def spearman_within(scored: Sequence[Scored]) -> float | None:
    """Mean rank correlation (Spearman), weighted by rows, over groups of equal source, model, device, device count, batch,
    sequence length and precision. None if no group has enough rows."""
    groups: dict[tuple[str, ...], list[Scored]] = {}
    for s in scored:
        key = tuple(s.row.get(k, "") for k in ("source", "model", "gpu", "n_gpus", "global_batch", "seq_len", "precision"))
        groups.setdefault(key, []).append(s)
    total = weight = 0.0
    for members in groups.values():
        if len(members) < RANKED:
            continue
        measured = _ranks(np.array([s.measured_s for s in members]))
        predicted = _ranks(np.array([s.predicted.time_s for s in members if s.predicted is not None]))
        if measured.std() == 0 or predicted.std() == 0:
            continue
        total += len(members) * float(np.corrcoef(measured, predicted)[0, 1])
        weight += len(members)
    return total / weight if weight else None


def _ranks(values: np.ndarray) -> np.ndarray:
    """Ranks from 0; equal values all get the mean of their ranks."""
    _, inverse, count = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(count) - 1
    mean: np.ndarray = last - (count - 1) / 2
    return mean[inverse]


def memory_figures(scored: Sequence[Scored]) -> dict[str, Any]:
    """Errors of the peak memory, over the rows that publish it."""
    error = np.array([s.peak_bytes / s.measured_peak_bytes - 1 for s in scored if s.peak_bytes and s.measured_peak_bytes])
    if len(error) == 0:
        return {"scored": 0, "mean_abs_error": None, "max_abs_error": None, "bias": None}
    return {
        "scored": len(error),
        "mean_abs_error": float(np.abs(error).mean()),
        "max_abs_error": float(np.abs(error).max()),
        "bias": float(error.mean()),
    }


def rows_of(scored: Sequence[Scored]) -> list[dict[str, Any]]:
    """The `rows` of `lumos validate --json`."""
    out: list[dict[str, Any]] = []
    for s in scored:
        if s.skipped is not None or s.predicted is None:
            out.append({"id": s.id, "source": s.source, "skipped": s.skipped})
            continue
        entry = {
            "id": s.id,
            "source": s.source,
            "measured_s": s.measured_s,
            "predicted_s": s.predicted.time_s,
            "low_s": s.predicted.low_s,
            "high_s": s.predicted.high_s,
            "error": s.error,
            "widest_unknown": s.unknowns[0].code if s.unknowns and s.unknowns[0].worth_asking else None,
        }
        if s.peak_bytes and s.measured_peak_bytes:
            entry |= {"measured_peak_bytes": s.measured_peak_bytes, "peak_bytes": s.peak_bytes}
        out.append(entry)
    return out


@dataclass(frozen=True, slots=True, repr=False)
class Validation(Shown):
    """Predictions of measured runs. rows: each run with its prediction, or why it was left out; errors are (predicted − measured) /
    measured."""

    rows: tuple[Scored, ...]

    def to_dict(self) -> dict[str, Any]:
        """The rows, and figures over them: all, by source, by device, by size; the keys of `lumos validate --json`."""
        return {"rows": rows_of(self.rows), **summary(self.rows)}

    def described(self) -> str:
        """How many rows were scored, and their errors."""
        found = summary(self.rows)
        if not found["scored"]:
            return f"0 of {len(self.rows)} rows scored"
        errors = f"median error {found['median_abs_error']:.1%}, 90th percentile {found['p90_abs_error']:.1%}"
        return f"{found['scored']} of {len(self.rows)} rows scored, {errors}, {found['interval_coverage']:.0%} within the interval"


def validate(*tables: str | os.PathLike[str], progress: Callable[[int, int], None] | None = None) -> Validation:
    """Predict every row of CSV tables of measured runs; `lumos.prediction.published` says which columns they have.

    progress(done, total) is called with rows. Raises LumosError where a file is no such table.
    """
    rows = list(read_tables([os.fspath(path) for path in tables]))
    return Validation(tuple(score(rows, progress=progress)))
