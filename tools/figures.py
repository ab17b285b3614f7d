"""The pages of figures, docs/accuracy.md and docs/performance.md: what they show is read from the files that the measuring scripts write.

    python -m tools.figures            writes both pages anew

A script writes all that it measured into a result file (`write_result`). Beside the result files, `page.toml` lists what the page shows of
them by capability: each figure with the line of the result file in which it stands. In that line `{reached}` stands in place of the figure,
`{target}` in place of what is to be reached, and `{}` in place of anything else. So no figure is typed twice, and a line that is gone is an
error.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tools.document import ROOT, markdown_table, write_section

LISTS = (ROOT / "validation" / "results" / "page.toml", ROOT / "benchmarks" / "results" / "page.toml")
NONE = "–"
_MISSED = " (missed)"
_PLACES = {r"\{reached\}": "(?P<reached>[^|\n]+?)", r"\{target\}": "(?P<target>[^|\n]+?)", r"\{\}": "[^|\n]*?"}
_NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")
_PARTS = re.compile(r"^(\d[\d,]*) of (\d[\d,]*)")


class Figure(NamedTuple):
    """A figure of a page: what it is of, which rows it was measured on, what is to be reached, what was, and whether that misses it."""

    what: str
    rows: str
    target: str
    reached: str
    missed: bool


def write_result(result: str | Path, text: str) -> None:
    """Put what a script measured into its result file (a path from the root, or absolute), and write the page of its folder anew.

    Text outside the markers of the file is kept. A file that is new begins with its name.
    """
    path = ROOT / result
    if not path.exists():
        path.write_text(f"# {path.stem}\n", encoding="utf-8")
    write_section(path, path.stem, text)
    listed = path.with_name("page.toml")
    if listed.exists():
        write_page(listed)


def write_page(listed: Path) -> None:
    """Write the page of one list of figures, and the figures for the README that it marks with `front`."""
    about = tomllib.loads(listed.read_text(encoding="utf-8"))
    (ROOT / about["page"]).write_text(page(listed), encoding="utf-8")
    if shown := front(about["capability"], listed.parent):
        write_section("README.md", "figures", _table(shown))


def front(capabilities: Sequence[dict[str, Any]], folder: Path) -> list[Figure]:
    """The figures for the README, in the order of the list."""
    chosen = [{**each, "figures": [listed for listed in each["figures"] if listed.get("front")]} for each in capabilities]
    return [figure for each in chosen for figure in figures(each, folder)]


def page(listed: Path) -> str:
    """The page that a list of figures asks for: for each capability what was asked, its figures, those that miss first, and its files."""
    about = tomllib.loads(listed.read_text(encoding="utf-8"))
    parts = [f"# {about['title']}", about["text"].strip()]
    chosen = [(capability, figures(capability, listed.parent)) for capability in about["capability"]]
    parts.append(markdown_table(("what", "figures with a goal", "missed"), [_count(each["name"], found) for each, found in chosen]))
    for capability, found in chosen:
        files = ", ".join(f"`{(listed.parent / name).relative_to(ROOT)}.md`" for name in capability["results"])
        parts += [f"## {capability['name']}", capability["text"].strip(), _table(found), f"Details: {files}."]
    return "\n\n".join(parts) + "\n"


def figures(capability: dict[str, Any], folder: Path) -> list[Figure]:
    """The figures of a capability as they are now, those that miss first. Raises ValueError where a line is not once in its file."""
    found = []
    for listed in capability["figures"]:
        path = folder / f"{listed.get('in', capability['results'][0])}.md"
        lines = [*line_pattern(listed["line"]).finditer(path.read_text(encoding="utf-8"))]
        if len(lines) != 1:
            raise ValueError(f"{path.name} has {len(lines)} lines like {listed['line']!r}, not one: mend page.toml beside it")
        target = listed.get("target") or lines[0].groupdict().get("target") or NONE
        reached = lines[0]["reached"].strip()
        missed = reached.endswith(_MISSED) or misses(target, reached)
        found.append(Figure(listed["what"], listed.get("rows", NONE), target.strip(), reached.removesuffix(_MISSED), missed))
    return sorted(found, key=lambda figure: not figure.missed)


def line_pattern(line: str) -> re.Pattern[str]:
    """The pattern of a line with its places: of a whole row where it begins with a bar, else of a part of a line."""
    pattern = re.escape(line)
    for place, group in _PLACES.items():
        pattern = pattern.replace(place, group)
    return re.compile(f"^{pattern}" if line.startswith("|") else pattern, re.MULTILINE)


def misses(target: str, reached: str) -> bool:
    """Whether what was reached misses the target: at most (≤), at least (≥), within, from–to, or all.

    Raises ValueError for a target in other words.
    """
    if target == NONE:
        return False
    bounds, value = _numbers(target), _value(reached, "%" in target)
    if target == "all":
        return value < 1
    if "≤" in target or target.startswith("within"):
        return value > bounds[0]
    if "≥" in target:
        return value < bounds[0]
    if "±" in target:
        return abs(value - bounds[0]) > bounds[1]
    if len(bounds) == 2:
        return not bounds[0] <= value <= bounds[1]
    raise ValueError(f"what is to be reached cannot be compared: {target!r}")


def _value(reached: str, percent: bool) -> float:
    """The first number; of "3 of 4" the share."""
    parts = _PARTS.match(reached)
    if parts is None:
        return _numbers(reached)[0]
    part, whole = (_numbers(number)[0] for number in parts.groups())
    return part / whole * (100 if percent else 1)


def _numbers(text: str) -> list[float]:
    return [float(number.replace(",", "")) for number in _NUMBER.findall(text)]


def _count(name: str, found: Sequence[Figure]) -> tuple[str, str, str]:
    return f"[{name}](#{re.sub(r'[^a-z0-9 -]', '', name.lower()).replace(' ', '-')})", *(
        str(sum(is_so(figure) for figure in found)) for is_so in (lambda f: f.target != NONE, lambda f: f.missed)
    )


def _table(found: Sequence[Figure]) -> str:
    """The table of the figures; without the column of rows where none says on which rows it was measured."""
    with_rows = any(figure.rows != NONE for figure in found)
    head = ("figure", *(["rows"] if with_rows else []), "to reach", "reached")
    rows = [
        (f.what, *([f.rows] if with_rows else []), f.target, f"**{f.reached}, missed**" if f.missed else f.reached) for f in found
    ]
    return markdown_table(head, rows)


def main() -> int:
    for listed in LISTS:
        write_page(listed)
    return 0


if __name__ == "__main__":
    sys.exit(main())
