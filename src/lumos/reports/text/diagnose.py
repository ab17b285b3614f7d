"""Print the answer of `lumos diagnose`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from lumos.reports.text.format import paragraph, percent, print_trust, sentence, short_name, step_words
from lumos.reports.text.stragglers import MOST_FINDINGS
from lumos.units import count, duration
from lumos.vocabulary import Grade

if TYPE_CHECKING:
    from rich.console import Console

    from lumos.findings.finding import Diagnosis, Finding

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
