"""What the figures of plots share: how one is written, its axes below each other, and the lines that mark a limit.

A figure is what plotly.js draws: a list of traces and a layout, both dictionaries (https://plotly.com/javascript/reference/). The page
gives it the colours and fonts of a report.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from lumos.reports.page.html import write_figure_page

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

#: Colours that people with colour blindness can distinguish, on light and on dark ground (Okabe and Ito 2008), then lighter ones.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6bb1", "#b8d000", "#66c2a4", "#b0885a")
#: The colour of a limit, and that of what is no series of its own.
LIMIT, NEUTRAL = "#d55e00", "#7f7f7f"


def write_figure(path: str, title: str, traces: Sequence[dict[str, Any]], layout: dict[str, Any]) -> None:
    """Write a figure as one HTML file that needs no network and looks like a report. LumosError where it cannot be written."""
    write_figure_page(path, title, {"data": list(traces), "layout": layout})


def log_axis(values: Iterable[float], title: str) -> dict[str, Any]:
    """A logarithmic axis that shows `values`, with ticks at 1, 2 and 5 of every decade where there is more than one. Plotly's own ticks
    between decades are single digits, of which a reader cannot tell the decade."""
    axis = {"type": "log", "title": {"text": title}, "tickformat": "~g"}
    shown = [value for value in values if value > 0]
    if not shown or max(shown) < 10 * min(shown):
        return axis
    decades = range(math.floor(math.log10(min(shown))), math.ceil(math.log10(max(shown))) + 1)
    return {**axis, "tickvals": [digit * 10.0**decade for decade in decades for digit in (1, 2, 5)]}


def limit_line(x: float, text: str, row: int = 1) -> tuple[dict[str, Any], dict[str, Any]]:
    """A dashed vertical line at `x` in the drawing of that row, counted from 1, and the note at its upper end: a shape and an
    annotation."""
    number = str(row) if row > 1 else ""
    axes = {"xref": f"x{number}", "yref": f"y{number} domain"}
    line = {"type": "line", "x0": x, "x1": x, "y0": 0, "y1": 1, "line": {"dash": "dash", "color": LIMIT}, **axes}
    note = {"text": text, "x": x, "y": 1, "showarrow": False, "xanchor": "left", "yanchor": "top", **axes}
    return line, note


def interval(above: list[float], below: list[float], **style: Any) -> dict[str, Any]:
    """Bars around points, by how far each interval reaches above and below its point."""
    return {"type": "data", "symmetric": False, "array": above, "arrayminus": below, "thickness": 1, **style}
