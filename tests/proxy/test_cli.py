"""`lumos proxy` on the command line."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.proxy.conftest import Write, annotation, mm, operator


def lumos(*arguments: str) -> subprocess.CompletedProcess[str]:
    code = "import sys; from lumos.cli import main; sys.argv[0] = 'lumos'; main()"
    return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)


def test_generate_writes_a_folder_that_needs_nothing_else(kineto: Write, tmp_path: Path) -> None:
    path = kineto(annotation("ProfilerStep#1", 0, 100), mm(0, 10), operator("aten::relu", 20, 5))
    done = lumos("proxy", "generate", str(path), "-o", str(tmp_path / "out"), "--json")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert (answer["operators"], answer["ranks"], answer["recorded_step_ns"]) == (2, 1, 25_000)
    assert [d["code"] for d in answer["diagnostics"]] == ["arguments-missing"]
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["README.md", "benchmark.py", "trace.json"]


def test_wrong_usage_exits_with_2_and_unusable_input_with_1(kineto: Write, tmp_path: Path) -> None:
    path = str(kineto(mm(0, 10)))
    out = str(tmp_path / "out")
    assert lumos("proxy", "generate", path, "-o", out, "--only", "nothing").returncode == 2
    assert lumos("proxy", "generate", path, "-o", out, "--step", "9").returncode == 2
    assert lumos("proxy", "run", out, "--mode", "fast").returncode == 2
    assert lumos("chakra", "export", path, "-o", str(tmp_path / "set")).returncode == 0
    assert "give the profiler's file" in lumos("proxy", "generate", str(tmp_path / "set"), "-o", out).stderr
    absent = lumos("proxy", "run", str(tmp_path / "absent"))
    assert (absent.returncode, "Traceback" in absent.stderr) == (1, False)
    assert "lumos proxy generate" in absent.stderr


def test_run_prints_the_step_and_what_was_not_run(kineto: Write, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed, and a benchmark runs its operators")
    path = kineto(annotation("ProfilerStep#1", 0, 100), mm(0, 10), operator("mylib::\x1b[2Jfused", 20, 5, inputs=[("float", [4], "")]))
    lumos("proxy", "generate", str(path), "-o", str(tmp_path / "out"))
    done = lumos("proxy", "run", str(tmp_path / "out"), "--repeat", "2", "--warmup", "1", "--device", "cpu")
    assert done.returncode == 0, done.stderr
    assert "25.00 µs recorded" in done.stdout
    assert "refused: its namespace" in done.stdout
    assert "\x1b" not in done.stdout
    answer = json.loads(lumos("proxy", "run", str(tmp_path / "out"), "--repeat", "2", "--device", "cpu", "--json").stdout)
    assert set(answer["coverage"]) == {"real", "stand_in", "skipped"}
    assert {"recorded_step_ns", "replayed_step_ns", "error"} <= set(answer)
