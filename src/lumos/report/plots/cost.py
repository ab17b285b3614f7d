"""Plot cost models and errors as single HTML files. Plotly is loaded when one is drawn."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from lumos.errors import LumosError
from lumos.extras import install

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from lumos.cost.estimate import Estimate


def powers_around(centre: int, octaves: int = 5, per_octave: int = 8) -> NDArray[np.float64]:
    """Whole sizes from `centre` / 2^octaves to `centre` · 2^octaves, evenly on a logarithmic axis, at least 1."""
    steps = np.arange(-octaves * per_octave, octaves * per_octave + 1) / per_octave
    return np.unique(np.maximum(1, np.rint(centre * 2.0**steps)))


def cost_curve(path: str, sizes: NDArray[np.float64], estimate: Estimate, title: str, axis: str) -> None:
    """Write `path`: time with its interval and roofline, and fraction of peak, over `sizes`.

    Raises LumosError where plotly is not installed or the file cannot be written.
    """
    graph, subplots = _plotly()
    figure = subplots.make_subplots(rows=2, cols=1, shared_xaxes=True, subplot_titles=(title, "fraction of peak"))
    dashes = {"high": "dot", "time": "solid", "low": "dot", "roofline": "dash"}
    for name, dash in dashes.items():
        values = getattr(estimate, name)
        figure.add_trace(graph.Scatter(x=sizes, y=values / 1e3, name=name, mode="lines", line={"dash": dash}), row=1, col=1)
    figure.add_trace(graph.Scatter(x=sizes, y=estimate.fraction_of_peak, name="fraction of peak", mode="lines"), row=2, col=1)
    figure.update_xaxes(type="log", title=axis)
    figure.update_yaxes(type="log", title="µs", row=1, col=1)
    write_figure(figure, path)


def scatter(path: str, groups: dict[str, tuple[NDArray[np.float64], NDArray[np.float64]]], title: str, axis: str) -> None:
    """Write `path`: the signed error over a quantity, with one colour for each group."""
    graph, _ = _plotly()
    figure = graph.Figure(layout={"title": title})
    for name, (x, y) in groups.items():
        figure.add_trace(graph.Scattergl(x=x, y=y, name=name, mode="markers", marker={"size": 4}))
    figure.update_xaxes(type="log", title=axis)
    figure.update_yaxes(title="(modelled − measured) / measured", range=[-1, 1])
    write_figure(figure, path)


def write_figure(figure: Any, path: str) -> None:
    """Write a figure as one HTML file that needs no network and looks like a report. LumosError where it cannot be written."""
    import json

    from lumos.report.page.html import write_figure_page

    drawn = json.loads(figure.to_json())
    layout = drawn["layout"]
    texts = [layout.get("title", {}).get("text"), *(a.get("text") for a in layout.get("annotations", []))]
    write_figure_page(path, next((text for text in texts if text), "Lumos"), {"data": drawn["data"], "layout": layout})


def plotly_graph() -> Any:
    """The module plotly.graph_objects. LumosError where plotly is not installed."""
    return _plotly()[0]


def plotly_subplots() -> Any:
    """The module plotly.subplots. LumosError where plotly is not installed."""
    return _plotly()[1]


def _plotly() -> tuple[Any, Any]:
    try:
        import plotly.graph_objects as graph
        from plotly import subplots
    except ImportError as error:
        raise LumosError(f"plots need plotly, which is not installed: {install('report')}") from error
    return graph, subplots
