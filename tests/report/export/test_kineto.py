"""Predicted jobs as profiler files: our own reader and replay find the same step in them."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace

import pytest

from lumos.analyze.replay import replay
from lumos.cost.cluster import load_cluster
from lumos.errors import UsageError
from lumos.graph.build import build
from lumos.model import load_model
from lumos.plan.framework import PROFILES
from lumos.plan.job import Job
from lumos.plan.plan import Plan
from lumos.predict.predict import predict
from lumos.report.export.kineto import write_kineto
from lumos.simulate import simulate
from lumos.trace import read

SMALL = replace(load_model("llama3.2-1b"), layers=4, vocab=1024)
MIXTURE = replace(load_model("qwen3-30b-a3b"), layers=4, vocab=1024)
JOBS = {
    "tensor and pipeline": (SMALL, Plan(1024, 8, tp=2, pp=2, dp=2, zero=1, sequence_parallel=True), "nemo"),
    "interleaved": (SMALL, Plan(1024, 8, pp=2, vpp=2, schedule="interleaved", dp=2, zero=1), "megatron-core"),
    "fully sharded": (SMALL, Plan(1024, 8, dp=4, zero=3), "fsdp"),
    "context": (SMALL, Plan(2048, 4, cp=4, zero=1), "megatron-core"),
    "experts": (MIXTURE, Plan(1024, 8, ep=4, dp=4, zero=1), "megatron-core"),
    "old": (SMALL, Plan(1024, 8, tp=2, dp=2, recompute="full"), "megatron-2021"),
}


def predicted(name):
    model, plan, framework = JOBS[name]
    return predict(Job(model, plan, PROFILES[framework], load_cluster("h100")), coarse=False)


@pytest.mark.parametrize("name", JOBS)
def test_replay_of_the_files_gives_the_predicted_step(tmp_path, name):
    prediction = predicted(name)
    written = write_kineto(str(tmp_path), prediction)
    assert len(written) == prediction.job.plan.devices
    graph = build(read(str(tmp_path)))
    result = replay(graph, simulate(graph))
    assert len(graph.ranks) == prediction.job.plan.devices
    longest = max(step.measured_ns for step in result.steps)
    assert longest * 1e-9 == pytest.approx(prediction.time.time_s, rel=0.002)
    assert result.max_abs_error is not None and result.max_abs_error < 0.001


def test_jitter_and_clocks(tmp_path):
    prediction = predicted("tensor and pipeline")
    write_kineto(str(tmp_path), prediction, jitter=0.05, clock_offset_ns=2_000_000, seed=3)
    graph = build(read(str(tmp_path)))
    result = replay(graph, simulate(graph))
    assert result.max_abs_error is not None and result.max_abs_error < 0.002
    starts = {int(step.start) for step in graph.steps}
    assert len(starts) > 1


def test_rows_look_like_a_profilers(tmp_path):
    write_kineto(str(tmp_path), predicted("tensor and pipeline"), ranks="stages")
    files = sorted(p.name for p in tmp_path.iterdir())
    assert files == ["rank0.json.gz", "rank4.json.gz"]
    document = json.loads(gzip.decompress((tmp_path / "rank4.json.gz").read_bytes()))
    assert document["distributedInfo"]["rank"] == 4
    events = document["traceEvents"]
    kernels = [e for e in events if e.get("cat") == "kernel"]
    launches = {e["args"]["correlation"] for e in events if e.get("name") == "cudaLaunchKernel"}
    assert {e["args"]["correlation"] for e in kernels} == launches
    reduce = next(e for e in kernels if e["args"].get("Collective name") == "_reduce_scatter_base")
    assert reduce["args"]["Process Group Ranks"] in ("[4, 5]", "[4, 6]")
    assert {e["args"]["Collective name"] for e in kernels if "Src Rank" in e["args"] or "Dst Rank" in e["args"]} == {"send", "recv"}


def test_coarse_predictions_are_refused(tmp_path):
    model, plan, framework = JOBS["old"]
    coarse = predict(Job(model, plan, PROFILES[framework], load_cluster("h100")), coarse=True)
    with pytest.raises(UsageError, match="kernel granularity"):
        write_kineto(str(tmp_path), coarse)
