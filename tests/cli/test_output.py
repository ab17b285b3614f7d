from __future__ import annotations

import io
import json
import sys
from dataclasses import dataclass
from typing import NamedTuple

from lumos.cli import output


class Pair(NamedTuple):
    first: int
    second: str | None


@dataclass(frozen=True, slots=True)
class Outer:
    pairs: tuple[Pair, ...]
    share: float


def test_values_become_objects_by_field_name(capfd):
    output.write_json({"outer": Outer((Pair(1, None), Pair(2, "x")), float("nan"))})
    expected = {"outer": {"pairs": [{"first": 1, "second": None}, {"first": 2, "second": "x"}], "share": None}}
    sys.stdout.flush()
    assert json.loads(capfd.readouterr().out) == expected


def test_half_a_surrogate_pair_does_not_stop_the_answer(capfd):
    output.write_json({"name": "ge\ud800mm"})
    sys.stdout.flush()
    assert json.loads(capfd.readouterr().out) == {"name": "ge?mm"}


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_no_progress_without_a_terminal(monkeypatch):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert output.progress("reading") is None


def test_progress_on_a_terminal_is_cleared_at_the_end(monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(output, "PATIENCE_S", -1.0)
    show = output.progress("reading")
    show(1, 4)
    assert terminal.getvalue() == "\rreading  25%"
    show(4, 4)
    assert terminal.getvalue().endswith("\r\x1b[K")


def test_short_work_shows_no_progress(monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    show = output.progress("reading")
    show(1, 4)
    show(4, 4)
    assert terminal.getvalue() == ""
