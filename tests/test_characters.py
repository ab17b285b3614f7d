"""What is printed where the terminal cannot show every character."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from validation.robust_inputs import recording

from lumos.characters import PLAIN, is_whole, plain_characters, visible

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "faults" / "extra-work"
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


def test_what_a_terminal_would_obey_is_escaped():
    assert visible("a\tb\n\x1b[2J\r\x9b\x7f\u202ec\u2066\ud83d é→") == "a\tb\n\\x1b[2J\\r\\x9b\\x7f\\u202ec\\u2066\\ud83d é→"


def test_a_whole_number_is_one_that_int_reads_and_64_bits_hold():
    assert all(map(is_whole, ("0", "007", "9" * 19)))
    assert not any(map(is_whole, ("", "-1", "1.0", "1_0", " 1", "²", "٣", "9" * 20, "9" * 5000)))


HOSTILE = "\x1b[31m\u202egemm\ud83d"


@pytest.mark.parametrize(
    "words", ["breakdown", "critical-path", "compare SOUND", "whatif --force --drop zzz", "replay", "diagnose --force"]
)
def test_no_name_of_a_trace_steers_a_terminal(tmp_path, words):
    result = recording()
    for row in result["traceEvents"]:
        row["name"] = row["name"].replace("gemm", HOSTILE)
    (tmp_path / "rank0.json").write_text(json.dumps(result))
    trace, sound = str(tmp_path / "rank0.json"), tmp_path / "sound.json"
    sound.write_text(json.dumps(recording()))
    verb, *rest = words.replace("SOUND", str(sound)).split()
    code = f"import sys; sys.argv = ['lumos', {verb!r}, {trace!r}, *{rest!r}]; from lumos.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, env={**os.environ, "COLUMNS": "80"}, check=False)
    written = (done.stdout + done.stderr).decode()
    assert "Traceback" not in written and not set(written) & {"\x1b", "\u202e"}
    assert "\\x1b[31m\\u202e" in written or words in ("replay", "diagnose --force")


def test_what_stands_for_a_sign_is_plain_itself():
    assert all(text.isascii() for text in PLAIN.values())


@pytest.mark.parametrize("verb", PRINTED)
def test_every_sign_that_a_verb_prints_has_a_plain_one(verb):
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii", "COLUMNS": "80"}
    code = f"import sys; sys.argv = ['lumos', {verb!r}, {str(EXAMPLE)!r}]; from lumos.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, env={**os.environ, **plain}, check=False)
    assert done.returncode == 0 and not done.stderr
    assert done.stdout.isascii() and b"\\u" not in done.stdout and b"\\x" not in done.stdout
