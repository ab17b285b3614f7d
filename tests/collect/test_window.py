"""Recording a window of a training loop: what is in the file, and that nothing it does can stop the loop."""

import gzip
import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.collect.training import train

import lumos.collect
from lumos.collect import host
from lumos.errors import LumosError, UsageError

torch = pytest.importorskip("torch", reason="torch is not installed, and the collector records with its profiler")


def events(path: Path | None) -> list[dict[str, Any]]:
    assert path is not None
    with gzip.open(path, "rt") as file:
        rows: list[dict[str, Any]] = json.load(file)["traceEvents"]
    return rows


def test_records_the_steps_after_the_warm_up_and_no_others(tmp_path: Path) -> None:
    with lumos.collect.profile(tmp_path, steps=2, warmup=1, wait=1) as recording:
        train(recording, 6)
    assert recording.path == tmp_path / "rank0.json.gz"
    names = [e["name"] for e in events(recording.path)]
    assert [n for n in names if n.startswith("ProfilerStep")] == ["ProfilerStep#2", "ProfilerStep#3"]
    assert names.count("aten::mm") == 6  # one forward and two backward products in each recorded step


def test_operators_carry_shapes_and_no_stacks_and_the_file_says_how_it_came_to_be(tmp_path: Path) -> None:
    with lumos.collect.profile(tmp_path, steps=1, warmup=1) as recording:
        train(recording, 2)
    rows = events(recording.path)
    assert [[16, 16], [16, 16]] in [e["args"].get("Input Dims") for e in rows if e["name"] == "aten::mm"]
    assert not [e for e in rows if e.get("cat") == "python_function"]
    with gzip.open(tmp_path / "rank0.json.gz", "rt") as file:
        provenance = json.load(file)["lumos_collect"]
    assert provenance["torch"] == torch.__version__
    assert (provenance["rank"], provenance["world_size"], provenance["steps"]) == (0, 1, 1)


def test_a_loop_that_ends_early_keeps_what_there_is_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with lumos.collect.profile(tmp_path, steps=3, warmup=1) as recording:
        train(recording, 2)
    assert "1 of 3 steps are whole" in capsys.readouterr().err
    assert [e for e in events(recording.path) if e["name"] == "ProfilerStep#1"]


def test_each_recorded_step_says_what_the_process_got_of_its_machine(tmp_path: Path) -> None:
    with lumos.collect.profile(tmp_path, steps=2, warmup=1) as recording:
        train(recording, 3)
    rows = lumos.read(tmp_path).traces[0].metadata["lumos_host"]
    assert [row["step"] for row in rows] == [1, 2]
    assert (thread := str(threading.get_native_id())) in rows[0]["ran_ns"]
    for row in rows:
        assert 0 < row["ran_ns"][thread] <= row["wall_ns"] + 1_000_000  # clocks read in turn
        assert row["cores"] > 0 <= row["waited_ns"][thread]
        assert {"user_ns", "system_ns", "minor_faults", "major_faults", "voluntary_switches", "involuntary_switches"} < set(row)


