"""`lumos collect -- COMMAND`: a script is recorded without any change."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lumos.collect.command import environment, run
from lumos.errors import LumosError, UsageError

SETTINGS = {"steps": 2, "warmup": 1, "wait": 1, "memory": False, "execution_trace": False, "align": True}

SCRIPT = """
import sys, torch
weight = torch.nn.Parameter(torch.ones(8, 8))
others = torch.nn.Parameter(torch.ones(8, 8))
first, second = torch.optim.SGD([weight], lr=0.1), torch.optim.SGD([others], lr=0.1)
for _ in range(int(sys.argv[1])):
    (weight @ others).sum().backward()
    first.step()
    second.step()
"""


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return str(path)


def needs_torch() -> None:
    pytest.importorskip("torch", reason="torch is not installed, and the collector records with its profiler")


def test_a_script_is_recorded_without_a_change_one_step_per_round_of_its_optimizers(script: str, tmp_path: Path) -> None:
    needs_torch()
    from lumos.graph.build import build
    from lumos.trace import read

    status, written = run([sys.executable, script, "7"], str(tmp_path / "out"), **SETTINGS)
    assert (status, written) == (0, [str(tmp_path / "out" / "rank0.json.gz")])
    assert [step.name for step in build(read(written[0])).steps] == ["ProfilerStep#2", "ProfilerStep#3"]


def test_a_command_that_fails_keeps_its_status_and_what_was_recorded(script: str, tmp_path: Path) -> None:
    needs_torch()
    Path(script).write_text(SCRIPT + "\nsys.exit(7)\n")
    status, written = run([sys.executable, script, "7"], str(tmp_path / "out"), **SETTINGS)
    assert (status, len(written)) == (7, 1)


def test_a_command_that_records_nothing_is_an_error_that_says_what_it_takes(tmp_path: Path) -> None:
    with pytest.raises(LumosError, match="ended without a recording; it takes 5 calls of an optimizer's step"):
        run([sys.executable, "-c", "pass"], str(tmp_path), **SETTINGS)


def test_a_script_without_an_optimizer_ends_its_steps_itself(tmp_path: Path) -> None:
    needs_torch()
    code = "import lumos.collect, torch\nfor _ in range(9): torch.ones(2).sum(); lumos.collect.step()"
    assert len(run([sys.executable, "-c", code], str(tmp_path), **SETTINGS).files) == 1


def test_impossible_numbers_and_unknown_commands_are_usage_errors(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such command"):
        run(["no-such-command-here"], str(tmp_path), **SETTINGS)
    with pytest.raises(UsageError, match="--steps must be at least 1"):
        run([sys.executable], str(tmp_path), **{**SETTINGS, "steps": 0})


def test_a_sitecustomize_of_the_environment_still_runs(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('theirs')")
    made = environment(tmp_path, SETTINGS) | {"PYTHONPATH": environment(tmp_path, SETTINGS)["PYTHONPATH"] + os.pathsep + str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", "print('main')"], env=made, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["theirs", "main"]


def test_asking_whether_torch_is_there_does_not_lose_the_recording(tmp_path: Path) -> None:
    (tmp_path / "torch" / "optim").mkdir(parents=True)
    for name in ("__init__", "optim/__init__", "optim/optimizer"):
        (tmp_path / "torch" / f"{name}.py").touch()
    made = environment(tmp_path, SETTINGS) | {"PYTHONPATH": environment(tmp_path, SETTINGS)["PYTHONPATH"] + os.pathsep + str(tmp_path)}
    code = "import importlib.util; importlib.util.find_spec('torch.optim.optimizer'); import torch.optim.optimizer"
    done = subprocess.run([sys.executable, "-c", code], env=made, capture_output=True, text=True, check=True)
    assert "not recording" in done.stderr  # this torch has no optimizers, so the hook that was reached says so


def test_without_torch_nothing_of_lumos_is_loaded_and_nothing_is_said(tmp_path: Path) -> None:
    code = "import sys; print(*[m for m in sys.modules if m.startswith('lumos.')])"
    done = subprocess.run([sys.executable, "-c", code], env=environment(tmp_path, SETTINGS), capture_output=True, text=True, check=True)
    assert (done.stdout.strip(), done.stderr) == ("", "")


def test_a_recording_that_fails_is_said_once_and_the_training_goes_on(script: str, tmp_path: Path) -> None:
    needs_torch()
    made = environment(tmp_path, {**SETTINGS, "steps": 0})
    done = subprocess.run([sys.executable, script, "5"], env=made, capture_output=True, text=True, check=True)
    assert done.stderr.count("not recording: UsageError") == 1


def test_a_command_that_fails_is_not_passed_over_in_silence(tmp_path, monkeypatch, lumos):
    monkeypatch.chdir(tmp_path)
    done = lumos("collect", "--", "false")
    assert (done.status, done.err) == (1, "lumos: false: ended with status 1; 0 recordings in lumos-traces\n")


def test_the_last_line_names_the_next_command(monkeypatch, lumos):
    from lumos.collect import command

    monkeypatch.setattr(command, "run", lambda *_, **__: command.Recorded(0, ["out dir/rank0.json.gz", "out dir/rank1.json.gz"]))
    done = lumos("collect", "-o", "out dir", "--", "true")
    assert (done.status, done.out) == (0, "2 recordings in out dir\nnext: lumos diagnose 'out dir'\n")
