"""The command line, run as a user does; and profiler files small enough to check by hand."""

import json
import sys
from functools import partial
from typing import NamedTuple

import pytest
from tests.steps_alike import write_rank


class Done(NamedTuple):
    """What a command left behind."""

    status: int
    out: str
    err: str

    @property
    def json(self):
        return json.loads(self.out)


@pytest.fixture
def lumos(monkeypatch, capfd):
    """Run `lumos ARGUMENTS…`."""

    def run(*arguments):
        from lumos.cli import fitting, main

        monkeypatch.setattr(fitting, "_error_width", lambda: None)  # messages as a pipe gets them, each in one line
        monkeypatch.setenv("COLUMNS", "80")
        monkeypatch.setattr(sys, "argv", ["lumos", *map(str, arguments)])
        with pytest.raises(SystemExit) as left:
            main()
        out, err = capfd.readouterr()
        return Done(left.value.code or 0, out, err)

    return run


@pytest.fixture
def trace(tmp_path):
    """Write a profiler file of a rank."""
    return partial(write_rank, tmp_path)


@pytest.fixture
def interrupted(trace):
    """A profiler file of five steps. Before the fourth Python pauses for 2000 µs, so that its period is 3000 µs, the others' 1000 µs."""
    path = trace(steps=5)
    recorded = json.loads(path.read_text())
    for row in recorded["traceEvents"]:
        row["ts"] += 2000 if row["ts"] >= 3000 else 0
    path.write_text(json.dumps(recorded))
    return path