def test_the_quota_is_the_least_of_the_group_and_those_around_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of both versions: the first has one for the group itself, the second one for what is around it."""
    of_1 = {"cpu/a/cpu.cfs_quota_us": "-1", "cpu/a/b/cpu.cfs_quota_us": "50000"}
    for file, text in {**of_1, "a/cpu.max": "40000 100000", "a/b/cpu.max": "max 9"}.items():
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(text)
        (tmp_path / file).with_name("cpu.cfs_period_us").write_text("100000")
    (groups := tmp_path / "cgroup").write_text("3:cpu,cpuacct:/a/b\n2:cpuset:/c\n0::/a/b\n")
    monkeypatch.setattr(host, "_GROUPS", groups)
    monkeypatch.setattr(host, "_MOUNTED", tmp_path)
    assert host.HostRows()._limits["quota_cores"] == 0.4
    groups.write_text("3:cpu,cpuacct:/a/b\n")
    assert host.HostRows()._limits["quota_cores"] == 0.5


def test_a_loop_that_ends_before_the_window_records_nothing_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with lumos.collect.profile(tmp_path, steps=1, warmup=3) as recording:
        train(recording, 1)
    assert recording.path is None
    assert "after 1 steps, before a whole step was recorded; it takes 4" in capsys.readouterr().err


def test_the_overhead_is_printed_with_its_noise(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with lumos.collect.profile(tmp_path, steps=2, warmup=1, wait=4) as recording:
        train(recording, 12)
    assert recording.overhead is not None
    assert recording.overhead_noise is not None
    assert f"({recording.overhead:+.1%}, ± {recording.overhead_noise:.1%})" in capsys.readouterr().err


def test_an_error_of_the_training_passes_through(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), lumos.collect.profile(tmp_path, steps=1, warmup=0) as recording:
        train(recording, 0)
        raise ZeroDivisionError


def test_a_profiler_that_fails_is_reported_once_and_training_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(self: object, path: str) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch.profiler.profile, "export_chrome_trace", broken)
    with lumos.collect.profile(tmp_path, steps=1, warmup=1) as recording:
        train(recording, 5)
    assert recording.path is None
    assert "No space left" in (recording.failure or "")
    assert capsys.readouterr().err.count("the training goes on") == 1
    assert not list(tmp_path.iterdir())


def test_the_launcher_names_the_rank_where_there_is_no_process_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "5")
    with lumos.collect.profile(tmp_path, steps=1, warmup=1) as recording:
        train(recording, 2)
    assert recording.path == tmp_path / "rank5.json.gz"


@pytest.fixture
def barriers(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """This process as rank 3 of 4 of a gloo job; one entry for each barrier it enters."""
    entered: list[int] = []
    answers = {"is_initialized": True, "get_rank": 3, "get_world_size": 4, "get_backend": "gloo"}
    for name, answer in answers.items():
        monkeypatch.setattr(torch.distributed, name, lambda answer=answer: answer)
    monkeypatch.setattr(torch.distributed, "barrier", lambda device_ids=None: entered.append(1))
    # torch's own description of the job asks the process group for more than this stand-in has.
    monkeypatch.setattr(torch.profiler.profile, "_get_distributed_info", lambda self: None)
    return entered


def test_ranks_meet_once_before_the_window(tmp_path: Path, barriers: list[int]) -> None:
    with lumos.collect.profile(tmp_path, steps=2, warmup=2) as recording:
        train(recording, 1)
        assert not barriers
        train(recording, 1)
        assert len(barriers) == 1
        train(recording, 5)
    assert len(barriers) == 1
    assert recording.path == tmp_path / "rank3.json.gz"


def test_a_rank_whose_folder_cannot_be_made_trains_on_and_still_meets_the_others(
    tmp_path: Path, barriers: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("in the way")
    with lumos.collect.profile(tmp_path / "file" / "out", steps=1, warmup=1) as recording:
        train(recording, 3)
    assert recording.failure is not None and "the training goes on" in capsys.readouterr().err
    assert len(barriers) == 1


def test_no_barrier_where_only_some_ranks_record(tmp_path: Path, barriers: list[int]) -> None:
    with lumos.collect.profile(tmp_path, steps=1, warmup=1, align=False) as recording:
        train(recording, 3)
    assert not barriers


@pytest.mark.parametrize("numbers", [{"steps": 0}, {"warmup": -1}, {"wait": -1}])
def test_impossible_numbers_are_refused_before_training(tmp_path: Path, numbers: dict[str, int]) -> None:
    with pytest.raises(UsageError, match="at least"):
        lumos.collect.profile(tmp_path, **numbers)  # type: ignore[arg-type]


def test_without_torch_the_error_says_how_to_install_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(LumosError, match=r"pip install .*\[torch\]'"):
        lumos.collect.profile(tmp_path)


def test_importing_the_collector_loads_neither_torch_nor_the_rest_of_lumos() -> None:
    code = "import sys, lumos.collect; print(*sorted(m for m in sys.modules if m.startswith(('torch', 'numpy', 'lumos.'))))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert [name for name in loaded if not name.startswith("lumos.collect")] == ["lumos.errors", "lumos.extras", "lumos.on_demand"]
