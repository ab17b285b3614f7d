"""Generated sections of the documents: a script owns the text between `<!-- name -->` and `<!-- /name -->`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def write_section(document: str | Path, name: str, text: str) -> None:
    """Replace the section `name` of `document` (a path from the root, or absolute), or append it where there is none yet."""
    path = ROOT / document
    opening, closing = f"<!-- {name} -->", f"<!-- /{name} -->"
    before = path.read_text(encoding="utf-8") if path.exists() else ""
    body = f"{opening}\n{text.strip()}\n{closing}"
    if opening in before and closing in before:
        head, rest = before.split(opening, 1)
        after = head + body + rest.split(closing, 1)[1]
    else:
        after = f"{before.rstrip()}\n\n{body}\n".lstrip()
    path.write_text(after, encoding="utf-8")


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; the first column is left-aligned, the others right-aligned."""
    lines = [f"| {' | '.join(head)} |", "|" + "|".join(["---"] + ["--:"] * (len(head) - 1)) + "|"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])
