"""How well the cost models predict measurements that they were not fitted to; writes validation/results/cost.md.

    LUMOS_MEASURED=… LUMOS_TRACES=… python -m validation.cost [--plots DIR]

Every row of the published measurements is predicted once by coefficients fitted without its group: its (n, k) pair
(GEMM), its heads (attention), its size (collectives in a node), its source (collectives across nodes), its shapes
(memory-bound kernels). `--plots` also draws the signed errors.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from tools.figures import write_result
from tools.fit import comparable, fit_apart, kernels
from tools.fit_memory_bound import fit_memory_bound
from validation.goals import marked

from lumos.cost.cluster import load_cluster
from lumos.cost.coefficients import GENERIC, shipped_coefficients
from lumos.cost.collective_model import collective
from lumos.cost.estimate import Float64
from lumos.cost.fitting.fit import MeasuredRows, all_sizes
from lumos.cost.fitting.models import FEWEST_ROWS, across_nodes, fit_network, fit_set, sets_of
from lumos.cost.fitting.tables import MeasuredRow, Table, read_table
from lumos.cost.gemm_model import gemm

#: Size classes by measured time, seconds.
CLASSES = {"< 20 µs": (0, 2e-5), "20–200 µs": (2e-5, 2e-4), "0.2–2 ms": (2e-4, 2e-3), "> 2 ms": (2e-3, np.inf)}

#: A kernel whose bytes take less than this at full rate is bound by its launch.
STREAMED_S = 2e-6


class Scored(NamedTuple):
    """Held-out rows of one set: what it is, modelled and measured seconds, the quantity to plot against, numbers fitted."""

    name: str
    modelled: Float64
    measured: Float64
    against: Float64
    numbers: int

    @property
    def error(self) -> Float64:
        have = np.isfinite(self.modelled)
        return self.modelled[have] / self.measured[have] - 1


def percent(value: float) -> str:
    return f"{value * 100:.1f} %"


def markdown(header: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """A table in Markdown."""
    head = list(header)
    lines = [head, ["---"] * len(head), *([str(x) for x in row] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def summary(sets: list[Scored]) -> str:
    """One row a set: errors overall, and the median by size class."""
    rows = []
    for s in [*sets, pooled(sets)]:
        error, have = s.error, np.isfinite(s.modelled)
        measured = s.measured[have]
        by_class = []
        for low, high in CLASSES.values():
            inside = (measured >= low) & (measured < high)
            by_class.append(f"{percent(float(np.median(np.abs(error[inside]))))} ({inside.sum()})" if inside.any() else "")
        absolute = np.abs(error)
        whole = (percent(float(np.median(absolute))), percent(float(np.quantile(absolute, 0.9))), percent(float(np.median(error))))
        rows.append([s.name, len(error), s.numbers or "", *whole, *by_class])
    return markdown(["set", "rows", "numbers", "median", "p90", "bias", *(f"{c} (rows)" for c in CLASSES)], rows)


def pooled(sets: list[Scored]) -> Scored:
    """All rows together."""
    return Scored("**all**", *(np.concatenate([getattr(s, key) for s in sets]) for key in ("modelled", "measured", "against")), 0)


def flops(rows: MeasuredRows) -> Float64:
    """Operations of every multiplication."""
    return 2 * rows.sizes["m"] * rows.sizes["n"] * rows.sizes["k"]


def gemms(table: Table) -> tuple[list[Scored], list[Scored]]:
    """By accelerator and dtype: (n, k) pairs held out; the accelerator held out altogether."""
    own, left_out = [], []
    tables = [rows for parts in sets_of(table).values() for rows in parts]
    for rows in tables:
        fitted, modelled = fit_set("gemm", [rows])
        own.append(Scored(f"{rows.cluster} {rows.variant}", modelled, rows.seconds, flops(rows), fitted.count))
    for dtype in sorted({t.variant for t in tables}):
        same = [t for t in tables if t.variant == dtype]
        parts = np.split(fit_apart(same).modelled, np.cumsum([len(t.seconds) for t in same])[:-1])
        left_out += [Scored(f"{t.cluster} {dtype}", part, t.seconds, flops(t), 0) for t, part in zip(same, parts, strict=True)]
    return own, left_out


def attentions(table: Table) -> list[Scored]:
    out = []
    for (name, kernel), parts in sets_of(table).items():
        fitted, modelled = fit_set("attention", parts)
        measured = np.concatenate([p.seconds for p in parts])
        out.append(Scored(f"{name} {kernel}", modelled, measured, all_sizes(parts, "seq_len"), fitted.count))
    return out


def collectives(table: Table) -> tuple[list[Scored], list[Scored]]:
    """Within a node by accelerator and kind; across nodes by cluster."""
    inside = []
    for (name, kind), parts in sets_of(table).items():
        fitted, modelled = fit_set("collective", parts)
        measured = np.concatenate([p.seconds for p in parts])
        inside.append(Scored(f"{name} {kind}", modelled, measured, all_sizes(parts, "size_bytes"), fitted.count))
    across = across_nodes(table)
    fitted, modelled = fit_network(across, shipped_coefficients())
    parts_of = np.split(modelled, np.cumsum([len(t.seconds) for t in across])[:-1])
    outside = [
        Scored(f"{t.cluster}, {int(t.sizes['nodes'].max())} nodes", part, t.seconds, t.sizes["size_bytes"], fitted.count)
        for t, part in zip(across, parts_of, strict=True)
    ]
    return inside, outside


def memory_bound(folder: Path) -> tuple[list[Scored], list[Scored]]:
    """All kernels with known bytes, and those of them whose bytes take 2 µs or more at the memory's full rate: the ones
    that memory bounds; the rest are bound by their launch."""
    tables = kernels(folder)
    out, bound = [], []
    for name, kernel_class in sorted({(t.rows.cluster, t.rows.variant) for t in tables}):
        own = [t for t in tables if (t.rows.cluster, t.rows.variant) == (name, kernel_class)]
        rows = [t.rows for t in own]
        measured = np.concatenate([r.seconds for r in rows])
        if len(measured) >= FEWEST_ROWS:
            fitted, modelled = fit_memory_bound(own)
            moved = all_sizes(rows, "bytes")
            streamed = moved / (load_cluster(name).accelerator.memory_bytes_per_s or np.inf) >= STREAMED_S
            out.append(Scored(f"{name} {kernel_class}", modelled, measured, moved, fitted.count))
            bound.append(Scored(f"{name} {kernel_class}", np.where(streamed, modelled, np.nan), measured, moved, fitted.count))
    return out, bound


def never_fitted(gemm_table: Table, collective_table: Table) -> list[Scored]:
    """Sources that no coefficient was fitted to: other people's GEMMs and nccl-tests logs, by source."""
    out = []
    for source in ("DeepGEMM README", "ml-engineering MAMF"):
        rows = [r for r in gemm_table.rows if r["source"] == source and not _levelled(r)]
        modelled, measured, flops = [], [], []
        for r in rows:
            m, n, k = (float(r[c]) for c in "mnk")
            e = gemm(m, n, k, load_cluster(r["gpu"]).accelerator, r["dtype"], cast=False)
            modelled.append(float(e.time) / 1e9)
            measured.append(float(r["time_us"]) / 1e6)
            flops.append(2 * m * n * k)
        out.append(Scored(f"GEMM, {source}", np.array(modelled), np.array(measured), np.array(flops), 0))
    used = {id(r) for r in comparable(collective_table).rows}
    for source in sorted({r["source"] for r in collective_table.rows}):
        rows = [r for r in collective_table.rows if r["source"] == source and id(r) not in used and float(r["n_nodes"]) == 1]
        if rows:
            size, ranks, measured_us = (np.array([float(r[c]) for r in rows]) for c in ("size_bytes", "n_gpus", "time_us"))
            times = [
                float(collective(r["collective"], n, s, load_cluster(r["gpu"])).time) / 1e9
                for r, n, s in zip(rows, ranks, size, strict=True)
            ]
            out.append(Scored(f"collective, {source}", np.array(times), measured_us * 1e-6, size, 0))
    return out


