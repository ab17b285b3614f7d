"""The recorder of GPU ground truth, run in small on the CPU: every setting is a program that trains, files grow and resume."""

import csv
import gzip
import importlib.util
import json
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
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


def test_every_setting_changes_one_thing_from_the_base(suite: ModuleType) -> None:
    base = asdict(suite.BASE)
    assert len({s.name for s in suite.SETTINGS}) == len(suite.SETTINGS)
    for s in suite.SETTINGS:
        if s.name in ("llama3-8b", "moe", "launch-bound"):
            continue
        changed = {key for key, value in asdict(s).items() if value != base[key]} - {"name"}
        assert changed == {"hidden", "ffn"} if s.name.startswith("hidden") else len(changed) <= 1, s.name
    names = {s.name for s in suite.SETTINGS}
    wanted = "layers-2 layers-8 hidden-3072 hidden-9216 hidden-12288 seq-1024 seq-4096 micro-batch-1 micro-batch-4 tp-1 tp-2 tp-8"
    assert names >= {"base", *wanted.split(), "recompute", "accumulation-4", "llama3-8b", "moe", "cuda-graph", "overlap", "launch-bound"}


def test_every_setting_trains_in_small(suite: ModuleType) -> None:
    for s in suite.SETTINGS:
        suite.training_step(suite.tiny(s), torch.device("cpu"))()


def test_a_rank_holds_its_share_of_every_sharded_matrix(suite: ModuleType) -> None:
    def sharded(tp: int) -> dict[str, tuple[int, ...]]:
        with torch.device("meta"):
            block = suite.Block(suite.replace(suite.BASE, tp=tp))
        return {name: tuple(p.shape) for name, p in block.named_parameters()}

    assert sharded(4)["attention.inputs.weight"] == (3 * 6144 // 4, 6144)
    assert sharded(4)["attention.output.weight"] == (6144, 6144 // 4)
    assert sharded(8)["mlp.up.weight"] == (12288 // 8, 6144)
    assert sharded(8)["mlp.down.weight"] == (6144, 12288 // 8)
    assert sharded(8)["norm_mlp.weight"] == sharded(1)["norm_mlp.weight"] == (6144,)


def test_routed_experts_equal_their_definition(suite: ModuleType) -> None:
    torch.manual_seed(0)
    experts = suite.Experts(suite.tiny(suite.MOE))
    x = torch.randn(1, 5, experts.router.in_features)
    weights, chosen = experts.router(x[0]).softmax(-1).topk(2, dim=-1)
    for token in range(5):
        expected = sum(weights[token, i] * experts.experts[chosen[token, i]](x[0, token]) for i in range(2))
        torch.testing.assert_close(experts(x)[0, token], expected)


@pytest.mark.parametrize(("form", "shape"), [("fwd", (8, 3, 5)), ("dgrad", (8, 5, 3)), ("wgrad", (3, 5, 8))])
def test_a_linear_layers_three_products_name_their_own_shape(suite: ModuleType, form: str, shape: tuple[int, int, int]) -> None:
    row = suite.gemm(torch.device("cpu"), form, 8, 3, 5)
    assert (row["m"], row["n"], row["k"]) == shape


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


def test_seconds_bound_what_is_started(record: Record, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert record("--seconds", "0") == 0
    assert "left (run again to continue)" in capsys.readouterr().out
    assert rows(tmp_path / "steps.csv") == []


def test_a_setting_that_cannot_run_costs_only_itself(
    record: Record, suite: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def copy_without_pinned(device: object, kind: str, size: int) -> dict[str, object]:
        if "pinned" in kind:
            raise RuntimeError("out of memory")
        return {"kind": kind, "bytes": size, "time_us": 1.0}

    monkeypatch.setattr(suite, "copy", copy_without_pinned)
    assert record("--only", "copy-*-4096") == 1
    assert len(rows(tmp_path / "copy.csv")) == 3


@pytest.mark.parametrize(
    ("only", "table", "count"),
    [
        ("gemm-*-16-32-*", "gemm.csv", 6), ("attention-*-yes-1-32-*", "attention.csv", 3), ("layer_norm-*-16-*", "normalisation.csv", 2),
        ("copy-*-4096", "copy.csv", 5),
    ],
)
def test_microbenchmarks_fill_their_tables(record: Record, tmp_path: Path, only: str, table: str, count: int) -> None:
    assert record("--only", only) == 0
    found = rows(tmp_path / table)
    assert len(found) == len({r["id"] for r in found}) == count
    assert all(float(r["time_us"]) > 0 for r in found)


def test_columns_are_those_of_the_measured_tables(suite: ModuleType, measured: Callable[[str], Path]) -> None:
    for name in ("gemm.csv", "attention.csv"):
        with measured(name).open() as file:
            assert suite.TABLES[name] == file.readline().strip()


@pytest.fixture
def measured() -> Callable[[str], Path]:
    folder = os.environ.get("LUMOS_MEASURED")
    if not folder:
        pytest.skip("LUMOS_MEASURED is not set: no table to compare the columns with")
    return lambda name: Path(folder) / name
