"""`lumos chakra …` as a user runs it."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from lumos.trace.chakra.schema import Attribute


@pytest.fixture
def run(lumos: Any) -> Any:
    """Run `lumos chakra ARGUMENTS…`: (status, output, errors)."""
    return partial(lumos, "chakra")


def test_a_session(run: Any, stages: Path, tmp_path: Path) -> None:
    status, out, _ = run("export", stages, "-o", tmp_path / "a", "--astra-sim", "--json")
    assert status == 0
    result = json.loads(out)
    assert (result["ranks"], result["nodes"], result["communication"]) == (4, 24, 12)
    assert {"job.3.et", "groups.json", "sys.json", "net.yml", "mem.json"} <= set(result["files"])
    status, out, _ = run("check", tmp_path / "a", "--json")
    assert (status, json.loads(out)) == (0, {"ok": True, "violations": [], "warnings": [], "ranks": 4, "nodes": 24})
    status, out, _ = run("stat", tmp_path / "a", "--json")
    assert json.loads(out)["nodes"] == {"comp": 12, "send": 4, "recv": 4, "coll": 4}
    status, out, _ = run("import", tmp_path / "a", "-o", tmp_path / "b", "--json")
    imported = json.loads(out)
    assert imported["step_time_ns"] == pytest.approx(3_329_274, rel=1e-3)
    assert (imported["latency_ns"], imported["basis"]) == (imported["step_time_ns"], "latency")  # the set is one step
    status, out, _ = run("import", tmp_path / "b", "--json")
    assert json.loads(out)["step_time_ns"] == pytest.approx(3_329_274, rel=1e-3)
    status, out, _ = run("synthesize", tmp_path / "a", "-o", tmp_path / "c", "--json")
    assert status == 0 and json.loads(out)["step_time_ns"] == pytest.approx(json.loads(out)["source_step_time_ns"][0], rel=0.05)
    status, out, _ = run("synthesize", tmp_path / "a", "-o", tmp_path / "d", "--ranks", "8")
    assert status == 0 and "8 ranks" in out
    assert run("check", tmp_path / "d")[0] == 0


def test_text_for_people(run: Any, stages: Path, rewrite: Any) -> None:
    assert "ok" in run("check", stages)[1]
    assert "all-reduce" in run("stat", stages)[1]
    rewrite(stages / "job.0.et", lambda nodes: setattr(nodes[6], "data_deps", (99,)))
    status, out, _ = run("check", stages)
    assert status == 1 and "absent-dependency" in out and "job.0.et node 6" in out


@pytest.mark.parametrize(
    ("arguments", "status", "reason"),
    [
        (("check", "absent"), 1, "no folder"),
        (("synthesize", "-o", "x"), 2, "Missing argument"),
        (("link", "job.0.et", "job.0.et"), 1, "not a PyTorch execution trace"),
    ],
)
def test_wrong_usage(run: Any, stages: Path, monkeypatch: Any, arguments: tuple[str, ...], status: int, reason: str) -> None:
    monkeypatch.chdir(stages)
    answered, out, said = run(*arguments)
    assert (answered, out) == (status, "") and reason in said


def test_a_stream_beyond_32_bits_is_a_stream(run: Any, stages: Path, rewrite: Any, tmp_path: Path) -> None:
    """Profilers write -1 as 4294967295."""
    attribute = Attribute("stream", "int64", 2**32 - 1)
    for path in sorted(stages.glob("*.et")):
        rewrite(path, lambda nodes: [setattr(node, "duration_micros", 5) for node in nodes.values()])
    rewrite(stages / "job.0.et", lambda nodes: setattr(nodes[1], "attrs", (*nodes[1].attrs, attribute)))
    status, out, _ = run("import", stages, "--json")
    assert status == 0 and json.loads(out)["step_time_ns"] > 0
    status, _, err = run("synthesize", stages, "-o", tmp_path / "c")
    assert (status, err) == (0, "")