def _levelled(row: MeasuredRow) -> bool:
    """Whether the row set the level of its accelerator's own set."""
    sets = shipped_coefficients()["gemm"].get(load_cluster(row["gpu"]).accelerator.name, {})
    return any(c.rows == 1 for c in sets.values())


def figures(
    gemm_sets: list[Scored],
    left_out: list[Scored],
    attention: list[Scored],
    inside: list[Scored],
    outside: list[Scored],
    streamed: list[Scored],
    kernel_sets: list[Scored],
) -> str:
    """The figures to reach, and those that were reached."""

    def worst(sets: list[Scored], of: Callable[[Float64], float]) -> str:
        return percent(max(of(np.abs(s.error)) for s in sets))

    def median(e: Float64) -> float:
        return float(np.median(e))

    def p90(e: Float64) -> float:
        return float(np.quantile(e, 0.9))

    large = [s for s in attention if len(s.error) >= 500]
    rows = [
        ["GEMM per accelerator and dtype, held-out (n, k) pairs: worst median", "≤ 5 %", worst(gemm_sets, median)],
        ["the same: worst 90th percentile", "≤ 15 %", worst(gemm_sets, p90)],
        ["GEMM, accelerator left out altogether: worst median", "≤ 12 %", worst(left_out, median)],
        ["attention, held-out heads, sets of more than 500 rows: worst median", "≤ 8 %", worst(large, median)],
        ["attention, all rows: median", "≤ 8 %", percent(median(np.abs(pooled(attention).error)))],
        ["collectives within a node, held-out sizes: median", "≤ 10 %", percent(median(np.abs(pooled(inside).error)))],
        ["the same: 90th percentile", "≤ 25 %", percent(p90(np.abs(pooled(inside).error)))],
        ["collectives across nodes, held-out source: median", "≤ 20 %", percent(median(np.abs(pooled(outside).error)))],
        ["memory-bound kernels of public traces, held-out shapes: median", "≤ 15 %", percent(median(np.abs(pooled(streamed).error)))],
        ["the same with the kernels that their launch bounds", "≤ 15 %", percent(median(np.abs(pooled(kernel_sets).error)))],
    ]
    marks = [[what, goal, marked(got, float(got.split()[0]) <= float(goal.split()[1]))] for what, goal, got in rows]
    return markdown(["what", "figure", "reached"], marks)


