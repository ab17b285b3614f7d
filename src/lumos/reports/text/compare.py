"""Print the answer of `lumos compare`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lumos.analyze.compare import Verdict
from lumos.reports.text.format import (
    ShownField,
    heading,
    kernel_name,
    paragraph,
    percent,
    print_diagnostics,
    print_trust,
    sentence,
    step_words,
    table,
)
from lumos.reports.text.replay import PARTS_OF_STEP
from lumos.units import count, duration
from lumos.vocabulary import Basis

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import Console

    from lumos.analyze.compare import Amount, Change, Comparison, Regression, Side

#: The most rows of each table.
MOST_COSTLY = 12

#: The words for rows that are in only one of the two runs.
_STATUS = {"appeared": "new", "vanished": "gone"}
_PLURAL = {Basis.PERIOD: "periods", Basis.LATENCY: "latencies"}


def print_comparison(console: Console, paths: tuple[str, str], result: Comparison) -> None:
    """Print the whole answer."""
    sentence(console, compare_headline(result))
    if result.regression is not None:
        sentence(console, slowdown(result.regression))
    for letter, path, side in zip("AB", paths, (result.a, result.b), strict=True):
        paragraph(console, f"{letter}: {path}, {_who(side)}")
        print_trust(console, side.trust, f" in {letter}")
    _print_parts(console, result)
    _print_operators(console, result.operators)
    _print_changes(console, "Kernels and copies", result.kernels)
    _print_changes(console, "Collectives, waiting included", result.collectives)
    console.print()
    console.print("  counts and times are means over the steps of all ranks; --json lists every row")
    print_diagnostics(console, result.diagnostics)


def compare_headline(result: Comparison) -> str:
    """What changed most, in a sentence."""
    a, b = result.a, result.b
    change = "" if result.change is None else f", {percent(result.change, signed=True, decimals=1)}"
    times = [duration(side.step_time_ns) for side in (a, b)]
    if a.basis is b.basis:
        steps = f"A takes {times[0]} a step, B {times[1]} ({_PLURAL[a.basis]}){change}"
    else:
        steps = f"A takes {times[0]} a step ({a.basis}), B {times[1]} ({b.basis}){change}"
    parts = {label: b.breakdown[key] - a.breakdown[key] for key, label in PARTS_OF_STEP.items()}
    most = max(parts, key=lambda label: abs(parts[label]))
    return f"{steps}: {signed(parts[most])} {most}" if parts[most] else steps


def slowdown(regression: Regression) -> str:
    """Whether B is slower than was allowed, and how far the recordings can tell."""
    change = f"{percent(regression.change, signed=True, decimals=1)} ± {percent(regression.noise, decimals=1)}"
    allowed = percent(regression.allowed, decimals=1)
    said = {
        Verdict.SLOWER: f"failed: B is slower by more than {allowed}, beyond the noise ({change})",
        Verdict.WITHIN: f"passed: B is not slower by more than {allowed} ({change})",
        Verdict.UNDECIDED: f"passed, but not shown: whether B is slower by more than {allowed} is within the noise ({change})",
    }[regression.verdict]
    more = f"; about {regression.steps_needed:,} steps of each would show {allowed}" if regression.steps_needed is not None else ""
    return said + more


def signed(ns: float) -> str:
    """A difference of times, with its sign; a dash for none."""
    return f"{'+' if ns > 0 else '-'}{duration(abs(ns))}" if ns else "–"


def _who(side: Side) -> str:
    ranks = count(side.ranks, "rank")
    steps = side.steps[0] if len(side.steps) == 1 else count(len(side.steps), "step")
    varies = "" if side.variation is None else f", which vary by {percent(side.variation, decimals=1)}"
    return f"{ranks}, {steps}{varies}: {step_words(side.step_time_ns, side.latency_ns, side.basis)}"


def _print_parts(console: Console, result: Comparison) -> None:
    a, b = result.a, result.b
    rows = [
        (label, duration(a.breakdown[key]), duration(b.breakdown[key]), signed(b.breakdown[key] - a.breakdown[key]))
        for key, label in PARTS_OF_STEP.items()
    ]
    rows.append(("step", duration(a.step_time_ns), duration(b.step_time_ns), signed(result.change_ns)))
    times = f"of a step's time, devices ran nothing but work of other steps: A {duration(a.other_steps_ns)}, B {duration(b.other_steps_ns)}"
    notes = [times] if a.other_steps_ns or b.other_steps_ns else []
    mean = " (mean over the ranks)" if max(a.ranks, b.ranks) > 1 else ""
    table(console, ("", "A", "B", "difference"), rows, *notes, title=f"Where the time of the step goes{mean}")


def _print_operators(console: Console, rows: Sequence[Change]) -> None:
    columns: Mapping[str, ShownField] = {
        "operator": "name",
        "calls A": lambda row: _number(row.before),
        "calls B": lambda row: _number(row.after),
        "device": lambda row: signed(_part(row.after, "time_ns") - _part(row.before, "time_ns")),
        "CPU": lambda row: signed(_part(row.after, "cpu_ns") - _part(row.before, "cpu_ns")),
    }
    _print_rows(console, "Operators: the device work that they launch, and their own CPU time", columns, rows)


def _print_changes(console: Console, title: str, rows: Sequence[Change]) -> None:
    columns: Mapping[str, ShownField] = {
        "name": lambda row: kernel_name(row.name),
        "in A": lambda row: _number(row.before),
        "in B": lambda row: _number(row.after),
        "time A": lambda row: duration(_part(row.before, "time_ns") or None),
        "time B": lambda row: duration(_part(row.after, "time_ns") or None),
        "cost": lambda row: signed(row.cost_ns),
    }
    _print_rows(console, title, columns, rows)


def _print_rows(console: Console, title: str, columns: Mapping[str, ShownField], rows: Sequence[Change]) -> None:
    """The rows that cost most, with a word for those that are in only one of the two runs, and what the others cost together."""
    if not rows:
        return
    changed = [row for row in rows if row.status != "same"]
    shown, rest = changed[:MOST_COSTLY], changed[MOST_COSTLY:]
    if any(row.status in _STATUS for row in shown):
        columns = {**columns, "": lambda row: _STATUS.get(row.status, "")}
    statuses = [f"{number} {status}" for status in ("appeared", "vanished", "changed") if (number := sum(r.status == status for r in rest))]
    more = [f"and {', '.join(statuses)}, {signed(sum(row.cost_ns for row in rest))} all together"] if rest else []
    if shown:
        table(console, columns, shown, *more, title=title)
    else:
        heading(console, title)
        console.print("  nothing changed")


def _number(amount: Amount | None) -> str:
    return "–" if amount is None else f"{amount.runs:,.4g}" if amount.runs < 1e4 else f"{amount.runs:,.0f}"


def _part(amount: Amount | None, key: str) -> float:
    return 0.0 if amount is None else getattr(amount, key) or 0.0
