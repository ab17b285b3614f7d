"""Print the answer of `lumos replay`."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from rich.text import Text

from lumos.reports.text.format import a_step, heading, listing, paragraph, percent, print_diagnostics, print_trust, sentence, table
from lumos.units import count, duration

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import Console

    from lumos.analyze.breakdown import StepBreakdown
    from lumos.analyze.interference import Interference
    from lumos.analyze.probes import Probes
    from lumos.analyze.replay import ReplayResult, StepReplay

PARTS_OF_STEP = {
    "exposed_compute_ns": "compute alone",
    "overlapped_ns": "compute and communication",
    "exposed_communication_ns": "communication alone",
    "other_ns": "neither",
}


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
    return f"{who(result.steps)}, {a_step(measured, result.latency_ns, result.basis)}, {duration(replayed)} replayed, {error}"


def who(steps: Sequence[StepReplay | StepBreakdown]) -> str:
    """Which ranks have how many steps: "rank 3: 5 steps", "8 ranks: 2 steps each"."""
    per_rank = Counter(step.rank for step in steps)
    if len(per_rank) == 1:
        return f"rank {steps[0].rank}: {count(len(steps), 'step')}"
    numbers = set(per_rank.values())
    each = f"{count(numbers.pop(), 'step')} each" if len(numbers) == 1 else count(len(steps), "step")
    return f"{count(len(per_rank), 'rank')}: {each}"


def _print_steps(console: Console, result: ReplayResult) -> None:
    heading(console, "Steps of each rank")
    marked = any(s.basis is not result.basis for s in result.steps)
    rows = [
        (
            f"{s.rank}",
            s.name,
            _measured(s, result, marked),
            duration(s.replayed_ns),
            percent(s.error, signed=True),
            percent(s.kernel_start_error.p95),
            percent(s.utilization_error),
        )
        for s in result.steps
    ]
    table(console, ("rank", "step", f"{result.basis}{' ' * marked}", "replayed", "error", "start p95", "busy"), rows, left=(1,))
    if marked:
        console.print("  *: latency, counted in no mean: the step before was not recorded")
    console.print("  start p95: 95 % of kernels start at most this share of the step off;")
    console.print("  busy: mean difference of the devices' busy share, by millisecond")
    if result.collective_start_error.median is not None:
        errors = result.collective_start_error
        console.print(f"  collectives start {percent(errors.median)} of the step off (median), {percent(errors.p95)} (95 %)")
    unscored = [s for s in result.steps if not s.scored]
    if unscored:
        console.print(f"  not scored: {count(len(unscored), 'step')}")
        for s in unscored[:8]:
            paragraph(console, f"  rank {s.rank} {s.name}: {s.unscored_reason}")
    if result.mean_abs_error is not None:
        console.print(f"  mean absolute error {percent(result.mean_abs_error)}, worst {percent(result.max_abs_error)} (scored steps)")


def _measured(step: StepReplay, result: ReplayResult, marked: bool) -> str:
    """The measured time of a step, with a star where it is a latency among periods."""
    return duration(step.measured_ns) + ("" if not marked else " " if step.basis is result.basis else "*")


def _print_parts(console: Console, result: ReplayResult) -> None:
    heading(console, "Where the time goes (mean over the steps of each rank)")
    steps = result.counted
    number, total = len(steps), sum(s.measured_ns for s in steps) or 1
    rows = []
    for key, label in PARTS_OF_STEP.items():
        measured = sum(getattr(s.breakdown.measured, key) for s in steps)
        replayed = sum(getattr(s.breakdown.replayed, key) for s in steps)
        rows.append((label, duration(measured / number), percent(measured / total, decimals=1), duration(replayed / number)))
    table(console, ("", "measured", "share", "replayed"), rows)


def _print_evidence(console: Console, result: ReplayResult) -> None:
    heading(console, "What the replay took from the trace or left unexplained (worst step)")
    worst: dict[str, tuple[float, StepReplay]] = {
        label: max(((getattr(s, key), s) for s in result.counted), key=lambda pair: pair[0])
        for key, label in (
            ("kept_wait", "waiting kept as CPU work"),
            ("unexplained_idle", "idle without a known cause"),
            ("prefix", "launched before the window"),
        )
    }
    rows = [(label, percent(value), f"rank {s.rank} {s.name}" if value else "") for label, (value, s) in worst.items()]
    table(console, ("", "of the step", "step"), rows, left=(0, 2))


def _print_constants(console: Console, result: ReplayResult) -> None:
    if not result.constants:
        return
    heading(console, "Constants (estimated from the trace, per rank)")
    rows = []
    for name, values in result.constants.items():
        shown = [duration(v) if name.endswith("_ns") else f"{v:,}" for v in (min(values), max(values))]
        rows.append((name.removesuffix("_ns").replace("_", " "), shown[0] if shown[0] == shown[1] else " … ".join(shown)))
    table(console, ("", "value"), rows)


def _print_probes(console: Console, probes: Probes, ranks: Sequence[int]) -> None:
    heading(console, "Probes (replayed step, as a multiple of the plain replay)")
    rows = [
        ("GPU work takes no time", _ratio(probes.gpu_zero)),
        ("CPU work takes twice as long", _ratio(probes.cpu_double)),
        *(
            (f"CPU of rank {rank} × 1.5: the other ranks", _ratio(r))
            for rank, r in zip(ranks, probes.slow_rank, strict=True)
            if r is not None
        ),
    ]
    table(console, ("", "step"), rows)


def _ratio(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def print_interference(console: Console, rows: Sequence[Interference]) -> None:
    """Print how much slower each class of kernels runs during collectives; print nothing where there was nothing to compare."""
    if not rows:
        return
    heading(console, "Kernels during a collective on another stream, against equal work alone")
    fields = {"class": "kernel_class", "kernels": "kernels", "time": "time_ns", "alone": "alone_ns"}
    listing(console, rows, {**fields, "takes": lambda row: f"× {row.slowdown:.2f}"})
