"""Scores of rows that nothing was fitted to: the coefficients without the row's source, or the row's framework without its profile."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from tools import fit_step as fitting

from lumos.blocks.price import StepCoefficients, shipped_step_coefficients
from lumos.prediction.validate import Scored, score

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lumos.prediction.validate import PublishedRun

#: Rows of a source that are fitted to; of more, every second, third, … is taken. All sources have equal weight.
MOST_FITTED = 60


class LeaveOut(StrEnum):
    """What a row is predicted without."""

    SOURCE = "source"  # the coefficients of a step are fitted to the other sources
    FRAMEWORK = "framework"  # the row's framework is treated as one without a profile


def score_left_out(
    rows: Sequence[PublishedRun],
    what: LeaveOut,
    progress: Callable[[int, int], None] | None = None,
    fitted_to: Sequence[PublishedRun] | None = None,
) -> list[Scored]:
    """Predict every row without `what`. fitted_to: the rows that coefficients are fitted to (default: all)."""
    if what is LeaveOut.FRAMEWORK:
        return score(rows, progress=progress, unprofiled_frameworks=True)
    problem = fitting.problem(thinned(rows if fitted_to is None else fitted_to))
    start = fitting.linearise(problem, shipped_step_coefficients()) if len(problem.measured) else None
    by_source: dict[str, list[int]] = {}
    for i, row in enumerate(rows):
        by_source.setdefault(row.get("source", "?"), []).append(i)
    found: dict[int, Scored] = {}
    for source, places in by_source.items():
        coefficients = fitting.fit(problem, StepCoefficients(), leave_out=source, start=start, rounds=1) if start else None
        found |= dict(zip(places, score([rows[i] for i in places], coefficients), strict=True))
        if progress is not None:
            progress(len(found), len(rows))
    return [found[i] for i in range(len(rows))]


def thinned(rows: Sequence[PublishedRun], most: int = MOST_FITTED) -> list[PublishedRun]:
    """At most `most` rows of each source, spread evenly over its rows."""
    by_source: dict[str, list[PublishedRun]] = {}
    for row in rows:
        by_source.setdefault(row.get("source", "?"), []).append(row)
    return [row for members in by_source.values() for row in members[:: -(-len(members) // most)]]
