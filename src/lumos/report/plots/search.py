"""Plot searches as single HTML files: step time against memory, and scaling curves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lumos.errors import LumosError
from lumos.report.plots.cost import write_figure
from lumos.report.text.search import plan_words

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lumos.search.search import Found

#: The most plans that are drawn besides the front.
_MOST_POINTS = 5000


def plot_front(path: str, found: Found) -> None:
    """Write `path`: the timed plans by peak memory and step time, and the front: those that no other beats in both."""
    graph = _graph()
    c = found.candidates
    shown = range(min(len(c.plans), _MOST_POINTS))
    front = c.pareto().tolist()
    figure = graph.Figure(layout={"title": f"{found.problem.model.name} on {found.problem.gpus} x {found.problem.cluster.name}"})
    for name, rows, mode in (("plans", shown, "markers"), ("front", front, "lines+markers")):
        figure.add_trace(
            graph.Scattergl(
                x=[int(c.peak[r]) / 1e9 for r in rows], y=[float(c.seconds[r]) for r in rows], name=name, mode=mode,
                text=[plan_words(c.plans.plan(r)) for r in rows],
            )
        )  # fmt: skip
    figure.update_xaxes(title="peak memory, GB")
    figure.update_yaxes(title="step, s (coarse form)")
    write_figure(figure, path)


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
        raise LumosError("plots need plotly, which is not installed: pip install 'lumos-trace[report]'") from error
    return graph
