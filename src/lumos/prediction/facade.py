"""`lumos.validate`: the score of predictions over tables of measured runs.

    lumos.validate("runs.csv")
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lumos.prediction.validate import Scored, read_tables, rows_of, score, summary
from lumos.result import Shown

if TYPE_CHECKING:
    from collections.abc import Callable


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
