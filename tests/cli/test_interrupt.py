"""Ctrl-C: what is kept is said, the status is 130, and nothing is half-written or left running."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

from lumos.errors import INTERRUPTED
from lumos.searching.search import SearchStage

JOB = ("--model", "llama3-8b", "--cluster", "h100", "--gpus", "8", "--global-batch", "8", "--seq", "2048", "--tp", "2", "--pp", "1")
SMALL = ("--model", "llama3.2-1b", "--cluster", "h100", "--gpus", "2", "--global-batch", "2", "--seq", "512", "--tp", "2")


def stop(*_, **__):
    raise KeyboardInterrupt


@pytest.fixture
def stopped_search(monkeypatch):
    """A search that is interrupted at a stage."""

    def at(stage):
        monkeypatch.setattr("lumos.cli.search.stages", lambda _unit: lambda now, *_: stop() if now == stage else None)

    return at


def test_a_search_prints_and_writes_the_plans_that_it_had(lumos, stopped_search, tmp_path):
    stopped_search(SearchStage.TIMING)
    job = tmp_path / "best.json"
    done = lumos("search", *JOB, "--perfetto", job)
    assert done.status == INTERRUPTED and "partial: interrupted when" in done.out and job.stat().st_size


def test_a_search_without_a_timed_plan_says_so(lumos, stopped_search):
    stopped_search(SearchStage.LISTING)
    done = lumos("search", *JOB)
    assert done.status == INTERRUPTED and done.err.startswith("lumos: interrupted before any plan was timed")


@pytest.mark.parametrize(
    "arguments",
    [
        ("replay", "{trace}", "--perfetto", "{new}/job.json"),
        ("whatif", "{trace}", "--scale", "cpu:*=2", "--kineto", "{new}/set"),
        ("report", "{trace}", "-o", "{new}/report.html"),
        ("chakra", "export", "{trace}", "-o", "{new}/set"),
        ("predict", *SMALL, "--kineto", "{new}/set"),
    ],
    ids=lambda arguments: arguments[0],
)
def test_what_is_interrupted_at_the_last_moment_leaves_nothing(lumos, trace, monkeypatch, tmp_path, arguments):
    new = tmp_path / "new"
    new.mkdir()
    for name in ("replace", "rename"):
        monkeypatch.setattr(pathlib.Path, name, stop)
    done = lumos(*(argument.format(trace=trace(), new=new) for argument in arguments))
    assert (done.status, done.out) == (INTERRUPTED, "") and "no output is left half-written" in done.err
    assert list(new.iterdir()) == []


@pytest.mark.parametrize(("told", "status"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_another_signal_ends_a_command_as_orderly(lumos, monkeypatch, tmp_path, told, status):
    """Not even the hidden draft of what it was writing is left."""
    monkeypatch.setattr(pathlib.Path, "rename", lambda *_: signal.raise_signal(told))
    before = signal.signal(told, signal.SIG_DFL)
    try:
        done = lumos("predict", *SMALL, "--kineto", tmp_path / "new" / "set")
    finally:
        signal.signal(told, before)
    assert done.status == status and "no output is left half-written" in done.err
    assert list((tmp_path / "new").iterdir()) == []


def started(*arguments, ready):
    """A `lumos` of its own session, once the file `ready` is there."""
    code = "import sys; from lumos.cli import main; sys.argv[0] = 'lumos'; main()"
    process = subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    end = time.monotonic() + 60
    while not ready.exists() and process.poll() is None and time.monotonic() < end:
        time.sleep(0.02)
    return process


def test_collect_lets_the_command_end_and_counts_what_it_recorded(tmp_path):
    script, out, ready = tmp_path / "train.py", tmp_path / "out", tmp_path / "ready"
    script.write_text(f"""
import pathlib, time
pathlib.Path({str(out)!r}).mkdir()
pathlib.Path({str(out)!r}, "rank0.json.gz").write_bytes(b"")
try:
    pathlib.Path({str(ready)!r}).touch()
    time.sleep(60)
except KeyboardInterrupt:
    time.sleep(1)
    pathlib.Path({str(tmp_path)!r}, "checkpoint").touch()
""")
    process = started("collect", "-o", out, "--", sys.executable, script, ready=ready)
    os.killpg(process.pid, signal.SIGINT)
    _, error = process.communicate(timeout=60)
    assert (process.returncode, error) == (INTERRUPTED, f"lumos: interrupted; 1 recording in {out}\n")
    assert (tmp_path / "checkpoint").exists()


def test_a_proxy_run_ends_its_processes(tmp_path):
    pytest.importorskip("torch")
    folder, ready = tmp_path / "proxy", tmp_path / "ready"
    folder.mkdir()
    (folder / "trace.json").write_text(json.dumps({"ranks": [{"malloc": {}}], "world_size": 1}))
    (folder / "benchmark.py").write_text(f"""
import os, pathlib, time
pathlib.Path({str(tmp_path)!r}, "draft").write_text(str(os.getpid()))
pathlib.Path({str(tmp_path)!r}, "draft").rename({str(ready)!r})
time.sleep(60)
""")
    process = started("proxy", "run", folder, ready=ready)
    os.killpg(process.pid, signal.SIGINT)
    _, error = process.communicate(timeout=60)
    assert process.returncode == INTERRUPTED and error.startswith("lumos: interrupted") and "Traceback" not in error
    with pytest.raises(ProcessLookupError):
        os.kill(int(ready.read_text()), 0)
