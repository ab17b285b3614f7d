"""Stages of long work on a terminal."""

import io
import signal
import subprocess
import sys
import time

import pytest

from lumos.cli import progress as module
from lumos.cli.progress import Shown, progress
from lumos.emulation import facade
from lumos.stages import stage, watched

pty = pytest.importorskip("pty", reason="this system has no pseudo-terminals")


class Terminal(io.StringIO):
    def isatty(self):
        return True


def on_a_terminal(monkeypatch):
    """Standard error as a terminal. No fixture, because pytest puts its own back in place before it calls the test."""
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    return terminal


def drawn(shown):
    """The display once it is there."""
    end = time.monotonic() + 20
    while shown._drawn is None and time.monotonic() < end:
        time.sleep(0.01)
    return shown._drawn


def test_a_long_stage_is_shown_with_the_part_that_runs_and_then_cleared(monkeypatch):
    terminal = on_a_terminal(monkeypatch)
    monkeypatch.setattr(module, "PATIENCE_S", 0.01)
    shown = Shown()
    with watched(shown), stage("diagnosing"):
        assert drawn(shown) is not None
        with stage("building the graph"), stage("a detail"):
            assert shown.stage == "diagnosing: building the graph"
            shown._drawn.refresh()
            assert "diagnosing: building the graph" in terminal.getvalue()
    assert shown.stage == "" and shown._drawn is None


def test_short_work_shows_nothing(monkeypatch):
    terminal = on_a_terminal(monkeypatch)
    shown = Shown()
    with watched(shown), stage("reading"):
        pass
    assert terminal.getvalue() == "" and shown._drawn is None


def test_a_count_shows_its_rate_and_the_end_clears_it(monkeypatch):
    on_a_terminal(monkeypatch)
    monkeypatch.setattr(module, "PATIENCE_S", 0.01)
    shown = Shown()
    monkeypatch.setattr(module, "SHOWN", shown)
    show = progress("reading", "bytes")
    show(1_000_000, 4_000_000)
    assert drawn(shown) is not None
    show(2_000_000, 4_000_000)
    (task,) = shown._drawn.tasks
    assert (task.completed, task.total, task.description) == (2_000_000, 4_000_000, "reading")
    assert shown.rate(2.5e6) == "2.50 MB/s"
    show(4_000_000, 4_000_000)
    assert shown._drawn is None and shown.stage == ""


INTERRUPTED = """
import sys, time, lumos.trace
from lumos.stages import stage

def slow(*paths, **options):
    with stage("reading"):
        print("ready", flush=True)
        time.sleep(60)

lumos.trace.read = slow
sys.argv = ["lumos", "diagnose", "trace.json"]
from lumos.cli import main
main()
"""


def test_an_interruption_names_the_stage_and_ends_with_its_status():
    with subprocess.Popen([sys.executable, "-c", INTERRUPTED], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None and running.stdout.readline() == "ready\n"
        running.send_signal(signal.SIGINT)
        out, error = running.communicate(timeout=30)
    assert running.returncode == 130 and out == ""
    assert error.startswith("lumos: interrupted while reading, after ") and error.endswith("no output is left half-written\n")
    assert "Traceback" not in error


def test_a_pipe_is_told_how_many_ranks_of_an_emulated_job_have_run(lumos, monkeypatch):
    def emulated(*_, progress, random_weights, **__):
        progress(1, 4)
        return facade.Emulated(8, [0], 0, 0, [], None, ["rank0.et.json.gz"], [], []) if random_weights else None

    monkeypatch.setattr(facade, "emulate", emulated)
    done = lumos("collect", "--emulate", "cpu", "--ranks", 8, "--random-weights", "--", "train.py")
    assert done.status == 0 and "1 of 4 ranks that do work of their own have been emulated so far" in done.err
