"""Results as text for people: a sentence that says the answer, then tables that fit 80 columns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Literal

from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from lumos.diagnostics import Diagnostic

#: Rows of a table before the rest is only counted.
MOST_ROWS = 24


def duration(ns: float | None) -> str:
    """A time in the unit that suits it."""
    if ns is None:
        return "–"
    for unit, size in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)):
        if abs(ns) >= size:
            return f"{ns / size:.{_decimals(abs(ns) / size)}f} {unit}"
    return f"{ns:.0f} ns"


def size(nbytes: float) -> str:
    """An amount of memory in the binary unit that suits it."""
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if nbytes >= scale:
            return f"{nbytes / scale:.{_decimals(nbytes / scale)}f} {unit}"
    return f"{nbytes:.0f} B"


def percent(fraction: float | None, *, signed: bool = False, decimals: int = 2) -> str:
    """A fraction in percent; a dash over nothing."""
    if fraction is None:
        return "–"
    sign = "+" if signed else ""
    return f"{100 * fraction:{sign}.{decimals}f} %"


def count(number: int, noun: str) -> str:
    """A number and its noun, in the plural where it is one."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def heading(console: Console, text: str) -> None:
    console.print()
    console.print(Text(text, style="bold"))


def table(console: Console, columns: Sequence[str], rows: Sequence[Sequence[str]], left: Iterable[int] = (0,)) -> None:
    """A table; numbers right-aligned, the columns in `left` (text) left-aligned and cut where the width ends."""
    grid = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1), header_style="bold", show_edge=False)
    left = set(left)
    for i, name in enumerate(columns):
        justify: Literal["left", "right"]
        justify, least = ("left", 6) if i in left else ("right", len(name))
        grid.add_column(Text(name), justify=justify, no_wrap=True, overflow="ellipsis", min_width=least)
    for row in rows[:MOST_ROWS]:
        grid.add_row(*(Text(cell) for cell in row))
    console.print(Padding(grid, (0, 0, 0, 2)))
    if len(rows) > MOST_ROWS:
        console.print(f"  … and {len(rows) - MOST_ROWS:,} more; --json lists all")


def print_diagnostics(console: Console, diagnostics: Sequence[Diagnostic]) -> None:
    """What is odd or missing, one finding a paragraph."""
    if not diagnostics:
        return
    heading(console, "What is odd or missing in the input")
    for finding in diagnostics[:MOST_ROWS]:
        line = Text("• ")
        line.append(finding.code, style="yellow")
        line.append(f": {finding.message}")
        console.print(Padding(line, (0, 0, 0, 2)))
    if len(diagnostics) > MOST_ROWS:
        console.print(f"  … and {len(diagnostics) - MOST_ROWS:,} more; --json lists all")


def _decimals(value: float) -> int:
    return 1 if value >= 100 else 2
