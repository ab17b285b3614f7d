"""Plot predicted against measured steps of published runs as one HTML file.

A figure is what plotly.js draws: a list of traces and a layout, both dictionaries (https://plotly.com/javascript/reference/). The page
gives it the fonts of a report.
"""

from __future__ import annotations

import math
from html import escape
from typing import TYPE_CHECKING, Any

from lumos.reports.page.html import write_figure_page
from lumos.reports.text.predict import plan_words

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from lumos.prediction.validate import Scored

#: The bands around a perfect prediction, as fractions of the measured step.
_BANDS = (0.1, 0.25)
#: The colours of sources, which people with colour blindness can distinguish on light and on dark ground (Okabe and Ito 2008), and the
#: shapes that tell sources of one colour apart.
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6bb1")
_SHAPES = ("circle", "square", "diamond", "triangle-up", "cross", "x")
#: The colour of what is no source.
NEUTRAL = "#7f7f7f"
#: A shape that is as wide as the figure.
_ACROSS = {"xref": "paper", "x0": 0, "x1": 1}


def write_plot(path: str, scored: Sequence[Scored]) -> None:
    """Write `path`: the predicted over the measured step of every row, with its 80 % interval, one colour for each source, and the bands of
    10 and 25 %. LumosError where the file cannot be written."""
    traces = []
    for i, source in enumerate(dict.fromkeys(s.source for s in scored)):
        rows = [s for s in scored if s.source == source and s.predicted is not None]
        if rows:
            marker = {"color": _COLOURS[i % len(_COLOURS)], "symbol": _SHAPES[i // len(_COLOURS) % len(_SHAPES)], "size": 7}
            traces.append(_points(source, rows, marker))
    layout = {
        "showlegend": True,
        "shapes": [*map(_band, _BANDS), {**_ACROSS, "type": "line", "y0": 1, "y1": 1, "line": {"color": NEUTRAL, "width": 1}}],
        "xaxis": log_axis((x for trace in traces for x in trace["x"]), "measured step, s"),
        "yaxis": {"type": "log", "title": {"text": "predicted / measured (bands: 10 and 25 %)"}},
    }
    write_figure_page(path, "published runs: predicted against measured step", {"data": traces, "layout": layout})


def log_axis(values: Iterable[float], title: str) -> dict[str, Any]:
    """A logarithmic axis that shows `values`, with ticks at 1, 2 and 5 of every decade where there is more than one. Plotly's own ticks
    between decades are single digits, of which a reader cannot tell the decade."""
    axis = {"type": "log", "title": {"text": title}, "tickformat": "~g"}
    shown = [value for value in values if value > 0]
    if not shown or max(shown) < 10 * min(shown):
        return axis
    decades = range(math.floor(math.log10(min(shown))), math.ceil(math.log10(max(shown))) + 1)
    return {**axis, "tickvals": [digit * 10.0**decade for decade in decades for digit in (1, 2, 5)]}


def _band(width: float) -> dict[str, Any]:
    """The ground of all rows that are off by no more than `width`."""
    look = {"fillcolor": NEUTRAL, "opacity": 0.12, "line": {"width": 0}, "layer": "below"}
    return {**_ACROSS, "type": "rect", "y0": 1 - width, "y1": 1 + width, **look}


def _points(source: str, rows: Sequence[Scored], marker: dict[str, Any]) -> dict[str, Any]:
    """The rows of one source."""
    known = [(s, s.predicted) for s in rows if s.predicted is not None]
    above = [(p.high_s - p.time_s) / s.measured_s for s, p in known]
    below = [(p.time_s - p.low_s) / s.measured_s for s, p in known]
    return {
        "type": "scatter",
        "mode": "markers",
        "name": escape(source),
        "marker": marker,
        "x": [s.measured_s for s, _ in known],
        "y": [p.time_s / s.measured_s for s, p in known],
        "error_y": {"type": "data", "symmetric": False, "array": above, "arrayminus": below, "thickness": 1, "width": 0},
        "text": [f"{escape(s.id)}<br>{plan_words(s.job.plan) if s.job else ''}<br>{s.error:+.1%}: {p.time_s:.4g} s" for s, p in known],
        "hovertemplate": "%{text}, measured %{x:.4g} s<extra>%{fullData.name}</extra>",
    }
