"""The job of an answer, written as files: Lumos reads them and replays the step that was answered."""

from dataclasses import replace
from pathlib import Path

import pytest

import lumos
from lumos.analyze.loop.steps import members, step_times
from lumos.errors import LumosError, UsageError
from lumos.prediction.ranks import MOST_TASKS
from lumos.simulation import simulate

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
#: A small recorded job, and one with five times as many tasks.
JOBS = ["faults/plain", pytest.param("gpt-2rank-cpu", marks=pytest.mark.slow)]
SMALL = {"model": "llama3.2-1b", "cluster": "h100", "gpus": 4, "global_batch": 4, "seq": 128}


def replayed_s(path):
    """The step of a job that was written."""
    graph = lumos.build(lumos.read(path))
    return lumos.replay(graph, simulate(graph)).step_time_ns * 1e-9


@pytest.mark.parametrize("job", JOBS)
@pytest.mark.parametrize(
    "changes",
    [{"scale": {"operator:aten::addmm": 2.0}}, {"rank_slowdown": {1: 1.5}}, {"layers": 3}, {"scale": {"*": 0.5}, "repeat": True}],
)
def test_a_changed_job_replays_to_the_answer(tmp_path, changes, job):
    answer = lumos.whatif(EXAMPLES / job, **changes)
    lumos.export(answer, chakra=tmp_path / "set", kineto=tmp_path / "traces", perfetto=tmp_path / "run.json.gz")
    for written in ("set", "traces"):
        assert replayed_s(tmp_path / written) == pytest.approx(answer.outcome.step_time_s, rel=0.001)
        assert lumos.read(tmp_path / written).origin == answer.origin
    assert step_times(answer.timeline, members(answer.graph)).headline.step_time_ns * 1e-9 == pytest.approx(answer.outcome.step_time_s)
    ranks = range(len(list((EXAMPLES / job).glob("rank*.json.gz"))))
    assert {p.rank for p in answer.graph.processors} == {*ranks}
    assert len(lumos.read(tmp_path / "run.json.gz").traces[0])


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory):
    """The files of a device job that exchanges between stages and between replicas."""
    folder = tmp_path_factory.mktemp("pipeline")
    job = lumos.predict(model="gpt3-126m", cluster="h100", gpus=4, global_batch=8, seq=256, pp=2, blocks=False)
    lumos.export(job, kineto=folder / "it")
    return folder / "it"


@pytest.mark.parametrize("repeat", [False, True])
def test_a_changed_device_job_is_written_with_what_its_work_waits_for(tmp_path, pipeline, repeat):
    """What is written can be changed again: the second change finds the same dependencies as one that is made with the first."""
    answer = lumos.whatif(pipeline, scale={"gemm*": 2.0}, repeat=repeat)
    lumos.export(answer, kineto=tmp_path / "traces")
    assert replayed_s(tmp_path / "traces") == pytest.approx(answer.outcome.step_time_s, rel=0.001)
    both = lumos.whatif(pipeline, scale={"gemm*": 2.0, "*nccl*": 20.0}, repeat=repeat).outcome.step_time_s
    again = lumos.whatif(tmp_path / "traces", scale={"*nccl*": 20.0})
    assert both > 1.2 * answer.outcome.step_time_s
    assert again.outcome.step_time_s == pytest.approx(both, rel=0.001)
    assert (answer.origin.what, again.origin.what) == ("predicted, then changed",) * 2
    for less, more in zip((again, answer), (answer, lumos.read(pipeline)), strict=True):  # known no better than what it comes from
        least, most = zip(less.origin.within, more.origin.within, strict=True)
        assert least[0] <= least[1] + 1e-9 and most[0] >= most[1] - 1e-9


def test_the_best_plan_of_a_search_is_written(tmp_path):
    found = lumos.search(**SMALL, refine=1)
    lumos.export(found, chakra=tmp_path / "set", kineto=tmp_path / "traces")
    plan = found.best[0].job.plan
    for written in ("set", "traces"):
        assert len(lumos.read(tmp_path / written).traces) == plan.devices == 4
        assert replayed_s(tmp_path / written) == pytest.approx(found.best[0].time.time_s, rel=0.02)  # timed in coarse form


def test_what_cannot_be_written_says_why(tmp_path, monkeypatch):
    found = lumos.search(**SMALL, refine=1, reserve_gb=79.9)
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


def test_a_job_of_whole_operations_has_no_profiler_files(tmp_path, operation_jobs):
    table = operation_jobs.write_table(tmp_path / "trace.parquet", operation_jobs.pipeline((3, 4)))
    with pytest.raises(LumosError, match="whole operations"):
        lumos.export(lumos.whatif(table, scale={"forward*": 2.0}), kineto=tmp_path / "traces")
    assert not (tmp_path / "traces").exists()
