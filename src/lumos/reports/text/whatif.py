"""Print the answer of `lumos whatif`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lumos.reports.text.format import heading, paragraph, percent, print_diagnostics, print_trust, sentence, table
from lumos.reports.text.replay import PARTS_OF_STEP
from lumos.units import duration, size

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from rich.console import Console

    from lumos.analyze.trust import Trust
    from lumos.changes.answer import Answer
    from lumos.changes.grid import Cell
    from lumos.scripted.templates import ScriptCell

#: The parts of a step, by their keys in seconds.
PARTS_IN_SECONDS = {f"{key.removesuffix('_ns')}_s": label for key, label in PARTS_OF_STEP.items()}
#: The columns of what a change does.
_COLUMNS = ("", "base", "changed", "difference")


def print_answer(console: Console, answer: Answer) -> None:
    """Print the whole answer."""
    base, changed, share = answer.base, answer.outcome, answer.share
    sentence(console, whatif_headline(answer))
    print_trust(console, answer.trust)
    for change in answer.changes:
        paragraph(console, f"• {change}")
    before, after = base.breakdown._asdict(), changed.breakdown._asdict()
    parts = [_row(f"  {label}", before[key], after[key]) for key, label in PARTS_IN_SECONDS.items()]
    rows = [_row("step", base.step_time_s, changed.step_time_s), *parts, *_beside(answer)]
    interval = f"80 % interval {seconds(changed.step_time_low_s)} to {seconds(changed.step_time_high_s)}"
    kept = (
        f"of the changed step's critical path, {percent(share.measured, decimals=0)} keeps {answer.trust.timed()} times,"
        f" {percent(share.scaled, decimals=0)} scales them, {percent(share.modelled, decimals=0)} is modelled"
    )
    table(console, _COLUMNS, rows, interval, kept, title="Step")
    moved = [_row(c.what, c.base_s, c.changed_s) for c in answer.moved]
    table(console, _COLUMNS, moved, title="What moved on the critical path")
    if not moved:
        heading(console, "What moved on the critical path")
        paragraph(console, "nothing")
    print_diagnostics(console, answer.diagnostics)


def whatif_headline(answer: Answer) -> str:
    """The answer in one sentence."""
    base, changed = answer.base.step_time_s, answer.outcome.step_time_s
    change = percent((changed - base) / base, signed=True) if base else "–"
    measured = f"; {seconds(answer.measured_step_s)} {answer.trust.timed()}" if answer.measured_step_s is not None else ""
    return f"{seconds(changed)} a step instead of {seconds(base)} ({answer.base.basis}{measured}), {change}"


def seconds(value: float) -> str:
    """A time given in seconds."""
    return duration(value * 1e9)


def _beside(answer: Answer) -> Iterator[tuple[str, ...]]:
    """What stands beside the time: tokens, or samples, per second and device, and the peak of memory."""
    base, changed = answer.base, answer.outcome
    for label, before, after in (
        ("tokens/s per device", base.tokens_per_s_per_gpu, changed.tokens_per_s_per_gpu),
        ("samples/s per device", base.samples_per_s_per_gpu, changed.samples_per_s_per_gpu),
    ):
        if before and after:
            yield label, f"{before:,.0f}", f"{after:,.0f}", f"{after - before:+,.0f}"
            break
    was, now = base.memory.peak_bytes, changed.memory.peak_bytes
    if was is not None:
        more = "" if now is None else ("-" if now < was else "+") + size(abs(now - was))
        grade = f" ({base.memory.grade})" if base.memory.grade else ""
        yield f"peak memory{grade}", size(was), "unknown" if now is None else size(now), more


def _row(label: str, base: float, changed: float) -> tuple[str, ...]:
    sign = "+" if changed > base else ""
    return label, seconds(base), seconds(changed), f"{sign}{seconds(changed - base)}"


def print_grid(console: Console, cells: Sequence[Cell], trust: Trust) -> None:
    """Print how far the job can be trusted and every combination, the fastest first; then why some were refused or cannot be."""
    print_trust(console, trust)
    done = sorted((c for c in cells if c.step_time_s is not None), key=lambda c: c.step_time_s or 0.0)
    rows = [(*c.settings.values(), seconds(c.step_time_s or 0.0)) for c in done]
    table(console, (*cells[0].settings, "step"), rows)
    _print_refused(console, ((c.settings, c.refused or c.impossible) for c in cells))


def print_script_grid(console: Console, cells: Sequence[ScriptCell]) -> None:
    """Print every combination of a changed script, in their order, and why some were refused."""
    rows = [(*cell.values.values(), *_script_figures(cell)) for cell in cells if cell.step_time_s is not None]
    table(console, (*cells[0].values, "step", "80 % interval", "memory", "fits"), rows)
    _print_refused(console, ((c.values, c.refused) for c in cells))


def _print_refused(console: Console, cells: Iterable[tuple[dict[str, str], str]]) -> None:
    """Say of each combination that was refused why."""
    for values, why in cells:
        if why:
            paragraph(console, (", ".join(f"{key}={value}" for key, value in values.items()), "yellow"), f": {why}")


def _script_figures(cell: ScriptCell) -> tuple[str, ...]:
    low, high = cell.step_time_low_s or 0.0, cell.step_time_high_s or 0.0
    memory = "–" if cell.peak_bytes is None else size(cell.peak_bytes)
    fits = {None: "–", True: "yes", False: "no"}[cell.fits]
    return seconds(cell.step_time_s or 0.0), f"{seconds(low)} to {seconds(high)}", memory, fits
