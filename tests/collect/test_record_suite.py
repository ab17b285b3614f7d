"""The recorder of GPU ground truth, run in small on the CPU: every setting is a program that trains, files grow and resume."""

import csv
import gzip
import importlib.util
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed, and the recorder trains with it")

SCRIPT = Path(__file__).parents[2] / "examples" / "record_suite.py"


@pytest.fixture(scope="module")
def suite() -> Iterator[ModuleType]:
    spec = importlib.util.spec_from_file_location("record_suite", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["record_suite"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # tiny operators spend their time waking threads
    yield module
    torch.set_num_threads(threads)


Record = Callable[..., int]


@pytest.fixture
def record(suite: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Record:
    """Runs the script's `main` in small on the CPU, into tmp_path; its exit status."""

    def run(*options: str) -> int:
        monkeypatch.setattr(sys, "argv", [str(SCRIPT), "--device", "cpu", "--scale", "tiny", "--out", str(tmp_path), *options])
        status: int = suite.main()
        return status

    return run


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_every_setting_trains_in_small(suite: ModuleType) -> None:
    for s in suite.SETTINGS:
        suite.training_step(suite.tiny(s), torch.device("cpu"))()


def test_records_continues_and_refuses_another_machines_folder(record: Record, tmp_path: Path) -> None:
    assert record("--only", "micro-batch-1") == 0
    [row] = rows(tmp_path / "steps.csv")
    assert row["setting"] == "micro-batch-1" and int(row["untraced_steps"]) >= 10 and int(row["untraced_median_ns"]) > 0
    assert len(row["untraced_ns"].split()) == int(row["untraced_steps"]) and row["traced_steps"] == "3"
    trace = tmp_path / row["trace"]
    assert trace.stat().st_size <= 1_000_000
    with gzip.open(trace, "rt") as file:
        assert sum(e["name"].startswith("ProfilerStep") for e in json.load(file)["traceEvents"]) == 3
    recording = json.loads((tmp_path / "recording.json").read_text())
    assert recording["torch"] == torch.__version__ and "--only micro-batch-1" in recording["command"]

    with (tmp_path / "steps.csv").open("a") as file:
        file.write("layers-2,123,0.0")  # a run that was killed while it wrote
    assert record("--only", "[lm]*-[12]") == 0  # one setting that is done, one that is not, no microbenchmark
    assert [r["setting"] for r in rows(tmp_path / "steps.csv")] == ["micro-batch-1", "layers-2"]

    (tmp_path / "recording.json").write_text(json.dumps({**recording, "torch": "1.0"}))
    with pytest.raises(SystemExit, match=r"another machine's recording \(torch 1.0 then"):
        record()
