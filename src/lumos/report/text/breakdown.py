"""Print the answer of `lumos breakdown`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lumos.analyze.tables import ModuleRow, OperatorRow, RankRow, StreamRow, TableRow, TimeRow
from lumos.report.text.format import heading, kernel_name, percent, print_diagnostics, sentence, table
from lumos.report.text.replay import PARTS_OF_STEP, who
from lumos.units import count, duration

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import Console

    from lumos.analyze.breakdown import StepBreakdown, Variability
    from lumos.analyze.flops import Achieved
    from lumos.diagnostics import Diagnostic

_IDLE = {"host_bound_ns": "host-bound", "kernel_gap_ns": "kernel gap", "wait_ns": "wait", "unexplained_ns": "unexplained"}


def print_breakdown(
    console: Console,
    run: str,
    steps: Sequence[StepBreakdown],
    by: str,
    rows: Sequence[TableRow],
    achieved: Sequence[Achieved],
    spread: Sequence[Variability],
    diagnostics: Sequence[Diagnostic],
) -> None:
    """Print the whole answer. run: "measured" or "replayed"."""
    sentence(console, breakdown_headline(run, steps))
    for v in spread:
        if v.variation is not None:
            console.print(
                f"rank {v.rank}: {count(v.steps, 'step')} of {duration(v.min_ns)} to {duration(v.max_ns)}, "
                f"standard deviation {percent(v.variation, decimals=1)} of the mean"
            )
    _print_steps(console, steps)
    _print_idle(console, steps)
    heading(console, f"By {by}")
    _print_rows(console, rows, by)
    if achieved and by in ("kernel", "operator"):
        _print_achieved(console, achieved)
    print_diagnostics(console, diagnostics)


def breakdown_headline(run: str, steps: Sequence[StepBreakdown]) -> str:
    """The length of the steps and their largest part, in a sentence."""
    total = sum(s.duration_ns for s in steps)
    parts = {label: sum(getattr(s.breakdown, key) for s in steps) for key, label in PARTS_OF_STEP.items()}
    largest = max(parts, key=lambda label: parts[label])
    if not total:
        return f"{who(steps)}, none of which contains any work"
    mean = f"{duration(total / len(steps))} a step as {run}{' (mean over ranks)' if len({s.rank for s in steps}) > 1 else ''}"
    return f"{who(steps)}, {mean}; {percent(parts[largest] / total, decimals=0)} is {largest}"


def _print_steps(console: Console, steps: Sequence[StepBreakdown]) -> None:
    heading(console, "Steps: devices run" if any(s.idle for s in steps) else "Steps: threads run")
    rows = [
        (f"{s.rank}", s.name, duration(s.duration_ns), *(percent(part / max(s.duration_ns, 1), decimals=1) for part in s.breakdown))
        for s in steps
    ]
    table(console, ("rank", "step", "time", "compute", "both", "comm.", "neither"), rows, left=(1,))


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
