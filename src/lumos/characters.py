"""Text for terminals and pipes that cannot show every character, or that would obey some.

Where standard output is no UTF-8 (LANG=C, an old log viewer), characters that Lumos itself writes become plain ones that mean the same;
any other, such as one in a name of a trace, is shown escaped. So are, everywhere, the characters of names that move the cursor, colour
what follows or turn the direction of writing: text for people shows what a name is, and JSON has it as it was recorded.
"""

import codecs
import io
import os
import re
import sys
from pathlib import Path

#: What Lumos writes beside ASCII, and what stands for it.
PLAIN = {
    "•": "*", "×": "x", "·": ".", "µ": "u", "±": "+-", "≤": "<=", "≥": ">=", "≈": "~", "−": "-", "–": "-", "—": "-", "…": "...",
    "→": "->", "←": "<-", "↔": "<->", "─": "-", "━": "-", "│": "|", "╶": "-", "╴": "-", "╺": "-", "╸": "-", "“": '"', "”": '"', "’": "'",
}  # fmt: skip


#: Control characters but tab and end of line, those that set the direction of writing (Unicode Standard Annex 9, section 2), and halves of
#: surrogate pairs.
_OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


_WHOLE = re.compile("[0-9]{1,19}")


def visible(text: str) -> str:
    """The text with escapes in place of the characters that a terminal would obey instead of showing."""
    return _OBEYED.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def is_whole(text: str) -> bool:
    """Whether the text is a whole number of digits 0 to 9, no more than 64 bits hold. `str.isdigit` also holds for digits that `int`
    refuses (²), and for more of them than it reads."""
    return _WHOLE.fullmatch(text) is not None


def plain_characters(error: UnicodeError) -> tuple[str, int]:
    """The error handler of encoders: plain characters for one that cannot be encoded, or its escape, and where to go on."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    cut = error.object[error.start : error.end]
    return "".join(PLAIN.get(c) or c.encode("ascii", "backslashreplace").decode() for c in cut), error.end


def open_closed_streams() -> None:
    """Give standard streams that the caller closed (`>&-`) a place where nothing is kept, so that no other file takes their numbers."""
    for name, how in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(how))  # noqa: SIM115  # open as long as the process


def show_any_text() -> None:
    """Let standard output and standard error take any text, also half a surrogate pair, which not even UTF-8 holds."""
    codecs.register_error("lumos-plain", plain_characters)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="lumos-plain")