def numbers() -> str:
    """How many numbers are committed, by model."""
    rows = []
    for model, sets in sorted(shipped_coefficients().items()):
        own = [(name, v, c) for name, by in sets.items() for v, c in by.items() if name != GENERIC]
        shared = list(sets.get(GENERIC, {}).values())
        rows.append(
            [model, len(own), max((c.count for *_, c in own), default=0), sum(c.count for *_, c in own), sum(c.count for c in shared)]
        )
    return markdown(["model", "sets", "numbers in the largest", "numbers in all", "generic numbers"], rows)


def main() -> None:
    """Score everything and rewrite the page's tables."""
    measured, traces = os.environ.get("LUMOS_MEASURED"), os.environ.get("LUMOS_TRACES")
    if not measured or not traces:
        sys.exit("validation/cost.py: set LUMOS_MEASURED and LUMOS_TRACES")
    folder = Path(measured)
    whole = {name: read_table(folder / f"{name}.csv") for name in ("gemm", "attention", "collectives")}
    own, left_out = gemms(comparable(whole["gemm"]))
    attention = attentions(comparable(whole["attention"]))
    inside, outside = collectives(comparable(whole["collectives"]))
    kernel_sets, streamed = memory_bound(Path(traces))
    others = never_fitted(whole["gemm"], whole["collectives"])
    sections = {
        "Figures": figures(own, left_out, attention, inside, outside, streamed, kernel_sets),
        "Numbers committed": numbers(),
        "GEMM, (n, k) pairs held out": summary(own),
        "GEMM, accelerator held out": summary(left_out),
        "Attention, heads held out": summary(attention),
        "Collectives within a node, sizes held out": summary(inside),
        "Collectives across nodes, source held out": summary(outside),
        "Memory-bound kernels of traces, shapes held out": summary(streamed),
        "The same with the kernels that their launch bounds": summary(kernel_sets),
        "Sources never fitted": summary(others),
    }
    text = "\n\n".join(f"## {title}\n\n{body}" for title, body in sections.items())
    write_result("validation/results/cost.md", text)
    print(sections["Figures"])
    if "--plots" in sys.argv:
        draw(
            Path(sys.argv[sys.argv.index("--plots") + 1]),
            {"gemm": own, "attention": attention, "collective": inside, "memory-bound": kernel_sets},
        )


def draw(folder: Path, models: dict[str, list[Scored]]) -> None:
    """Signed errors of each model as one HTML file."""
    from lumos.reports.page.html import write_figure_page

    axes = {"gemm": "FLOP", "attention": "keys", "collective": "bytes", "memory-bound": "bytes"}
    points = {"type": "scatter", "mode": "markers", "marker": {"size": 4}}
    folder.mkdir(parents=True, exist_ok=True)
    for model, sets in models.items():
        traces = [{**points, "x": s.against[np.isfinite(s.modelled)].tolist(), "y": s.error.tolist(), "name": s.name} for s in sets]
        signed = {"title": {"text": "(modelled − measured) / measured"}, "range": [-1, 1]}
        layout = {"xaxis": {"type": "log", "title": {"text": axes[model]}}, "yaxis": signed}
        write_figure_page(str(folder / f"cost-{model}.html"), f"{model}: error of held-out rows", {"data": traces, "layout": layout})


if __name__ == "__main__":
    main()
