"""`lumos stragglers`."""

import json
import os
from pathlib import Path

import pytest

KEYS = {"measured_step_ns", "ideal_step_ns", "slowdown", "by_rank", "by_class"}


@pytest.fixture
def two_ranks(trace, tmp_path):
    """Two equal ranks of one step, except that rank 1's last kernel takes 40 µs longer: its step ends at 641 µs, not 601."""
    for rank in (0, 1):
        path = trace(f"rank{rank}.json", rank, 2, steps=1)
    document = json.loads(path.read_text())
    last = [row for row in document["traceEvents"] if row["cat"] == "kernel" and row["ts"] % 1000 == 595]
    for row in last:
        row["dur"] += 40
    assert len(last) == 1
    path.write_text(json.dumps(document))
    return tmp_path


def test_the_figures_of_profiler_traces_by_hand(lumos, two_ranks):
    """The last kernel takes 6 µs and 46 µs, and in the ideal job 26 µs on both ranks: 621 µs of 641."""
    answer = lumos("stragglers", two_ranks, "--json").json
    assert answer.keys() >= KEYS and (answer["ranks"], answer["steps"]) == (2, 1)
    assert (answer["step_time_ns"], answer["latency_ns"], answer["basis"]) == (641_000, 641_000, "latency")
    assert (answer["measured_step_ns"], answer["ideal_step_ns"]) == (641_000, 621_000)
    assert answer["slowdown"] == pytest.approx(641 / 621)
    assert [(r["rank"], r["stage"], r["worth_ns"]) for r in answer["by_rank"]] == [(0, None, 0), (1, None, 20_000)]
    assert (answer["by_class"][0]["name"], answer["by_class"][0]["worth_ns"]) == ("gemm", 20_000)
    assert answer["by_stage"] == []


def test_the_text_fits_80_columns_and_leads_with_the_slow_rank(lumos, two_ranks):
    done = lumos("stragglers", two_ranks)
    assert done.status == 0 and max(map(len, done.out.splitlines())) <= 80
    assert done.out.startswith("2 ranks: 641.0 µs a step (latency); slowdown 1.032\n")
    assert "means over 1 step: 641.0 µs measured, 641.0 µs replayed, 621.0 µs if equal\n  work took equal time" in done.out
    ranks = done.out.partition("Ranks\n")[2].splitlines()
    assert ranks[2].split()[0] == "1" and ranks[3].split()[0] == "0"


ROOT = os.environ.get("LUMOS_TRACES")


@pytest.mark.skipif(ROOT is None, reason="LUMOS_TRACES is not set: the public traces are not here")
@pytest.mark.parametrize("name", ["straggler-8gpu", "pipeline-8gpu", "dlrm-8xv100"])
@pytest.mark.parametrize("rule", ["peer-median", "pooled-mean"])
def test_public_jobs(lumos, name, rule):
    path = Path(ROOT) / name
    done = lumos("stragglers", path, "--ideal", rule)
    assert done.status == 0 and max(map(len, done.out.splitlines())) <= 80
    answer = lumos("stragglers", path, "--ideal", rule, "--json").json
    assert len(answer["by_rank"]) == 8 and answer["slowdown"] == pytest.approx(
        answer["measured_step_ns"] / answer["ideal_step_ns"], rel=1e-6
    )


@pytest.mark.skipif(ROOT is None, reason="LUMOS_TRACES is not set: the public traces are not here")
@pytest.mark.parametrize("name", ["straggler-8gpu", "pipeline-8gpu"])
def test_every_verb_takes_operation_level_jobs(lumos, name, tmp_path):
    path = Path(ROOT) / name
    for verb in ("inspect", "breakdown", "replay"):
        text, answer = lumos(verb, path), lumos(verb, path, "--json")
        assert (text.status, answer.status) == (0, 0) and answer.json["ranks"] == 8
        assert max(map(len, text.out.splitlines())) <= 80
    assert lumos("replay", path, "--probes", "--perfetto", tmp_path / "both.json").status == 0
    assert json.loads((tmp_path / "both.json").read_text())["traceEvents"]
