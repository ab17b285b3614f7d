"""Print the answer of `lumos breakdown`."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from lumos.analyze.patterns import PatternRow
from lumos.analyze.tables import ModuleRow, OperatorRow, RankRow, StreamRow, TableRow, TensorCores, TimeRow
from lumos.graph.kernel_names import KernelClass, kernel_class
from lumos.reports.text.format import (
    ShownField,
    heading,
    kernel_name,
    marked,
    marks,
    percent,
    print_diagnostics,
    print_shares,
    print_trust,
    sentence,
    share_of,
    step_words,
    table,
)
from lumos.reports.text.replay import who
from lumos.units import count, duration

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import Console

    from lumos.analyze.breakdown import StepBreakdown, Variability
    from lumos.analyze.device_load import QueueLength
    from lumos.analyze.flops import Achieved
    from lumos.analyze.trust import Trust
    from lumos.diagnostics import Diagnostic
    from lumos.vocabulary import Basis

_IDLE = {"host_bound_ns": "host-bound", "kernel_gap_ns": "kernel gap", "wait_ns": "wait", "unexplained_ns": "unexplained"}
#: How many patterns are listed, and what stands below them.
MOST_PATTERNS = 10
_PATTERN_NOTES = ("rows of kernels that repeat on a stream; between: the time between their kernels; --json names every kernel",)
_STREAM_NOTE = "idle because of the host, the gap between kernels, or a wait for other work; queue: launched work, on average and at most"
_NOTHING = {
    "stream": "no device work in the steps, so no streams; --by kernel or operator shows the CPU's",
    "pattern": "no row of kernels on a device occurs twice in a step",
    "module": "no device work in the steps; --by operator shows the CPU's",
}
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


class Breakdown(NamedTuple):
    """What is shown; field names are those of `lumos breakdown --json`. of: "measured" or "replayed". parts: of the step, ns, the mean over
    the ranks and the steps that count."""

    step_time_ns: int
    latency_ns: int
    basis: Basis
    median_ns: int
    steps_counted: int
    parts: Mapping[str, float]
    ranks: int
    of: str
    steps: Sequence[StepBreakdown]
    by: str
    rows: Sequence[TableRow]
    queue: Sequence[QueueLength]
    tensor_cores: TensorCores
    achieved_flops: Sequence[Achieved]
    variability: Sequence[Variability]
    trust: Trust
    diagnostics: Sequence[Diagnostic]


def print_breakdown(console: Console, shown: Breakdown) -> None:
    """Print the whole answer."""
    steps = shown.steps
    sentence(console, breakdown_headline(shown))
    print_trust(console, shown.trust)
    for v in shown.variability:
        if v.variation is not None:
            console.print(
                f"rank {v.rank}: {count(v.steps, 'step')} of {duration(v.min_ns)} to {duration(v.max_ns)}, "
                f"standard deviation {percent(v.variation, decimals=1)} of the mean"
            )
    over = [f"{shown.steps_counted} steps"] * (shown.steps_counted > 1) + ["ranks"] * (len({s.rank for s in steps}) > 1)
    mean = f" (mean over {' and '.join(over)})" if over else ""
    largest = sorted((key for key in PARTS if shown.parts[key]), key=lambda key: -shown.parts[key])
    print_shares(console, f"Where the step goes{mean}", {PARTS[key]: shown.parts[key] for key in largest}, shown.step_time_ns)
    columns: Mapping[str, ShownField] = {"rank": "rank", "step": marked(shown.basis), "time": "duration_ns", **_FOUR}
    ran = "devices" if any(s.idle for s in steps) else "threads"
    table(console, columns, steps, *marks(steps, shown.basis), title=f"Steps: {ran} run")
    idle = [(s.idle, s.duration_ns) for s in steps if s.counts and s.idle is not None]
    if total := sum(length for _, length in idle):
        causes = {label: sum(getattr(i, key) for i, _ in idle) / len(idle) for key, label in _IDLE.items()}
        print_shares(console, "Idle devices, by cause (mean over steps)", causes, total / len(idle))
    _print_rows(console, shown.rows, shown.by)
    if shown.by == "kernel" and (said := _tensor_core_words(shown.tensor_cores)):
        sentence(console, said)
    if shown.by in ("kernel", "operator"):
        table(console, _ACHIEVED, shown.achieved_flops, title="Achieved by products and attention")
    print_diagnostics(console, shown.diagnostics)


def breakdown_headline(shown: Breakdown) -> str:
    """How long the job takes for a step, and the largest part of that, in a sentence."""
    largest = max(PARTS, key=lambda key: shown.parts[key])
    share = f"; {percent(shown.parts[largest] / shown.step_time_ns, decimals=0)} is {PARTS[largest]}" if shown.step_time_ns else ""
    step = step_words(shown.step_time_ns, shown.latency_ns, shown.basis)
    return f"{who(shown.steps)}, {step} as {shown.trust.timed(shown.of)}{share}"


def _print_rows(console: Console, rows: Sequence[TableRow], by: str) -> None:
    if not rows:
        heading(console, f"By {by}")
        console.print(f"  nothing to show: {_NOTHING.get(by, 'no work in the steps')}")
        return
    if isinstance(rows[0], PatternRow):
        table(console, _COLUMNS[PatternRow], rows, *_PATTERN_NOTES, title="By pattern", most=MOST_PATTERNS, whole=True)
        return
    on_cpu = isinstance(rows[0], OperatorRow) and not any(isinstance(row, OperatorRow) and row.device_tasks for row in rows)
    notes = [_STREAM_NOTE] * isinstance(rows[0], StreamRow)
    table(console, _OF_CPUS if on_cpu else _COLUMNS[type(rows[0])], rows, *notes, title=f"By {by}")


def _tensor_core_words(of: TensorCores) -> str:
    """How much of the products runs on tensor cores, in a sentence; "" where devices do not multiply."""
    products = of.on_ns + of.off_ns + of.unknown_ns
    if not products or of.share is None:
        return ""
    unknown = f"; {share_of(of.unknown_ns, products)} in kernels whose names do not say" if of.unknown_ns else ""
    on = share_of(of.on_ns, products)
    return f"  tensor cores: {percent(of.share, decimals=1)} of device time, {on} of products and attention{unknown}"


def _pattern_words(row: PatternRow) -> str:
    """What the kernels of a pattern do, in order, those in a row that do the same counted."""
    runs = [(label, len([*several])) for label, several in groupby(map(_kernel_word, row.kernels))]
    return ", ".join(f"{number} {label}" if number > 1 else label for label, number in runs)


def _kernel_word(name: str) -> str:
    label = kernel_class(name)
    return kernel_name(name) if label is KernelClass.OTHER else label.value


def _part(index: int) -> ShownField:
    """The share of one of the four parts of a rank's or a step's time."""
    return lambda row: share_of(row.breakdown[index], row.duration_ns)


def _queue_words(row: StreamRow) -> str:
    mean, most = row.queue
    return "–" if mean is None or most is None else f"{mean:.1f}, {most:,}"


#: The parts of a rank's or a step's time, in the order of `FourWay`.
_FOUR: Mapping[str, ShownField] = {name: _part(i) for i, name in enumerate(("compute", "both", "comm.", "neither"))}
#: The columns of each kind of row, and of operators where no device has work.
_COLUMNS: Mapping[type[TableRow], Mapping[str, ShownField]] = {
    TimeRow: {"name": lambda row: kernel_name(row.name), "count": "tasks", "total": "total_ns", "share": "share", "mean": "mean_ns"},
    PatternRow: {
        "what its kernels do": _pattern_words, "kernels": lambda row: str(len(row.kernels)), "times": "times",
        "total": "total_ns", "share": "share", "between": "gaps_ns",
    },
    OperatorRow: {"operator": "name", "kernels": "device_tasks", "device": "device_ns", "share": "device_share", "own CPU": "cpu_ns"},
    ModuleRow: {"module": "name", "kernels": "device_tasks", "device": "device_ns", "share": "device_share"},
    StreamRow: {
        "rank": "rank", "stream": "name", "tasks": "tasks", "busy": "share",
        "host": "idle.host_bound_ns", "gap": "idle.kernel_gap_ns", "wait": "idle.wait_ns", "queue": _queue_words,
    },
    RankRow: {"rank": "rank", "steps": "steps", "time": "duration_ns", **_FOUR},
}  # fmt: skip
_OF_CPUS: Mapping[str, ShownField] = {"operator": "name", "own CPU": "cpu_ns", "share": "cpu_share"}
_ACHIEVED: Mapping[str, ShownField] = {
    "operator": "operator", "calls": "calls", "time": "time_ns", "TFLOP/s": lambda row: f"{row.flops_per_s / 1e12:.3g}", "shapes": "shapes",
}  # fmt: skip
