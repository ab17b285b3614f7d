"""Print the answers of `lumos stragglers` and `lumos diagnose`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

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
    step_words,
    table,
)
from lumos.units import count, duration
from lumos.vocabulary import Grade

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.console import Console

    from lumos.analyze.ranks.stragglers import Stragglers
    from lumos.findings.finding import Diagnosis, Finding

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
    sentence(console, f"{count(result.ranks, 'rank')}: {a_step(result)}; slowdown {result.slowdown:.3f}")
    print_trust(console, result.trust)
    ideal = "equal work took equal time" + (" (mean over all ranks)" if result.ideal == "pooled-mean" else "")
    paragraph(
        console,
        f"means over {count(result.steps, 'step')}: {duration(result.measured_step_ns)} {result.trust.timed()}, "
        f"{duration(result.replayed_step_ns)} replayed, {duration(result.ideal_step_ns)} if {ideal}",
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


#: Two worths that differ by less than this share of the step are one.
SAME = 0.005
#: The most ranks that are named.
MOST_NAMED = 8


def print_diagnosis(console: Console, result: Diagnosis) -> None:
    """Print the answer: six lines a finding where its names are short. What is odd in the recording and moves no answer is in JSON."""
    sentence(console, diagnosis_headline(result))
    lacks = ", ".join(lack.code for lack in result.lacks)
    print_trust(console, result.trust, beside=f"; not recorded: {lacks} (--json says more)" if lacks else "")
    for number, finding in enumerate(result.findings[:MOST_FINDINGS], 1):
        _print_finding(console, number, finding, result.step_time_s)
    if len(result.findings) > MOST_FINDINGS:
        paragraph(console, f"and {len(result.findings) - MOST_FINDINGS} more; --json lists all")


def diagnosis_headline(result: Diagnosis) -> str:
    """The answer in one sentence."""
    step = step_words(1e9 * result.step_time_s, 1e9 * result.latency_s, result.basis)
    ranks = count(result.ranks, "rank")
    if not result.findings:
        return f"{ranks}: {step}; nothing found that is worth 2 % of it"
    return f"{ranks}: {step}; {count(len(result.findings), 'thing')} to fix"


def _print_finding(console: Console, number: int, finding: Finding, step_s: float) -> None:
    sentence(console, f"{number}. {' '.join(map(short_name, finding.title.split(' ')))}")
    low, high = duration(1e9 * finding.worth_low_s), duration(1e9 * finding.worth_high_s)
    grade = "" if finding.grade is Grade.SOUND else f"; {finding.grade}"
    interval = f"{'80 % interval ' if number == 1 else ''}{low} to {high}{grade}"
    worth = f"{duration(1e9 * finding.worth_s)} ({percent(finding.worth_s / step_s, decimals=1)}; {interval})"
    if number > 1 and abs(finding.worth_after_s - finding.worth_s) > SAME * step_s:
        worth += f", {duration(1e9 * finding.worth_after_s)} after the above"
    where = finding.where
    at = f"{where.step} at {duration(where.start_ns)}" if where.start_ns >= 0 else f"{duration(-where.start_ns)} before {where.step}"
    task = f"{at}, {_ranks(where.ranks)}: {short_name(where.task)}{where.script and f', in {where.script}'}"
    for word, text in (("worth", worth), ("where", task), ("why", finding.evidence), ("fix", finding.fix)):
        _print_line(console, word, text)
    _print_command(console, finding.command)


def _print_line(console: Console, word: str, text: str) -> None:
    """One line of a finding, indented under its word where it is wrapped."""
    lines = Text(text).wrap(console, console.width - 9)
    for i, line in enumerate(lines):
        line.rstrip()
        console.print(Text(f"  {word:<6} " if i == 0 else " " * 9).append_text(line))


def _print_command(console: Console, command: str) -> None:
    for i, line in enumerate(continued(command, console.width - 11)):
        console.print(Text(f"  {'show' if i == 0 else '':<6} {line}"), soft_wrap=True)


def continued(command: str, width: int) -> list[str]:
    """A command in lines of `width` characters and two more, to be copied together: each but the last ends in a backslash. A word that is
    longer has a line of its own."""
    lines = [""]
    for word in command.split(" "):
        if lines[-1] and len(lines[-1]) + 1 + len(word) > width:
            lines[-1] += " \\"
            lines.append("")
        lines[-1] += f" {word}" if lines[-1] else word
    return lines


def _ranks(ranks: tuple[int, ...]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if max(ranks) - min(ranks) == len(ranks) - 1:
        return f"ranks {min(ranks)} to {max(ranks)}"
    listed = ", ".join(map(str, ranks[:MOST_NAMED]))
    return f"ranks {listed}" + (f" and {len(ranks) - MOST_NAMED} more" if len(ranks) > MOST_NAMED else "")
