"""Plot a predicted step as one HTML file: where its time goes, the memory that it needs, and the schedule of its stages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lumos.predict.passes import stage_passes
from lumos.report.plots.cost import plotly_subplots, write_figure
from lumos.report.text.predict import MEMORY_PARTS, predict_headline
from lumos.report.text.whatif import PARTS_IN_SECONDS
from lumos.vocabulary import Phase

if TYPE_CHECKING:
    from lumos.predict.predict import Prediction

#: Colours of the parts of the step and of memory, that people with colour blindness can distinguish (Okabe and Ito 2008).
_COLOURS = ("#0072b2", "#009e73", "#d55e00", "#b9c0c8")
_PHASES = {Phase.FORWARD: "#56b4e9", Phase.RECOMPUTE: "#f0d97a", Phase.BACKWARD: "#0072b2", Phase.OPTIMIZER: "#e69f00"}
_OTHER = "#b9c0c8"
#: Each of the three drawings has a legend of its own, below it.
_LEGENDS = ("legend", "legend2", "legend3")


def plot_prediction(path: str, p: Prediction) -> None:
    """Write `path`: the step by its parts, the memory of the fullest stage by its parts with the device's limit, and which pass of which
    microbatch each stage computes when. LumosError where plotly is not installed or the file cannot be written."""
    titles = ("where the step goes, s", f"memory of stage {p.memory.stage}, GB", "schedule of the stages, s")
    figure = plotly_subplots().make_subplots(rows=3, cols=1, subplot_titles=titles, row_heights=[0.2, 0.2, 0.6], vertical_spacing=0.16)
    for (key, label), colour in zip(PARTS_IN_SECONDS.items(), _COLOURS, strict=True):
        _add(figure, 1, label, [p.breakdown[key]], ["step"], colour, "%{x:.4g} s")
    for (key, label), colour in zip(MEMORY_PARTS.items(), _COLOURS, strict=True):
        _add(figure, 2, label, [getattr(p.memory, key) / 1e9], ["memory"], colour, "%{x:.1f} GB")
    limit = p.job.cluster.accelerator.memory_bytes
    if limit is not None:
        note = {"text": f"memory: {limit / 1e9:.4g} GB", "yanchor": "top"}
        figure.add_vline(x=limit / 1e9, line={"dash": "dash", "color": "#d55e00"}, annotation=note, row=2, col=1)
    _add_schedule(figure, p)
    for row, name in enumerate(_LEGENDS, start=1):
        figure.update_xaxes(rangemode="tozero", row=row, col=1)
        below = figure.layout[f"yaxis{row}" if row > 1 else "yaxis"].domain[0] - 0.06
        figure.update_layout({name: {"orientation": "h", "x": 0, "y": below, "yanchor": "top", "traceorder": "normal"}})
    figure.update_yaxes(autorange="reversed", row=3, col=1)
    figure.update_layout(barmode="stack", title=f"{p.job.model.name}: {predict_headline(p)}", margin={"t": 40, "b": 60})
    write_figure(figure, path)


def _add_schedule(figure: Any, p: Prediction) -> None:
    """A row for each stage, with a bar for each pass, one trace for each phase."""
    passes = stage_passes(p)
    for phase in sorted({each.phase for each in passes}):
        own = [each for each in passes if each.phase is phase]
        lengths = [(each.end_ns - each.start_ns) / 1e9 for each in own]
        places, starts = [f"stage {each.stage}" for each in own], [each.start_ns / 1e9 for each in own]
        text = [f"microbatch {each.microbatch}" if each.microbatch >= 0 else "" for each in own]
        hover = "%{hovertext} from %{base:.4g} s"
        _add(figure, 3, phase.word, lengths, places, _PHASES.get(phase, _OTHER), hover, base=starts, hovertext=text)


def _add(figure: Any, row: int, name: str, x: list[float], y: list[str], colour: str, hover: str, **more: Any) -> None:
    """Horizontal bars of one name and colour."""
    template = f"{name}: {hover}<extra></extra>"
    bar = {"type": "bar", "orientation": "h", "name": name, "x": x, "y": y, "marker": {"color": colour}, "hovertemplate": template, **more}
    figure.add_trace({**bar, "legend": _LEGENDS[row - 1]}, row=row, col=1)
