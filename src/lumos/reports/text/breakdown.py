"""Print the answer of `lumos breakdown`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lumos.analyze.tables import ModuleRow, OperatorRow, RankRow, StreamRow, TableRow, TimeRow
from lumos.reports.text.format import (
    a_step,
    heading,
    kernel_name,
    marked,
    percent,
    print_diagnostics,
    print_marks,
    print_trust,
    sentence,
    table,
)
from lumos.reports.text.replay import who
from lumos.units import count, duration

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import Console

    from lumos.analyze.breakdown import StepBreakdown, Variability
    from lumos.analyze.flops import Achieved
    from lumos.analyze.loop.steps import JobTime
    from lumos.analyze.trust import Trust
    from lumos.diagnostics import Diagnostic

_IDLE = {"host_bound_ns": "host-bound", "kernel_gap_ns": "kernel gap", "wait_ns": "wait", "unexplained_ns": "unexplained"}


#: The named parts of a step, in words.
PARTS = {
    "compute_ns": "compute",
    "communication_ns": "communication",
    "pipeline_bubble_ns": "pipeline bubble",
    "imbalance_ns": "imbalance",
    "data_loading_ns": "data loading",
    "host_between_operators_ns": "host between operators",
    "host_ns": "host",
    "kernel_gap_ns": "kernel gaps",
    "wait_ns": "waits",
    "unexplained_ns": "unexplained",
}


def print_breakdown(
    console: Console,
    run: str,
    headline: JobTime,
    parts: Mapping[str, float],
    steps: Sequence[StepBreakdown],
    by: str,
    rows: Sequence[TableRow],
    achieved: Sequence[Achieved],
    spread: Sequence[Variability],
    trust: Trust,
    diagnostics: Sequence[Diagnostic],
) -> None:
    """Print the whole answer. run: "measured" or "replayed". parts: of the step, ns, the mean over the ranks and the
    steps that count."""
    sentence(console, breakdown_headline(run, headline, parts, steps))
    print_trust(console, trust)
    for v in spread:
        if v.variation is not None:
            console.print(
                f"rank {v.rank}: {count(v.steps, 'step')} of {duration(v.min_ns)} to {duration(v.max_ns)}, "
                f"standard deviation {percent(v.variation, decimals=1)} of the mean"
            )
    _print_parts(console, headline, parts, len({s.rank for s in steps}))
    _print_steps(console, headline, steps)
    _print_idle(console, [s for s in steps if s.counts])
    heading(console, f"By {by}")
    _print_rows(console, rows, by)
    if achieved and by in ("kernel", "operator"):
        _print_achieved(console, achieved)
    print_diagnostics(console, diagnostics)


def breakdown_headline(run: str, headline: JobTime, parts: Mapping[str, float], steps: Sequence[StepBreakdown]) -> str:
    """How long the job takes for a step, and the largest part of that, in a sentence."""
    largest = max(PARTS, key=lambda key: parts[key])
    most = f"; {percent(parts[largest] / headline.step_time_ns, decimals=0)} is {PARTS[largest]}" if headline.step_time_ns else ""
    return f"{who(steps)}, {a_step(headline.step_time_ns, headline.latency_ns, headline.basis)} as {run}{most}"


def _print_parts(console: Console, headline: JobTime, parts: Mapping[str, float], ranks: int) -> None:
    over = [f"{headline.steps} steps"] * (headline.steps > 1) + ["ranks"] * (ranks > 1)
    mean = f" (mean over {' and '.join(over)})" if over else ""
    heading(console, f"Where the step goes{mean}")
    ordered = sorted((key for key in PARTS if parts[key]), key=lambda key: -parts[key])
    rows = [(PARTS[key], duration(parts[key]), percent(parts[key] / headline.step_time_ns, decimals=1)) for key in ordered]
    table(console, ("", "time", "of the step"), rows)


def _print_steps(console: Console, headline: JobTime, steps: Sequence[StepBreakdown]) -> None:
    heading(console, "Steps: devices run" if any(s.idle for s in steps) else "Steps: threads run")
    rows = [
        (
            f"{s.rank}",
            marked(s.name, s.basis is not headline.basis, not s.counts),
            duration(s.duration_ns),
            *(percent(part / max(s.duration_ns, 1), decimals=1) for part in s.breakdown),
        )
        for s in steps
    ]
    table(console, ("rank", "step", "time", "compute", "both", "comm.", "neither"), rows, left=(1,))
    print_marks(console, any(s.basis is not headline.basis for s in steps), any(s.basis is headline.basis and not s.counts for s in steps))


def _print_idle(console: Console, steps: Sequence[StepBreakdown]) -> None:
    idle = [s.idle for s in steps if s.idle is not None]
    total = sum(s.duration_ns for s in steps if s.idle is not None)
    if not idle or not total:
        return
    heading(console, "Idle devices, by cause (mean over steps)")
    rows = []
    for key, label in _IDLE.items():
        time = sum(getattr(i, key) for i in idle)
        rows.append((label, duration(time / len(idle)), percent(time / total, decimals=1)))
    table(console, ("", "time", "of the step"), rows)


def _print_rows(console: Console, rows: Sequence[TableRow], by: str) -> None:
    if not rows:
        no_device = "no device work in the steps, so no streams; --by kernel or operator shows the CPU's"
        console.print(f"  nothing to show: {no_device if by == 'stream' else 'no work in the steps'}")
        return
    if all(isinstance(row, OperatorRow) and not row.device_tasks for row in rows):
        _print_cpu_operators(console, [row for row in rows if isinstance(row, OperatorRow)])
        return
    columns, left = _COLUMNS[type(rows[0])]
    table(console, columns, [_cells(row) for row in rows], left)
    if isinstance(rows[0], StreamRow):
        console.print("  idle because of the host, the gap between kernels, or a wait for other work")


def _print_cpu_operators(console: Console, rows: Sequence[OperatorRow]) -> None:
    cells = [(row.name, duration(row.cpu_ns), percent(row.cpu_share, decimals=1)) for row in rows]
    table(console, ("operator", "own CPU", "share"), cells)


#: For each kind of row the names of the columns, and which columns are text.
_COLUMNS: Mapping[type[TableRow], tuple[tuple[str, ...], tuple[int, ...]]] = {
    TimeRow: (("name", "count", "total", "share", "mean"), (0,)),
    OperatorRow: (("operator", "kernels", "device", "share", "own CPU"), (0,)),
    ModuleRow: (("module", "kernels", "device", "share"), (0,)),
    StreamRow: (("rank", "stream", "tasks", "busy", "host", "gap", "wait"), (1,)),
    RankRow: (("rank", "steps", "time", "compute", "both", "comm.", "neither"), ()),
}


def _cells(row: TableRow) -> tuple[str, ...]:
    match row:
        case TimeRow():
            return kernel_name(row.name), f"{row.tasks:,}", duration(row.total_ns), percent(row.share, decimals=1), duration(row.mean_ns)
        case OperatorRow():
            share = percent(row.device_share, decimals=1)
            return row.name, f"{row.device_tasks:,}", duration(row.device_ns), share, duration(row.cpu_ns)
        case ModuleRow():
            return row.name, f"{row.device_tasks:,}", duration(row.device_ns), percent(row.device_share, decimals=1)
        case StreamRow():
            causes = (row.idle.host_bound_ns, row.idle.kernel_gap_ns, row.idle.wait_ns)
            return f"{row.rank}", row.name, f"{row.tasks:,}", percent(row.share, decimals=1), *map(duration, causes)
        case RankRow():
            parts = (percent(part / max(row.duration_ns, 1), decimals=1) for part in row.breakdown)
            return f"{row.rank}", f"{row.steps}", duration(row.duration_ns), *parts


def _print_achieved(console: Console, achieved: Sequence[Achieved]) -> None:
    heading(console, "Achieved by products and attention")
    cells = [(a.operator, f"{a.calls:,}", duration(a.time_ns), f"{a.flops_per_s / 1e12:.3g}", a.shapes) for a in achieved]
    table(console, ("operator", "calls", "time", "TFLOP/s", "shapes"), cells, left=(0, 4))
