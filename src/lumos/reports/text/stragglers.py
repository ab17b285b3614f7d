"""Print the answer of `lumos stragglers`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lumos.analyze.ranks.straggler_causes import StragglerCause
from lumos.reports.text.format import a_step, heading, kernel_name, paragraph, percent, print_diagnostics, print_trust, sentence, table
from lumos.units import count, duration

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from lumos.analyze.ranks.stragglers import Stragglers, StragglerShare

#: The most causes that are printed; --json lists all.
MOST_FINDINGS = 6

#: The most characters of a task's name in a sentence.
LONGEST_TASK = 48

_COLUMNS = ("work", "off", "slowdown", "worth", "")


def print_stragglers(console: Console, result: Stragglers) -> None:
    """Print the whole answer."""
    sentence(console, stragglers_headline(result))
    print_trust(console, result.trust)
    ideal = "equal work took equal time" + (" (mean over all ranks)" if result.ideal == "pooled-mean" else "")
    paragraph(
        console,
        f"means over {count(result.steps, 'step')}: {duration(result.measured_step_ns)} measured, {duration(result.replayed_step_ns)} "
        f"replayed, {duration(result.ideal_step_ns)} if {ideal}",
    )
    if result.slowdown_without_launch_delay is not None:
        paragraph(console, f"without launch delays {result.slowdown_without_launch_delay:.3f} times the ideal")
    step = result.replayed_step_ns
    _print_findings(console, result)
    if 0 < len(result.by_stage) < result.ranks:  # otherwise every stage is one rank
        heading(console, "Stages")
        _print_shares(console, ("stage",), [((f"{s.stage}",), s) for s in result.by_stage], step)
    heading(console, "Ranks")
    ranks = sorted(result.by_rank, key=lambda r: -r.worth_ns)
    if result.by_stage:
        _print_shares(console, ("rank", "stage"), [((f"{r.rank}", f"{r.stage}"), r) for r in ranks], step)
    else:
        _print_shares(console, ("rank",), [((f"{r.rank}",), r) for r in ranks], step)
    heading(console, "Classes of operations (over all ranks)")
    _print_shares(console, ("class",), [((c.name,), c) for c in result.by_class], step)
    console.print("  work: own time a step without waiting (of ranks and stages, without")
    console.print("  communication); off: against the ideal's;")
    console.print("  slowdown: of the ideal step, if this one alone kept its own times;")
    console.print("  worth: what this one's ideal times would save a step")
    print_diagnostics(console, result.diagnostics)


def stragglers_headline(result: Stragglers) -> str:
    """The answer in one sentence."""
    step = a_step(result.step_time_ns, result.latency_ns, result.basis)
    return f"{count(result.ranks, 'rank')}: {step}; slowdown {result.slowdown:.3f}"


def _print_findings(console: Console, result: Stragglers) -> None:
    findings, step = result.findings, result.replayed_step_ns
    if not findings:
        return
    heading(console, "Causes")
    for found in findings[:MOST_FINDINGS]:
        at, off = found.where, duration(found.excess_ns)
        if found.cause is StragglerCause.SLOW_WORK:
            what = f"rank {at.rank}: slow work, mostly {found.name}: {off} a step longer than ideal"
        elif found.cause is StragglerCause.SLOW_EXCHANGE:
            what = f"slow exchange, {found.name}: {off} a step longer than ideal, summed over the ranks"
        else:
            what = f"rank {at.rank}: {found.cause.replace('-', ' ')}, {_name(found.name)}: {off} a step"
        hidden = (found.slowdown - 1) * result.ideal_step_ns > 2 * found.worth_ns
        worth = f"worth {duration(found.worth_ns)} ({percent(found.worth_ns / step, decimals=1)})"
        if hidden:
            worth += f", as others are slow too: alone it would slow the ideal step {found.slowdown:.3f} times"
        on = f" on rank {at.rank}" if found.cause is StragglerCause.SLOW_EXCHANGE else ""
        task = "" if found.name == at.task else f" ({_name(at.task)})"
        paragraph(console, f"• {what}, {worth}; worst at {duration(at.start_ns)} of {at.step}{on}{task}")
    if len(findings) > MOST_FINDINGS:
        paragraph(console, f"and {len(findings) - MOST_FINDINGS} more; --json lists all")


def _name(task: str) -> str:
    name = kernel_name(task)
    return name if len(name) <= LONGEST_TASK else f"{name[: LONGEST_TASK - 1]}…"


def _print_shares(console: Console, names: Sequence[str], shares: Sequence[tuple[Sequence[str], StragglerShare]], step: int) -> None:
    rows = [
        (
            *label,
            duration(s.work_ns),
            percent((s.work_ns - s.ideal_work_ns) / s.ideal_work_ns if s.ideal_work_ns else None, signed=True, decimals=1),
            f"{s.slowdown:.3f}",
            duration(s.worth_ns),
            percent(s.worth_ns / step if step else None, signed=True, decimals=1),
        )
        for label, s in shares
    ]
    table(console, (*names, *_COLUMNS), rows)
