"""Scores over published runs, for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from lumos.layout.validate import Scored

#: Rows with their predicted critical path by kind of work.
Explained = Sequence[tuple[Scored, Mapping[str, float]]]


def print_validation(out: Console, scored: Sequence[Scored], result: Mapping[str, Any], worst: Explained) -> None:
    """Errors by source, device, size and parallel kind; the worst rows; why rows were skipped."""
    for title, key in (("source", "by_source"), ("device", "by_gpu"), ("devices", "by_devices"), ("parallel", "by_parallel")):
        out.print(_figures(title, result[key], result if key == "by_source" else None))
    memory = result["memory"]
    if memory["scored"]:
        mean, most = _percent(memory["mean_abs_error"]), _percent(memory["max_abs_error"])
        out.print(f"peak memory of {memory['scored']} rows: mean error {mean}, worst {most}")
    if worst:
        table = Table(
            "row", "job", "measured s", "predicted s", "error", "predicted critical path", title="worst rows", title_justify="left"
        )
        for s, path in worst:
            assert s.job is not None and s.predicted is not None
            p = s.job.plan
            sizes = f"tp {p.tp} pp {p.pp} cp {p.cp} dp {p.dp} zero {p.zero} mb {p.micro_batch} x {p.microbatches}"
            plan = f"{s.job.model.name} on {p.devices} {s.job.cluster.name}: {sizes}, {s.job.framework.name}"
            parts = ", ".join(f"{name} {share:.0%}" for name, share in list(path.items())[:3])
            table.add_row(s.id, plan, f"{s.measured_s:.4g}", f"{s.predicted.time_s:.4g}", _percent(s.error, True), parts)
        out.print(table)
    for reason, count in Counter(s.skipped for s in scored if s.skipped is not None).most_common():
        out.print(f"skipped {count}: {reason}")


def _figures(title: str, groups: Mapping[str, Mapping[str, Any]], total: Mapping[str, Any] | None) -> Table:
    table = Table(title, "rows", "median", "p90", "mean", "bias", "rank", "in interval")
    rows = [*groups.items(), *([("all", total)] if total is not None else [])]
    for name, f in rows:
        if f["scored"]:
            rank = "–" if f["spearman_within"] is None else f"{f['spearman_within']:.2f}"
            keys = (_percent(f[k]) for k in ("median_abs_error", "p90_abs_error", "mean_abs_error"))
            table.add_row(name, str(f["scored"]), *keys, _percent(f["bias"], True), rank, _percent(f["interval_coverage"]))
    return table


def _percent(value: float, signed: bool = False) -> str:
    return f"{value:+.1%}" if signed else f"{value:.1%}"
