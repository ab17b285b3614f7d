"""The job of an answer, written as files: Lumos reads them and replays the step that was answered."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

import lumos
from lumos.analyze.loop.steps import members, step_times
from lumos.errors import LumosError, UsageError
from lumos.predict.ranks import MOST_TASKS
from lumos.simulate import simulate

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "gpt-2rank-cpu"
SMALL = {"model": "llama3.2-1b", "cluster": "h100", "gpus": 4, "global_batch": 4, "seq": 128}


def replayed_s(path):
    """The step of a job that was written."""
    graph = lumos.build(lumos.read(path))
    return lumos.replay(graph, simulate(graph)).step_time_ns * 1e-9


@pytest.mark.parametrize(
    "changes",
    [{"scale": {"operator:aten::addmm": 2.0}}, {"rank_slowdown": {1: 1.5}}, {"layers": 3}, {"scale": {"*": 0.5}, "repeat": True}],
)
def test_a_changed_job_replays_to_the_answer(tmp_path, changes):
    answer = lumos.whatif(EXAMPLE, **changes)
    lumos.export(answer, chakra=tmp_path / "set", perfetto=tmp_path / "run.json.gz")
    assert replayed_s(tmp_path / "set") == pytest.approx(answer.outcome.step_time_s, rel=0.001)
    assert step_times(answer.timeline, members(answer.graph)).headline.step_time_ns * 1e-9 == pytest.approx(answer.outcome.step_time_s)
    assert {p.rank for p in answer.graph.processors} == {0, 1}
    assert len(lumos.read(tmp_path / "run.json.gz").traces[0])


def test_a_predicted_job_replays_to_the_prediction(tmp_path):
    prediction = lumos.predict(**SMALL, tp=2, pp=2, blocks=False)
    lumos.export(prediction, chakra=tmp_path / "set", kineto=tmp_path / "traces", perfetto=tmp_path / "run.json")
    for written in ("set", "traces"):
        assert replayed_s(tmp_path / written) == pytest.approx(prediction.time.time_s, rel=0.001)


def test_a_job_of_many_nodes_waits_for_the_slowest_in_files_too(tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules["lumos.predict.step_time"], "slowest", lambda job, coefficients: 1.02)
    prediction = lumos.predict(**{**SMALL, "gpus": 32, "global_batch": 32}, tp=8, dp=4, blocks=False)
    run = prediction.timeline
    assert prediction.time.time_s == pytest.approx(1.02e-9 * (run.end.max() - run.start.min()))
    lumos.export(prediction, chakra=tmp_path)
    assert replayed_s(tmp_path) == pytest.approx(prediction.time.time_s, rel=0.001)


def test_the_best_plan_of_a_search_is_written(tmp_path):
    found = lumos.search(**SMALL, refine=1)
    lumos.export(found, chakra=tmp_path / "set", kineto=tmp_path / "traces")
    plan = found.best[0].job.plan
    for written in ("set", "traces"):
        assert len(lumos.read(tmp_path / written).traces) == plan.devices == 4
        assert replayed_s(tmp_path / written) == pytest.approx(found.best[0].time.time_s, rel=0.02)  # timed in coarse form


def test_what_cannot_be_written_says_why(tmp_path, monkeypatch):
    with pytest.raises(LumosError, match="use --chakra"):
        lumos.export(lumos.whatif(EXAMPLE, rank_slowdown={1: 1.5}), chakra=tmp_path / "set", kineto=tmp_path / "traces")
    found = lumos.search(**SMALL, refine=1, require="memory.peak_bytes < 1")
    with pytest.raises(LumosError, match="no plan"):
        lumos.export(found, chakra=tmp_path)
    prediction = lumos.predict(**SMALL, blocks=True)
    with pytest.raises(UsageError, match="kernel granularity"):
        lumos.export(prediction, chakra=tmp_path)
    with pytest.raises(UsageError, match="two outputs"):
        lumos.export(prediction, chakra=tmp_path, kineto=tmp_path)
    fine = lumos.predict(**SMALL, blocks=False)
    large = replace(fine, job=replace(fine.job, plan=replace(fine.job.plan, dp=4 * MOST_TASKS // len(fine.timeline.graph))))
    with pytest.raises(LumosError, match="more than the 20,000,000"):
        lumos.export(large, chakra=tmp_path)
    assert list(tmp_path.iterdir()) == []
