"""Text for terminals and pipes that cannot show every character.

Where standard output is no UTF-8 (LANG=C, an old log viewer), characters that Lumos itself writes become plain ones that mean the same;
any other, such as one in a name of a trace, is shown escaped.
"""

from __future__ import annotations

import codecs
import io
import sys

#: What Lumos writes beside ASCII, and what stands for it.
PLAIN = {
    "•": "*", "×": "x", "·": ".", "µ": "u", "±": "+-", "≤": "<=", "≥": ">=", "≈": "~", "−": "-", "–": "-", "—": "-", "…": "...",
    "→": "->", "←": "<-", "↔": "<->", "─": "-", "━": "-", "│": "|", "╶": "-", "╴": "-", "╺": "-", "╸": "-", "“": '"', "”": '"', "’": "'",
}  # fmt: skip


def plain_characters(error: UnicodeError) -> tuple[str, int]:
    """The error handler of encoders: plain characters for one that cannot be encoded, or its escape, and where to go on."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    cut = error.object[error.start : error.end]
    return "".join(PLAIN.get(c) or c.encode("ascii", "backslashreplace").decode() for c in cut), error.end


def show_any_text() -> None:
    """Let standard output and standard error take any text, also half a surrogate pair, which not even UTF-8 holds."""
    codecs.register_error("lumos-plain", plain_characters)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="lumos-plain")
