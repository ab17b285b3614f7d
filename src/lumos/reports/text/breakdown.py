"""Print the answer of `lumos breakdown`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lumos.analyze.tables import ModuleRow, OperatorRow, RankRow, StreamRow, TableRow, TimeRow
from lumos.reports.text.format import (
    ShownField,
    a_step,
    heading,
    kernel_name,
    listing,
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
    step: Mapping[str, ShownField] = {"step": lambda s: marked(s.name, s.basis is not headline.basis, not s.counts)}
    listing(console, steps, {"rank": "rank", **step, "time": "duration_ns", **_FOUR})
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
    on_cpu = isinstance(rows[0], OperatorRow) and not any(isinstance(row, OperatorRow) and row.device_tasks for row in rows)
    listing(console, rows, _OF_CPUS if on_cpu else _COLUMNS[type(rows[0])])
    if isinstance(rows[0], StreamRow):
        console.print("  idle because of the host, the gap between kernels, or a wait for other work")


def _part(index: int) -> ShownField:
    """The share of one of the four parts of a rank's or a step's time."""
    return lambda row: percent(row.breakdown[index] / max(row.duration_ns, 1), decimals=1)


#: The parts of a rank's or a step's time, in the order of `FourWay`.
_FOUR: Mapping[str, ShownField] = {name: _part(i) for i, name in enumerate(("compute", "both", "comm.", "neither"))}
#: The columns of each kind of row, and of operators where no device has work.
_COLUMNS: Mapping[type[TableRow], Mapping[str, ShownField]] = {
    TimeRow: {"name": lambda row: kernel_name(row.name), "count": "tasks", "total": "total_ns", "share": "share", "mean": "mean_ns"},
    OperatorRow: {"operator": "name", "kernels": "device_tasks", "device": "device_ns", "share": "device_share", "own CPU": "cpu_ns"},
    ModuleRow: {"module": "name", "kernels": "device_tasks", "device": "device_ns", "share": "device_share"},
    StreamRow: {
        "rank": "rank", "stream": "name", "tasks": "tasks", "busy": "share",
        "host": "idle.host_bound_ns", "gap": "idle.kernel_gap_ns", "wait": "idle.wait_ns",
    },
    RankRow: {"rank": "rank", "steps": "steps", "time": "duration_ns", **_FOUR},
}  # fmt: skip
_OF_CPUS: Mapping[str, ShownField] = {"operator": "name", "own CPU": "cpu_ns", "share": "cpu_share"}


def _print_achieved(console: Console, achieved: Sequence[Achieved]) -> None:
    heading(console, "Achieved by products and attention")
    rate: Mapping[str, ShownField] = {"TFLOP/s": lambda row: f"{row.flops_per_s / 1e12:.3g}", "shapes": "shapes"}
    listing(console, achieved, {"operator": "operator", "calls": "calls", "time": "time_ns", **rate})
