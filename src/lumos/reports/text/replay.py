"""Print the answer of `lumos replay`."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from rich.text import Text

from lumos.reports.text.format import (
    ShownField,
    a_step,
    marked,
    marks,
    percent,
    print_diagnostics,
    print_trust,
    sentence,
    table,
)
from lumos.units import count, duration

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import Console

    from lumos.analyze.breakdown import StepBreakdown
    from lumos.analyze.collectives import Interference
    from lumos.analyze.replay import Probes, ReplayResult, StepReplay

PARTS_OF_STEP = {
    "exposed_compute_ns": "compute alone",
    "overlapped_ns": "compute and communication",
    "exposed_communication_ns": "communication alone",
    "other_ns": "neither",
}
#: What a replay keeps of the recording or leaves unexplained, in words.
_KEPT = {
    "kept_wait": "waiting kept as CPU work",
    "unexplained_idle": "idle without a known cause",
    "prefix": "launched before the window",
}
#: The most steps of which the reason is printed why they are not scored.
MOST_UNSCORED = 8


def print_replay(
    console: Console,
    result: ReplayResult,
    probes: Probes | None,
    seconds: Mapping[str, float],
    interference: Sequence[Interference] = (),
) -> None:
    """Print the whole answer."""
    sentence(console, replay_headline(result))
    print_trust(console, result.trust)
    console.print(f"{count(result.tasks, 'task')}, {result.dependencies:,} dependencies")
    console.print(f"read in {seconds['read_s']:.2f} s, built in {seconds['build_s']:.2f} s, simulated in {seconds['simulate_s']:.3f} s")
    if result.ignored:
        console.print(Text(f"Ignored dependencies: {', '.join(result.ignored)}", style="yellow"))
    _print_steps(console, result)
    _print_parts(console, result)
    _print_evidence(console, result)
    _print_constants(console, result)
    if probes is not None:
        _print_probes(console, probes, result.rank_numbers)
    print_interference(console, interference)
    print_diagnostics(console, result.diagnostics)


def replay_headline(result: ReplayResult) -> str:
    """The time of the job's step, measured and replayed, in one sentence."""
    measured, replayed = result.step_time_ns, result.replayed_step_time_ns
    error = percent((replayed - measured) / measured, signed=True) if measured else "–"
    return f"{who(result.steps)}, {a_step(result)}, {duration(replayed)} replayed, {error}"


def who(steps: Sequence[StepReplay | StepBreakdown]) -> str:
    """Which ranks have how many steps: "rank 3: 5 steps", "8 ranks: 2 steps each"."""
    per_rank = Counter(step.rank for step in steps)
    if len(per_rank) == 1:
        return f"rank {steps[0].rank}: {count(len(steps), 'step')}"
    numbers = set(per_rank.values())
    have = f"{count(numbers.pop(), 'step')} each" if len(numbers) == 1 else count(len(steps), "step")
    return f"{count(len(per_rank), 'rank')}: {have}"


def _print_steps(console: Console, result: ReplayResult) -> None:
    notes = [
        *marks(result.steps, result.basis),
        "start p95: 95 % of kernels start at most this share of the step off;",
        "busy: mean difference of the devices' busy share, by millisecond",
    ]
    if result.collective_start_error.median is not None:
        errors = result.collective_start_error
        notes.append(f"collectives start {percent(errors.median)} of the step off (median), {percent(errors.p95)} (95 %)")
    unscored = [s for s in result.steps if not s.scored]
    if unscored:
        notes.append(f"not scored: {count(len(unscored), 'step')}")
        notes += [f"  rank {s.rank} {s.name}: {s.unscored_reason}" for s in unscored[:MOST_UNSCORED]]
    if result.mean_abs_error is not None:
        notes.append(f"mean absolute error {percent(result.mean_abs_error)}, worst {percent(result.max_abs_error)} (scored steps)")
    columns: Mapping[str, ShownField] = {
        "rank": "rank",
        "step": marked(result.basis),
        str(result.basis): "measured_ns",
        "replayed": "replayed_ns",
        "error": lambda s: percent(s.error, signed=True),
        "start p95": lambda s: percent(s.kernel_start_error.p95),
        "busy": lambda s: percent(s.utilization_error),
    }
    table(console, columns, result.steps, *notes, title="Steps of each rank")


def _print_parts(console: Console, result: ReplayResult) -> None:
    number = len(result.counted)

    def mean(run: str, key: str) -> float:
        return float(sum(getattr(getattr(s.breakdown, run), key) for s in result.counted) / number)

    total = sum(s.measured_ns for s in result.counted) / number or 1
    columns: Mapping[str, ShownField] = {
        "": lambda key: PARTS_OF_STEP[key],
        result.trust.timed(): lambda key: duration(mean("measured", key)),
        "share": lambda key: percent(mean("measured", key) / total, decimals=1),
        "replayed": lambda key: duration(mean("replayed", key)),
    }
    table(console, columns, list(PARTS_OF_STEP), title="Where the time goes (mean over the steps of each rank)")


def _print_evidence(console: Console, result: ReplayResult) -> None:
    rows = []
    for key, label in _KEPT.items():
        worst = max(result.counted, key=lambda s: getattr(s, key))
        value = getattr(worst, key)
        rows.append((label, percent(value), f"rank {worst.rank} {worst.name}" if value else ""))
    title = "What the replay took from the trace or left unexplained (worst step)"
    table(console, ("", "of the step", "step"), rows, title=title)


def _print_constants(console: Console, result: ReplayResult) -> None:
    rows = []
    for name, values in result.constants.items():
        shown = dict.fromkeys(duration(v) if name.endswith("_ns") else f"{v:,}" for v in (min(values), max(values)))
        rows.append((name.removesuffix("_ns").replace("_", " "), " … ".join(shown)))
    table(console, ("", "value"), rows, title="Constants (estimated from the trace, per rank)")


def _print_probes(console: Console, probes: Probes, ranks: Sequence[int]) -> None:
    slowed = zip(ranks, probes.slow_rank, strict=True)
    steps = {
        "GPU work takes no time": probes.gpu_zero,
        "CPU work takes twice as long": probes.cpu_double,
        **{f"CPU of rank {rank} × 1.5: the other ranks": step for rank, step in slowed if step is not None},
    }
    rows = [(what, "–" if step is None else f"{step:.3f}") for what, step in steps.items()]
    table(console, ("", "step"), rows, title="Probes (replayed step, as a multiple of the plain replay)")


def print_interference(console: Console, rows: Sequence[Interference]) -> None:
    """Print how much slower each class of kernels runs during collectives; print nothing where there was nothing to compare."""
    columns: Mapping[str, ShownField] = {
        "class": "kernel_class", "kernels": "kernels", "time": "time_ns", "alone": "alone_ns", "takes": lambda row: f"× {row.slowdown:.2f}",
    }  # fmt: skip
    table(console, columns, rows, title="Kernels during a collective on another stream, against equal work alone")
