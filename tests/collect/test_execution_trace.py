"""The execution trace that is recorded together with the profiler's file."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

import lumos.collect

torch = pytest.importorskip("torch", reason="torch is not installed, and the collector records with its observer")


def train(recording: lumos.collect.Recording, steps: int) -> None:
    weight = torch.ones(16, 16, requires_grad=True)
    for _ in range(steps):
        (weight @ weight).sum().backward()
        recording.step()


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


def test_none_is_written_unless_asked_for(tmp_path: Path) -> None:
    with lumos.collect.profile(tmp_path, steps=1, warmup=1) as recording:
        train(recording, 3)
    assert recording.execution_trace_path is None
    assert [p.name for p in tmp_path.iterdir()] == ["rank0.json.gz"]


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
