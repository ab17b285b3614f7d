"""How far tasks start from where they were measured to start.

A start counts from its step's start, and its error is a fraction of the measured step, so that a step early or late as
a whole is not charged to every task in it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lumos.analyze.kernel_class import kernel_classes
from lumos.analyze.steps import Members, spans
from lumos.simulate.timeline import Timeline
from lumos.trace.table import Int32


class StartError(NamedTuple):
    """|replayed − measured start| as a fraction of the step; None over no tasks."""

    median: float | None
    p95: float | None


class GroupError(NamedTuple):
    """The start errors and the run time of a group of device tasks, in the measured and the replayed run."""

    tasks: int
    measured_ns: int
    replayed_ns: int
    start_error: StartError


def start_errors(measured: Timeline, replayed: Timeline, owners: Members) -> NDArray[np.float64]:
    """Every task's start error as a fraction of its measured step; NaN where a task belongs to no step. float64[n]."""
    out = np.full(len(measured.start), np.nan)
    owned = np.flatnonzero(owners.step >= 0)
    step = owners.step[owned]
    start, end = spans(measured, owners)
    replayed_start, _ = spans(replayed, owners)
    shift = (replayed.start[owned] - replayed_start[step]) - (measured.start[owned] - start[step])
    out[owned] = np.abs(shift) / np.maximum(end - start, 1)[step]
    return out


def summary(errors: NDArray[np.float64]) -> StartError:
    """Median and 95th percentile of errors without NaN."""
    if len(errors) == 0:
        return StartError(None, None)
    median, p95 = np.quantile(errors, (0.5, 0.95))
    return StartError(float(median), float(p95))


def by_class(measured: Timeline, replayed: Timeline, owners: Members, errors: NDArray[np.float64]) -> dict[str, GroupError]:
    """Device tasks of all steps by class of kernel (gemm, attention, collective, …). errors: of `start_errors`."""
    return _by(measured, replayed, owners, errors, *kernel_classes(measured.graph))


def by_stream(measured: Timeline, replayed: Timeline, owners: Members, errors: NDArray[np.float64]) -> dict[str, GroupError]:
    """Device tasks of all steps by stream; "rank 0 stream 7". errors: of `start_errors`."""
    graph = measured.graph
    return _by(measured, replayed, owners, errors, [f"rank {p.rank} {p.name}" for p in graph.processors], graph.processor)


def _by(
    measured: Timeline, replayed: Timeline, owners: Members, errors: NDArray[np.float64], labels: list[str], label: Int32
) -> dict[str, GroupError]:
    tasks = np.flatnonzero(owners.on_device & (owners.step >= 0))
    tasks = tasks[np.argsort(label[tasks], kind="stable")]
    out: dict[str, GroupError] = {}
    for group in np.split(tasks, np.flatnonzero(np.diff(label[tasks])) + 1):
        if len(group):
            actual, predicted = (int((t.end[group] - t.start[group]).sum()) for t in (measured, replayed))
            out[labels[int(label[group[0]])]] = GroupError(len(group), actual, predicted, summary(errors[group]))
    return out
