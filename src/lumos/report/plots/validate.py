"""Plot the errors of predicted steps of published runs as one HTML file."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from lumos.report.plots.cost import scatter

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lumos.predict.validate import Scored


def write_plot(path: str, scored: Sequence[Scored]) -> None:
    """Write `path`: the error of every row over its measured step, with one colour for each source."""
    groups = {}
    for source in dict.fromkeys(s.source for s in scored):
        rows = [s for s in scored if s.source == source and s.skipped is None]
        if rows:
            groups[source] = (np.array([s.measured_s for s in rows]), np.array([s.error for s in rows]))
    scatter(path, groups, "published runs: error of the predicted step", "measured step, s")
