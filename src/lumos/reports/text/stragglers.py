"""Print the answer of `lumos stragglers`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lumos.analyze.ranks.straggler_causes import StragglerCause
from lumos.reports.text.format import (
    ShownField,
    a_step,
    heading,
    paragraph,
    percent,
    print_diagnostics,
    print_trust,
    sentence,
    short_name,
    table,
)
from lumos.units import count, duration

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.console import Console

    from lumos.analyze.ranks.stragglers import Stragglers

#: The most causes that are printed; --json lists all.
MOST_FINDINGS = 6

#: What the columns say.
_MEANING = (
    "work: own time a step without waiting (of ranks and stages, without communication); off: against the ideal's;",
    "slowdown: of the ideal step, if this one alone kept its own times;",
    "worth: what this one's ideal times would save a step",
)


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
    _print_findings(console, result)
    step = result.replayed_step_ns
    columns: Mapping[str, ShownField] = {
        "work": "work_ns",
        "off": lambda s: percent((s.work_ns - s.ideal_work_ns) / s.ideal_work_ns if s.ideal_work_ns else None, signed=True, decimals=1),
        "slowdown": lambda s: f"{s.slowdown:.3f}",
        "worth": "worth_ns",
        "": lambda s: percent(s.worth_ns / step if step else None, signed=True, decimals=1),
    }
    if 0 < len(result.by_stage) < result.ranks:  # otherwise every stage is one rank
        table(console, {"stage": "stage", **columns}, result.by_stage, title="Stages")
    of_rank: Mapping[str, ShownField] = {"rank": "rank", "stage": "stage"} if result.by_stage else {"rank": "rank"}
    table(console, {**of_rank, **columns}, sorted(result.by_rank, key=lambda r: -r.worth_ns), title="Ranks")
    table(console, {"class": "name", **columns}, result.by_class, *_MEANING, title="Classes of operations (over all ranks)")
    print_diagnostics(console, result.diagnostics)


def stragglers_headline(result: Stragglers) -> str:
    """The answer in one sentence."""
    return f"{count(result.ranks, 'rank')}: {a_step(result)}; slowdown {result.slowdown:.3f}"


def _print_findings(console: Console, result: Stragglers) -> None:
    findings, step = result.findings, result.replayed_step_ns
    if not findings:
        return
    heading(console, "Causes")
    for finding in findings[:MOST_FINDINGS]:
        at, off = finding.where, duration(finding.excess_ns)
        if finding.cause is StragglerCause.SLOW_WORK:
            what = f"rank {at.rank}: slow work, mostly {finding.name}: {off} a step longer than ideal"
        elif finding.cause is StragglerCause.SLOW_EXCHANGE:
            what = f"slow exchange, {finding.name}: {off} a step longer than ideal, summed over the ranks"
        else:
            what = f"rank {at.rank}: {finding.cause.replace('-', ' ')}, {short_name(finding.name)}: {off} a step"
        hidden = (finding.slowdown - 1) * result.ideal_step_ns > 2 * finding.worth_ns
        worth = f"worth {duration(finding.worth_ns)} ({percent(finding.worth_ns / step, decimals=1)})"
        if hidden:
            worth += f", as others are slow too: alone it would slow the ideal step {finding.slowdown:.3f} times"
        on = f" on rank {at.rank}" if finding.cause is StragglerCause.SLOW_EXCHANGE else ""
        task = "" if finding.name == at.task else f" ({short_name(at.task)})"
        paragraph(console, f"• {what}, {worth}; worst at {duration(at.start_ns)} of {at.step}{on}{task}")
    if len(findings) > MOST_FINDINGS:
        paragraph(console, f"and {len(findings) - MOST_FINDINGS} more; --json lists all")
