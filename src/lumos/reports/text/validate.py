"""Print the answer of `lumos validate`: errors over published runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lumos.prediction.validate import Scored
from lumos.reports.text.format import ShownField, heading, paragraph, percent, sentence, table
from lumos.units import count

if TYPE_CHECKING:
    from rich.console import Console

#: Rows with their predicted critical path by kind of work.
ExplainedRow = Sequence[tuple[Scored, Mapping[str, float]]]


def print_validation(console: Console, scored: Sequence[Scored], result: Mapping[str, Any], worst: ExplainedRow) -> None:
    """Print errors by source; the worst rows; and why rows were skipped."""
    good = [s for s in scored if s.skipped is None]
    sentence(console, validate_headline(len(good), len(scored), result))
    if good:
        _print_figures(console, "source", result["by_source"])
        paragraph(console, "rank: correlation of ranks within a model, size and batch; within: in the 80 % interval")
        _print_memory(console, result["memory"])
        _print_worst(console, worst)
    skipped = Counter(s.skipped for s in scored if s.skipped is not None)
    if skipped:
        heading(console, "Skipped rows")
    for reason, number in skipped.most_common():
        paragraph(console, f"skipped {number}: {reason}")


def validate_headline(good: int, rows: int, result: Mapping[str, Any]) -> str:
    """The answer in one sentence."""
    if not good:
        return f"none of {count(rows, 'row')} could be scored"
    mean, bias = _percent(result["mean_abs_error"]), _percent(result["bias"], True)
    return f"{good} of {count(rows, 'row')} scored: mean error {mean}, median {_percent(result['median_abs_error'])}, bias {bias}"


def _print_figures(console: Console, title: str, groups: Mapping[str, Mapping[str, Any]]) -> None:
    columns: Mapping[str, ShownField] = {
        title: lambda name: str(name),
        "rows": lambda name: str(groups[name]["scored"]),
        **{word: _figure(groups, f"{word}_abs_error") for word in ("median", "p90", "mean")},
        "bias": lambda name: _percent(groups[name]["bias"], True),
        "rank": lambda name: "–" if groups[name]["spearman_within"] is None else f"{groups[name]['spearman_within']:.2f}",
        "within": _figure(groups, "interval_coverage"),
    }
    table(console, columns, [name for name, f in groups.items() if f["scored"]], title=f"By {title}", most=len(groups))


def _figure(groups: Mapping[str, Mapping[str, Any]], key: str) -> ShownField:
    return lambda name: _percent(groups[name][key])


def _print_memory(console: Console, memory: Mapping[str, Any]) -> None:
    if memory["scored"]:
        mean, most = _percent(memory["mean_abs_error"]), _percent(memory["max_abs_error"])
        heading(console, "Peak memory")
        paragraph(console, f"{count(memory['scored'], 'row')}: mean error {mean}, worst {most}")


def _print_worst(console: Console, worst: ExplainedRow) -> None:
    rows = []
    for s, path in worst:
        assert s.job is not None and s.predicted is not None
        p = s.job.plan
        sizes = f"tp {p.tp} pp {p.pp} cp {p.cp} dp {p.dp} zero {p.zero} mb {p.micro_batch} x {p.microbatches}"
        plan = f"{s.job.model.name} on {p.devices} {s.job.cluster.name}: {sizes}"
        parts = ", ".join(f"{name} {share:.0%}" for name, share in list(path.items())[:3])
        rows.append((s.id, f"{plan}; predicted path: {parts}", f"{s.measured_s:.4g}", f"{s.predicted.time_s:.4g}", _percent(s.error, True)))
    table(console, ("row", "plan and predicted path", "measured s", "predicted s", "error"), rows, title="Worst rows", most=len(rows))


def _percent(value: float | None, signed: bool = False) -> str:
    return percent(value, signed=signed, decimals=1)
