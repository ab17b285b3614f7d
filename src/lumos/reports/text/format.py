"""Print results as text for people: a sentence with the answer, then tables that fit 80 columns, or lists on narrower terminals."""

from __future__ import annotations

import re
from collections.abc import Mapping
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from rich import box
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from lumos.characters import PLAIN, visible
from lumos.result import cut
from lumos.units import count, duration, size
from lumos.vocabulary import Basis, Grade

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from rich.console import Console

    from lumos.analyze.breakdown import StepBreakdown
    from lumos.analyze.critical_path import CriticalPath
    from lumos.analyze.loop.steps import JobTime
    from lumos.analyze.ranks.stragglers import Stragglers
    from lumos.analyze.replay import ReplayResult, StepReplay
    from lumos.analyze.trust import Trust
    from lumos.diagnostics import Diagnostic

    #: What has the time of a job's step, and a step as tables list it.
    Stepped: TypeAlias = JobTime | ReplayResult | Stragglers
    StepRow: TypeAlias = StepBreakdown | StepReplay | CriticalPath

#: The most rows of a table; the rest is only counted.
MOST_ROWS = 24

#: Width of the space between two columns of a table, in characters.
GUTTER = 3

#: Width of the space before a table or paragraph, in characters.
INDENT = 2

#: A column of text is not made narrower than this, in characters, because what is left of a name would say nothing.
LEAST_TEXT = 16


def percent(fraction: float | None, *, signed: bool = False, decimals: int = 2) -> str:
    """A fraction in percent; a dash for None."""
    if fraction is None:
        return "–"
    sign = "+" if signed else ""
    return f"{round(100 * fraction, decimals) + 0.0:{sign}.{decimals}f} %"


def share_of(part: float, whole: float) -> str:
    """The share that a part has of a time; a dash where that is none, as of a step that wrong times make complete before the one before."""
    return percent(part / whole if whole > 0 else None, decimals=1)


def a_step(of: Stepped) -> str:
    """The time of a job's step and what it is: "95.57 ms a step (period; latency 184.4 ms)" or "20.65 ms a step (latency)"."""
    return step_words(of.step_time_ns, of.latency_ns, of.basis)


def step_words(step_time_ns: float, latency_ns: float, basis: Basis) -> str:
    """The same of its figures."""
    kind = f"period; latency {duration(latency_ns)}" if basis is Basis.PERIOD else "latency"
    return f"{duration(step_time_ns)} a step ({kind})"


#: What the mark of a step says that does not count.
_MARKS = {
    "*": "* latency, as the recording lacks the step before it; it does not count",
    "†": "† the first step, one in which something happens once, or one outside the longest run; it does not count",
}


def _mark(step: StepRow, basis: Basis) -> str:
    return "*" if step.basis is not basis else "" if step.counts else "†"


def marked(basis: Basis) -> Callable[[StepRow], str]:
    """The column with the name of a step, and the mark of one that does not count, in a job whose step is of that basis."""
    return lambda step: f"{step.name} {_mark(step, basis)}".rstrip()


def marks(steps: Iterable[StepRow], basis: Basis) -> list[str]:
    """What the marks of these steps mean, as notes below their table."""
    used = {_mark(step, basis) for step in steps}
    return [meaning for mark, meaning in _MARKS.items() if mark in used]


def heading(console: Console, text: str) -> None:
    """Print a blank line, and `text` as the title of what follows."""
    console.print()
    console.print(Text(text, style="bold"))


#: A number with its unit, two of them as a range, or the dash in the place of one.
_NUMBER = r"[-+×]? ?\d[\d.,]*(e[-+]?\d+)?( ?[^\s\d]\S{0,7})?"
_NUMERIC = re.compile(rf"{_NUMBER}((–| … | to | of ){_NUMBER})?|–")
#: A column: the field of a row that it shows, or what gives its text.
ShownField: TypeAlias = "str | Callable[[Any], str]"


def table(
    console: Console,
    columns: Mapping[str, ShownField] | Sequence[str],
    rows: Sequence[Any],
    *notes: str,
    title: str = "",
    most: int = MOST_ROWS,
    whole: bool = False,
) -> None:
    """Print a table with a line for each row, its title above and its notes below; nothing where there is no row.

    columns: by their titles; where only these are given, rows are their cells. How a field is written follows from its name and its type:
    times and sizes by their endings, whole numbers with their thousands, other numbers as shares in percent. A column of text is cut where
    the width of the console ends, or with `whole` continued in the next line. A column mostly of numbers stands at
    the right and is never cut: where the console is too narrow for that, the rows are a list, in which each cell follows its column's name.

    Rows after the first `most` are only counted.
    """
    if not rows:
        return
    fields = columns.values() if isinstance(columns, Mapping) else range(len(columns))
    names = tuple(columns)
    shown = [[visible(_text(row, of)) for of in fields] for row in rows[:most]]
    left = {i for i, column in enumerate(zip(*shown, strict=True)) if 2 * len([*filter(_NUMERIC.fullmatch, column)]) < len(column)}
    if title:
        heading(console, title)
    widths = _widths(console.width - INDENT, names, shown, left)
    if widths is None:
        for row in shown:
            _print_list(console, names, row, left, whole)
    else:
        _print_grid(console, names, shown, left, whole, widths)
    if len(rows) > most:
        console.print(f"  … and {len(rows) - most:,} more; --json lists all")
    for note in notes:
        paragraph(console, note)


def print_shares(console: Console, title: str, times_ns: Mapping[str, float], total_ns: float) -> None:
    """Print the parts of a time, and the share that each has of the whole."""
    table(
        console,
        ("", "time", "of the step"),
        [(part, duration(ns), share_of(ns, total_ns)) for part, ns in times_ns.items()],
        title=title,
    )


