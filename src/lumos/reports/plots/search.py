"""Plot searches as single HTML files: step time against memory, and scaling curves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from lumos.reports.plots.figure import COLOURS, NEUTRAL, interval, limit_line, log_axis, write_figure
from lumos.reports.text.search import plan_words

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lumos.searching.engine import Simulated
    from lumos.searching.search import Candidates, Found
    from lumos.searching.space import Ints

#: The most plans that are drawn besides the front.
_MOST_POINTS = 5000
#: What is shown of the plan under the pointer.
_HOVER = "%{text}<br>%{y:.4g} s, %{x:.1f} GB<extra></extra>"


def plot_front(path: str, found: Found) -> None:
    """Write `path`: the timed plans by peak memory and step, coloured by their pipeline stages; the front, which no plan
    beats in both; the plans that were simulated in full with their intervals; and the memory that there is. LumosError where it cannot be
    written."""
    c = found.candidates
    shown = np.arange(min(len(c.plans), _MOST_POINTS))
    traces = []
    if len(shown):
        traces = _plans(c, shown)
        traces.append(_drawn(c, c.pareto(), "front", mode="lines", line={"color": NEUTRAL, "dash": "dot"}))
    traces.append(_simulated(found.best))
    layout: dict[str, Any] = {
        "xaxis": {"title": {"text": "peak memory, GB"}},
        "yaxis": {"title": {"text": "step, s (points: coarse form)"}},
    }
    capacity = found.problem.capacity
    if capacity is not None:
        line, note = limit_line(capacity / 1e9, f"memory: {capacity / 1e9:.1f} GB")
        layout |= {"shapes": [line], "annotations": [note]}
    write_figure(path, f"{found.problem.model.name} on {found.problem.gpus} x {found.problem.cluster.name}", traces, layout)


def _plans(c: Candidates, rows: Ints) -> list[dict[str, Any]]:
    """The plans of `rows`, a trace for each number of pipeline stages."""
    stages = c.plans["pp"][rows]
    return [
        _drawn(c, rows[stages == number], f"pp {number}", mode="markers", marker={"color": COLOURS[i % len(COLOURS)]})
        for i, number in enumerate(np.unique(stages).tolist())
    ]


def _drawn(c: Candidates, rows: Ints, name: str, **style: Any) -> dict[str, Any]:
    text = [plan_words(c.plans.plan(row)) for row in rows.tolist()]
    place = {"x": (c.peak[rows] / 1e9).tolist(), "y": c.seconds[rows].tolist()}
    return {"type": "scatter", **place, "name": name, "text": text, "hovertemplate": _HOVER, **style}


def _simulated(best: Sequence[Simulated]) -> dict[str, Any]:
    """The plans that were simulated in full, with their intervals."""
    return {
        "type": "scatter", "mode": "markers", "name": "simulated in full, 80 %",
        "x": [p.memory.peak_bytes / 1e9 for p in best], "y": [p.time.time_s for p in best], "error_y": _spread(best),
        "text": [plan_words(p.job.plan) for p in best], "hovertemplate": _HOVER,
        "marker": {"symbol": "diamond-open", "size": 11, "color": NEUTRAL},
    }  # fmt: skip


def _spread(of: Sequence[Simulated]) -> dict[str, Any]:
    """Their intervals, s."""
    return interval([p.time.high_s - p.time.time_s for p in of], [p.time.time_s - p.time.low_s for p in of])


def plot_sweep(path: str, key: str, rows: Sequence[tuple[int | str, Found]]) -> None:
    """Write `path`: the step time of the best plan with its interval, and tokens per second and device, over the swept size. LumosError
    where it cannot be written."""
    best = [(value, found.best[0]) for value, found in rows if found.best]
    plans = [p for _, p in best]
    common: dict[str, Any] = {"type": "scatter", "x": [value for value, _ in best], "text": [plan_words(p.job.plan) for p in plans]}
    traces = [
        {**common, "y": [p.time.time_s for p in plans], "error_y": _spread(plans), "name": "step, s"},
        {**common, "y": [p.tokens_per_s_per_gpu for p in plans], "name": "tokens/s/GPU", "yaxis": "y2"},
    ]
    names = key == "cluster"
    ticks = {"tickvals": common["x"], "ticktext": [format(value, ",") for value in common["x"] if isinstance(value, int)]}
    layout = {
        "xaxis": {"type": "category" if names else "log", "title": {"text": key}, **({} if names else ticks)},
        "yaxis": log_axis((p.time.time_s for p in plans), "step, s"),
        "yaxis2": {  # from zero, since the rate hardly changes where a job scales well
            "overlaying": "y",
            "side": "right",
            "title": {"text": "tokens/s/GPU"},
            "rangemode": "tozero",
            "tickmode": "auto",
            "tickformat": ",",
            "showgrid": False,
        },
    }
    write_figure(path, f"best plan over {key}", traces, layout)
