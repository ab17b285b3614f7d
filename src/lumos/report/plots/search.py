"""Plot searches as single HTML files: step time against memory, and scaling curves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from lumos.errors import LumosError
from lumos.extras import install
from lumos.report.plots.cost import write_figure
from lumos.report.text.search import plan_words
from lumos.search.space import RECOMPUTES, SCHEDULES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lumos.search.search import Candidates, Found
    from lumos.search.space import Ints

#: The most plans that are drawn besides the front.
_MOST_POINTS = 5000


#: Colours that people with colour blindness can distinguish, on light and on dark ground (Okabe and Ito 2008), then lighter ones.
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6bb1", "#b8d000", "#66c2a4", "#b0885a")


def plot_front(path: str, found: Found) -> None:
    """Write `path`: the timed plans by peak memory and step, coloured by the choice that tells them apart best; the front, which no plan
    beats in both; the plans that were simulated in full with their intervals; and the memory that there is."""
    graph = _graph()
    c = found.candidates
    shown = np.arange(min(len(c.plans), _MOST_POINTS))
    figure = graph.Figure(layout={"title": f"{found.problem.model.name} on {found.problem.gpus} x {found.problem.cluster.name}"})
    if len(shown):
        _draw_plans(graph, figure, c, shown)
        _draw(graph.Scattergl, figure, c, c.pareto(), "front", mode="lines", line={"color": "#7f7f7f", "dash": "dot"})
    best = found.best
    spread = {"type": "data", "symmetric": False, "array": [p.time.high_s - p.time.time_s for p in best], "thickness": 1}
    spread["arrayminus"] = [p.time.time_s - p.time.low_s for p in best]
    figure.add_trace(
        graph.Scatter(
            x=[p.memory.peak_bytes / 1e9 for p in best], y=[p.time.time_s for p in best], error_y=spread, name="simulated in full, 80 %",
            mode="markers", text=[plan_words(p.job.plan) for p in best], hovertemplate=_HOVER,
            marker={"symbol": "diamond-open", "size": 11, "color": "#7f7f7f"},
        )
    )  # fmt: skip
    capacity = found.problem.capacity
    if capacity is not None:
        text = f"memory: {capacity / 1e9:.4g} GB"
        figure.add_vline(x=capacity / 1e9, line={"dash": "dash", "color": "#d55e00"}, annotation={"text": text, "yanchor": "top"})
    figure.update_xaxes(title="peak memory, GB")
    figure.update_yaxes(title="step, s (points: coarse form)")
    write_figure(figure, path)


#: What is shown of the plan under the pointer.
_HOVER = "%{text}<br>%{y:.4g} s, %{x:.1f} GB<extra></extra>"


def _draw_plans(graph: Any, figure: Any, c: Candidates, rows: Ints) -> None:
    """Add the plans of `rows`, a trace for each value of the choice that tells them apart."""
    choice = c.distinguishing(rows)
    values = c.plans[choice][rows]
    for i, value in enumerate(np.unique(values).tolist()):
        colour = _COLOURS[i % len(_COLOURS)]
        _draw(graph.Scattergl, figure, c, rows[values == value], _value_name(choice, value), mode="markers", marker={"color": colour})


def _value_name(choice: str, value: int) -> str:
    words = {"schedule": SCHEDULES, "recompute": RECOMPUTES}.get(choice)
    return f"{choice.replace('_', ' ')} {words[value] if words else bool(value) if choice == 'sequence_parallel' else value}"


def _draw(kind: Any, figure: Any, c: Candidates, rows: Ints, name: str, **style: Any) -> None:
    text = [plan_words(c.plans.plan(row)) for row in rows.tolist()]
    figure.add_trace(kind(x=c.peak[rows] / 1e9, y=c.seconds[rows], name=name, text=text, hovertemplate=_HOVER, **style))


def plot_sweep(path: str, key: str, rows: Sequence[tuple[int, Found]]) -> None:
    """Write `path`: the step time of the best plan with its interval, and tokens per second and device, over the swept size."""
    graph = _graph()
    best = [(value, found.best[0]) for value, found in rows if found.best]
    values = [value for value, _ in best]
    text = [plan_words(p.job.plan) for _, p in best]
    right = {"overlaying": "y", "side": "right", "title": "tokens/s/GPU"}
    figure = graph.Figure(layout={"title": f"best plan over {key}", "yaxis2": right})
    spread = {"type": "data", "symmetric": False, "array": [p.time.high_s - p.time.time_s for _, p in best]}
    spread["arrayminus"] = [p.time.time_s - p.time.low_s for _, p in best]
    figure.add_trace(graph.Scatter(x=values, y=[p.time.time_s for _, p in best], error_y=spread, name="step, s", text=text))
    figure.add_trace(graph.Scatter(x=values, y=[p.tokens_per_s_per_gpu for _, p in best], name="tokens/s/GPU", yaxis="y2", text=text))
    figure.update_xaxes(type="log", title=key)
    figure.update_layout(yaxis={"title": "step, s", "type": "log"})
    write_figure(figure, path)


def _graph() -> Any:
    try:
        import plotly.graph_objects as graph
    except ImportError as error:
        raise LumosError(f"plots need plotly, which is not installed: {install('report')}") from error
    return graph
