"""Scores over published runs, for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from lumos.layout.validate import Scored


def print_validation(out: Console, scored: Sequence[Scored], result: Mapping[str, Any], worst: int) -> None:
    """Errors by source, device, size and parallel kind; the worst rows; why rows were skipped."""
    for title, key in (("source", "by_source"), ("device", "by_gpu"), ("devices", "by_devices"), ("parallel", "by_parallel")):
        out.print(_figures(title, result[key], result if key == "by_source" else None))
    memory = result["memory"]
    if memory["scored"]:
        mean, most = _percent(memory["mean_abs_error"]), _percent(memory["max_abs_error"])
        out.print(f"peak memory of {memory['scored']} rows: mean error {mean}, worst {most}")
    good = [s for s in scored if s.skipped is None]
    if good and worst:
        table = Table("row", "plan", "measured s", "predicted s", "error", title="worst rows", title_justify="left")
        for s in sorted(good, key=lambda s: -abs(s.error))[:worst]:
            assert s.job is not None and s.predicted is not None
            p = s.job.plan
            sizes = f"tp {p.tp} pp {p.pp} cp {p.cp} dp {p.dp} zero {p.zero} mb {p.micro_batch} x {p.microbatches}"
            plan = f"{s.job.model.name} on {p.devices} {s.job.cluster.name}: {sizes}"
            table.add_row(s.id, plan, f"{s.measured_s:.4g}", f"{s.predicted.time_s:.4g}", _percent(s.error, True))
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
