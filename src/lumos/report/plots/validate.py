"""Plot predicted against measured steps of published runs as one HTML file."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

from lumos.report.plots.cost import plotly_graph, write_figure
from lumos.report.text.search import plan_words

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lumos.predict.validate import Scored

#: The bands around a perfect prediction, as fractions of the measured step.
_BANDS = (0.1, 0.25)
#: Colours that people with colour blindness can distinguish, on light and on dark ground (Okabe and Ito 2008), and the shapes that tell
#: sources of one colour apart.
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6bb1")
_SHAPES = ("circle", "square", "diamond", "triangle-up", "cross", "x")


def write_plot(path: str, scored: Sequence[Scored]) -> None:
    """Write `path`: the predicted over the measured step of every row, with its 80 % interval, one colour for each source, and the bands of
    10 and 25 %. LumosError where plotly is not installed or the file cannot be written."""
    graph = plotly_graph()
    figure = graph.Figure(layout={"title": "published runs: predicted against measured step"})
    for band in _BANDS:
        figure.add_hrect(y0=1 - band, y1=1 + band, fillcolor="#7f7f7f", opacity=0.12, line_width=0, layer="below")
    figure.add_hline(y=1, line={"color": "#7f7f7f", "width": 1})
    for i, source in enumerate(dict.fromkeys(s.source for s in scored)):
        rows = [s for s in scored if s.source == source and s.predicted is not None]
        if rows:
            marker = {"color": _COLOURS[i % len(_COLOURS)], "symbol": _SHAPES[i // len(_COLOURS) % len(_SHAPES)], "size": 7}
            figure.add_trace(_points(graph, source, rows, marker))
    figure.update_xaxes(type="log", title="measured step, s")
    figure.update_yaxes(type="log", title="predicted / measured (bands: 10 and 25 %)")
    write_figure(figure, path)


def _points(graph: Any, source: str, rows: Sequence[Scored], marker: dict[str, Any]) -> Any:
    """The rows of one source."""
    known = [(s, s.predicted) for s in rows if s.predicted is not None]
    above = [(p.high_s - p.time_s) / s.measured_s for s, p in known]
    below = [(p.time_s - p.low_s) / s.measured_s for s, p in known]
    spread = {"type": "data", "symmetric": False, "array": above, "arrayminus": below, "thickness": 1, "width": 0}
    text = [f"{escape(s.id)}<br>{plan_words(s.job.plan) if s.job else ''}<br>{s.error:+.1%}: {p.time_s:.4g} s" for s, p in known]
    return graph.Scatter(
        x=[s.measured_s for s, _ in known],
        y=[p.time_s / s.measured_s for s, p in known],
        error_y=spread,
        name=escape(source),
        mode="markers",
        marker=marker,
        text=text,
        hovertemplate="%{text}, measured %{x:.4g} s<extra>%{fullData.name}</extra>",
    )