def _text(row: Any, column: ShownField | int) -> str:
    if callable(column):
        return column(row)
    value = row[column] if isinstance(column, int) else attrgetter(column)(row)
    if value is None or isinstance(value, str):
        return "–" if value is None else value
    if isinstance(column, str) and column.endswith(("_ns", "_bytes")):
        return duration(value) if column.endswith("_ns") else size(value)
    return f"{value:,}" if isinstance(value, int) else percent(value, decimals=1)


def _print_grid(
    console: Console, columns: Sequence[str], rows: Sequence[Sequence[str]], left: set[int], whole: bool, widths: Sequence[int]
) -> None:
    """Print rows as a table with columns of the given widths."""
    grid = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1), header_style="bold", show_edge=False)
    for i, name in enumerate(columns):
        justify: Literal["left", "right"] = "left" if i in left else "right"
        grid.add_column(Text(name), justify=justify, no_wrap=not whole, overflow="ellipsis", width=widths[i])
    for row in rows:
        grid.add_row(*(Text(cell) if whole else _fitting(console, cell, width) for cell, width in zip(row, widths, strict=True)))
    console.print(Padding(grid, (0, 0, 0, INDENT), expand=False))


def _print_list(console: Console, columns: Sequence[str], row: Sequence[str], left: set[int], whole: bool) -> None:
    """Print one row as cells with the names of their columns, as many in a line as fit; lines after the first are further indented."""
    line = Text(" " * INDENT)
    for i, (name, cell) in enumerate(zip(columns, row, strict=True)):
        if not cell:
            continue
        title = f"{name} " if name else ""
        part = Text.assemble((title, "bold"), cell)
        if len(line) > 2 * INDENT and len(line) + INDENT + len(part) > console.width:
            console.print(line)
            line = Text(" " * 2 * INDENT)
        elif line.plain.strip():
            line.append(" " * INDENT)
        if i in left and not whole:
            part = Text.assemble((title, "bold"), _fitting(console, cell, console.width - len(line) - len(title)))
        line.append_text(part)
    for piece in line.wrap(console, console.width):
        console.print(piece)


def _fitting(console: Console, cell: str, width: int) -> Text:
    """The cell in that width; where it is cut, with the mark for it that the console can show."""
    text, mark = Text(cell), "…" if console.encoding.lower().startswith("utf") else PLAIN["…"]
    if text.cell_len > width:
        text.truncate(max(width - len(mark), 0))
        text.append(mark)
    return text


def sentence(console: Console, text: str) -> None:
    """Print the answer, in bold and wrapped; it comes before everything else."""
    _print_wrapped(console, Text(text, style="bold"), 0)


def paragraph(console: Console, *parts: str | tuple[str, str]) -> None:
    """Print indented, wrapped text; a part may be (text, style)."""
    _print_wrapped(console, Text.assemble(*parts), INDENT)


def _print_wrapped(console: Console, text: Text, indent: int) -> None:
    """Print the lines of a text without the blanks at their ends."""
    for line in text.wrap(console, console.width - indent):
        line.rstrip()
        console.print(Text(" " * indent).append_text(line))


#: How the grades of trust are shown.
_GRADE_STYLES = {Grade.SOUND: "green", Grade.LIMITED: "yellow", Grade.UNSOUND: "red"}


def print_trust(console: Console, trust: Trust, whose: str = "", beside: str = "") -> None:
    """Print how far the answer can be trusted, the gravest reason, and what else is to say. whose: which of several jobs is meant."""
    others = len(trust.reasons) - 1
    more = f"; {count(others, 'more reason')} in --json" if others > 0 else ""
    why = f": {trust.why}{more}" if trust.why else ""
    paragraph(console, f"trust{whose}: ", (trust.grade, _GRADE_STYLES[trust.grade]), why + beside)


#: The most characters of a task's name in a sentence.
LONGEST_TASK = 48


def short_name(task: str) -> str:
    """A task's name as sentences have it."""
    return cut(kernel_name(task), LONGEST_TASK)


def kernel_name(name: str) -> str:
    """A kernel's name without the words that most kernels' names begin with."""
    for word in ("void ", "at::native::", "(anonymous namespace)::"):
        name = name.replace(word, "")
    return name


def print_diagnostics(console: Console, diagnostics: Sequence[Diagnostic]) -> None:
    """Print what is odd or missing: for each kind of finding a paragraph with the first, and how many more there are."""
    if not diagnostics:
        return
    heading(console, "What is odd or missing in the input")
    first: dict[str, Diagnostic] = {}
    for finding in diagnostics:
        first.setdefault(finding.code, finding)
    for code, finding in first.items():
        others = sum(d.code == code for d in diagnostics) - 1
        more = f" (and {others} more like it; --json lists all)" if others else ""
        paragraph(console, "• ", (code, "yellow"), f": {finding.message}{more}")


def _widths(available: int, columns: Sequence[str], rows: Sequence[Sequence[str]], text: set[int]) -> list[int] | None:
    """The width of each column: that of its longest cell. Where they do not fit, the widest columns of text are narrowed; None where
    that is not enough."""
    widths = [max(len(name), *(len(row[i]) for row in rows), 0) for i, name in enumerate(columns)]
    over = sum(widths) + GUTTER * (len(columns) - 1) - available
    while over > 0:
        widest = max(text, key=lambda i: widths[i], default=None)
        if widest is None:
            return None
        second = max((widths[i] for i in text if widths[i] < widths[widest]), default=0)
        cut = min(over, widths[widest] - max(second, len(columns[widest]), LEAST_TEXT))
        if cut <= 0:
            return None
        widths[widest] -= cut
        over -= cut
    return widths
