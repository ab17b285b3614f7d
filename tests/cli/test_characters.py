"""What is printed where the terminal cannot show every character."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lumos.cli.characters import PLAIN, plain_characters

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "faults" / "extra-work"
PRINTED = ("inspect", "diagnose", "replay", "breakdown", "critical-path", "stragglers")


def test_signs_become_plain_ones_and_names_are_escaped():
    def written(text):
        try:
            return text.encode("ascii").decode()
        except UnicodeEncodeError as error:
            plain, end = plain_characters(error)
            return text[: error.start] + plain + written(text[end:])

    assert written("3 × 2 ≤ 7 µs… “done” → Grün") == '3 x 2 <= 7 us... "done" -> Gr\\xfcn'
    assert plain_characters(UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogate")) == ("\\ud800", 1)


def test_what_stands_for_a_sign_is_plain_itself():
    assert all(text.isascii() for text in PLAIN.values())


@pytest.mark.parametrize("verb", PRINTED)
def test_every_sign_that_a_verb_prints_has_a_plain_one(verb):
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii", "COLUMNS": "80"}
    code = f"import sys; sys.argv = ['lumos', {verb!r}, {str(EXAMPLE)!r}]; from lumos.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, env={**os.environ, **plain}, check=False)
    assert done.returncode == 0 and not done.stderr
    assert done.stdout.isascii() and b"\\u" not in done.stdout and b"\\x" not in done.stdout
