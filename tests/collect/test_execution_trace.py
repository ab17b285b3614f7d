"""The execution trace that is recorded together with the profiler's file."""

import gzip
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.collect.training import train

import lumos.collect
from lumos.proxy.compiled import sources_beside

torch = pytest.importorskip("torch", reason="torch is not installed, and the collector records with its observer")


def load(path: Path | None) -> Any:
    assert path is not None
    with gzip.open(path, "rt") as file:
        return json.load(file)


def test_it_holds_the_first_recorded_step_and_links_to_its_rows(tmp_path: Path) -> None:
    with lumos.collect.profile(tmp_path, steps=2, warmup=1, execution_trace=True) as recording:
        train(recording, 5)
    assert recording.execution_trace_path == tmp_path / "rank0.et.json.gz"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["rank0.et.json.gz", "rank0.json.gz"]
    nodes = load(recording.execution_trace_path)["nodes"]
    assert [node["name"] for node in nodes].count("aten::mm") == 3
    ids = {a["value"] for node in nodes if node["name"] == "aten::mm" for a in node["attrs"] if a["name"] == "rf_id"}
    rows = [e["args"]["Record function id"] for e in load(recording.path)["traceEvents"] if e["name"] == "aten::mm"]
    assert set(rows[:3]) == ids
    assert set(rows[3:]) == {0}


def test_a_loop_that_ends_inside_its_step_leaves_no_file(tmp_path: Path) -> None:
    with lumos.collect.profile(tmp_path, steps=2, warmup=1, execution_trace=True) as recording:
        train(recording, 1)
        torch.ones(2) + 1
    assert (recording.path, recording.execution_trace_path) == (None, None)
    assert not list(tmp_path.iterdir())


def test_an_observer_that_fails_costs_only_its_own_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(self: object, path: str) -> None:
        raise RuntimeError("no observer today")

    monkeypatch.setattr(torch.profiler.ExecutionTraceObserver, "register_callback", broken)
    with lumos.collect.profile(tmp_path, steps=1, warmup=1, execution_trace=True) as recording:
        train(recording, 4)
    assert recording.path is not None
    assert recording.execution_trace_path is None
    assert capsys.readouterr().err.count("no observer today") == 1


def test_sources_of_compiled_kernels_lie_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A kernel's module as torch.compile leaves it, and the row of its launch as torch writes it; what no row names stays where it is."""
    cache, out = tmp_path / "cache", tmp_path / "out"
    cache.mkdir()
    for name in ("named.py", "other.py", "large.py"):
        (cache / name).write_text("# kernel" + "x" * (1 << 20) * (name == "large.py"))
    modules = [SimpleNamespace(__file__=str(cache / name)) for name in ("named.py", "other.py", "large.py")]
    codecache = SimpleNamespace(PyCodeCache=SimpleNamespace(modules=[*modules, SimpleNamespace()]))
    monkeypatch.setitem(sys.modules, "torch._inductor.codecache", codecache)
    kernel = '"attrs": [{{"name": "rf_id", "type": "uint64", "value": 0}},{{"name": "kernel_file", "type": "string", "value": "{}"}}]'
    rows = ",".join(kernel.format(name) for name in ("named.py", "named.py", "large.py", "absent.py", "../cache/other.py"))

    class Observer(torch.profiler.ExecutionTraceObserver):  # type: ignore[misc, name-defined]
        def unregister_callback(self) -> None:
            super().unregister_callback()
            Path(self.output_file_path).write_text(rows)

    monkeypatch.setattr(torch.profiler, "ExecutionTraceObserver", Observer)
    with lumos.collect.profile(out, steps=1, warmup=1, execution_trace=True) as recording:
        train(recording, 3)
    assert recording.execution_trace_path == out / "rank0.et.json.gz"
    assert [path.name for path in (out / "rank0.et_resources").iterdir()] == ["named.py"]
    assert "et_resources: 1" in capsys.readouterr().err
    assert list(sources_beside(str(recording.execution_trace_path), ["named.py"])) == ["named.py"]
