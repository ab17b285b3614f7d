"""Plot a predicted step as one HTML file: where its time goes, the memory that it needs, and the schedule of its stages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lumos.prediction.passes import stage_passes
from lumos.reports.plots.figure import limit_line, stacked, write_figure
from lumos.reports.text.predict import MEMORY_PARTS, predict_headline
from lumos.reports.text.whatif import PARTS_IN_SECONDS
from lumos.vocabulary import Phase

if TYPE_CHECKING:
    from lumos.prediction.predict import Prediction

#: Colours of the parts of the step and of memory, that people with colour blindness can distinguish (Okabe and Ito 2008).
_COLOURS = ("#0072b2", "#009e73", "#d55e00", "#b9c0c8")
_PHASES = {Phase.FORWARD: "#56b4e9", Phase.RECOMPUTE: "#f0d97a", Phase.BACKWARD: "#0072b2", Phase.OPTIMIZER: "#e69f00"}
_OTHER = "#b9c0c8"
#: The numbers of the axes and legends of the three drawings, each of which has a legend of its own, below it.
_NUMBERS = ("", "2", "3")


def plot_prediction(path: str, p: Prediction) -> None:
    """Write `path`: the step by its parts, the memory of the fullest stage by its parts with the device's limit, and which pass of which
    microbatch each stage computes when. LumosError where the file cannot be written."""
    titles = ("where the step goes, s", f"memory of stage {p.memory.stage}, GB", "schedule of the stages, s")
    layout = stacked(titles, (0.2, 0.2, 0.6), 0.16)
    layout |= {"barmode": "stack", "margin": {"t": 40, "b": 60}, "shapes": []}
    for number in _NUMBERS:
        layout[f"xaxis{number}"]["rangemode"] = "tozero"
        below = layout[f"yaxis{number}"]["domain"][0] - 0.06
        layout[f"legend{number}"] = {"orientation": "h", "x": 0, "y": below, "yanchor": "top", "traceorder": "normal"}
    layout["yaxis3"]["autorange"] = "reversed"
    limit = p.job.cluster.accelerator.usable_bytes
    if limit is not None:
        line, note = limit_line(limit / 1e9, f"memory: {limit / 1e9:.1f} GB", row=2)
        layout["shapes"].append(line)
        layout["annotations"].append(note)
    write_figure(path, f"{p.job.model.name}: {predict_headline(p)}", [*_parts(p), *_schedule(p)], layout)


def _parts(p: Prediction) -> list[dict[str, Any]]:
    """The parts of the step and of its memory, each as one bar of parts."""
    step = zip(PARTS_IN_SECONDS.items(), _COLOURS, strict=True)
    memory = zip(MEMORY_PARTS.items(), _COLOURS, strict=True)
    return [
        *(_bars(1, label, [p.breakdown[key]], ["step"], colour, "%{x:.4g} s") for (key, label), colour in step),
        *(_bars(2, label, [getattr(p.memory, key) / 1e9], ["memory"], colour, "%{x:.1f} GB") for (key, label), colour in memory),
    ]


def _schedule(p: Prediction) -> list[dict[str, Any]]:
    """A row for each stage, with a bar for each pass, one trace for each phase."""
    passes = stage_passes(p)
    traces = []
    for phase in sorted({each.phase for each in passes}):
        own = [each for each in passes if each.phase is phase]
        lengths = [(each.end_ns - each.start_ns) / 1e9 for each in own]
        places, starts = [f"stage {each.stage}" for each in own], [each.start_ns / 1e9 for each in own]
        text = [f"microbatch {each.microbatch}" if each.microbatch >= 0 else "" for each in own]
        hover = "%{hovertext} from %{base:.4g} s"
        traces.append(_bars(3, phase.word, lengths, places, _PHASES.get(phase, _OTHER), hover, base=starts, hovertext=text))
    return traces


def _bars(row: int, name: str, x: list[float], y: list[str], colour: str, hover: str, **more: Any) -> dict[str, Any]:
    """Horizontal bars of one name and colour, in the drawing of that row."""
    number = _NUMBERS[row - 1]
    place = {"xaxis": f"x{number}", "yaxis": f"y{number}", "legend": f"legend{number}"}
    look = {"marker": {"color": colour}, "hovertemplate": f"{name}: {hover}<extra></extra>"}
    return {"type": "bar", "orientation": "h", "name": name, "x": x, "y": y, **place, **look, **more}
