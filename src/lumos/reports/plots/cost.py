"""Plot cost models and their errors as single HTML files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from lumos.reports.plots.figure import log_axis, stacked, write_figure

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from lumos.cost.estimate import Estimate

_DASHES = {"high": "dot", "time": "solid", "low": "dot", "roofline": "dash"}


def powers_around(centre: int, octaves: int = 5, per_octave: int = 8) -> NDArray[np.float64]:
    """Whole sizes from `centre` / 2^octaves to `centre` · 2^octaves, evenly on a logarithmic axis, at least 1."""
    steps = np.arange(-octaves * per_octave, octaves * per_octave + 1) / per_octave
    return np.unique(np.maximum(1, np.rint(centre * 2.0**steps)))


def cost_curve(path: str, sizes: NDArray[np.float64], estimate: Estimate, title: str, axis: str) -> None:
    """Write `path`: time with its interval and roofline, and fraction of peak, over `sizes`. LumosError where it cannot be written."""
    x = sizes.tolist()
    line = {"type": "scatter", "mode": "lines", "x": x}
    times = {name: (getattr(estimate, name) / 1e3).tolist() for name in _DASHES}
    traces: list[dict[str, Any]] = [{**line, "y": y, "name": name, "line": {"dash": _DASHES[name]}} for name, y in times.items()]
    share = np.broadcast_to(estimate.fraction_of_peak, sizes.shape).tolist()
    traces.append({**line, "y": share, "name": "fraction of peak", "xaxis": "x2", "yaxis": "y2"})
    layout = stacked(("time, with its 80 % interval and roofline", "fraction of peak"), (1, 1), 0.12)
    layout["xaxis"] |= {"type": "log", "matches": "x2", "showticklabels": False}
    layout["xaxis2"] |= log_axis(x, axis, "~s")
    layout["yaxis"] |= log_axis([time for y in times.values() for time in y], "µs")
    write_figure(path, title, traces, layout)


def scatter(path: str, groups: dict[str, tuple[NDArray[np.float64], NDArray[np.float64]]], title: str, axis: str) -> None:
    """Write `path`: the signed error over a quantity, with one colour for each group. LumosError where it cannot be written."""
    points = {"type": "scatter", "mode": "markers", "marker": {"size": 4}}
    traces = [{**points, "x": x.tolist(), "y": y.tolist(), "name": name} for name, (x, y) in groups.items()]
    layout = {
        "xaxis": {"type": "log", "title": {"text": axis}},
        "yaxis": {"title": {"text": "(modelled − measured) / measured"}, "range": [-1, 1]},
    }
    write_figure(path, title, traces, layout)
