"""Jobs read back from their files: plans, sizes that are equal to each other, precisions, schedules, recomputation."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from lumos.changes.changes import Changes
from lumos.changes.plan import identify
from lumos.changes.plan.identify import Identification, _alike
from lumos.changes.plan.planned import with_settings
from lumos.changes.settings import parse_settings
from lumos.changes.whatif import answer_changes, unchecked_answer
from lumos.graph.build import build
from lumos.plan.configuration import Settings, job_from
from lumos.prediction.predict import predict_job
from lumos.reports.export.kineto import write_kineto
from lumos.segment.segment import segment
from lumos.trace import read

EXAMPLE = Path(__file__).parents[3] / "examples" / "gpt-2rank-cpu"


def _job(sizes=None, **settings):
    """A small GPT (6 layers, hidden 768, 12 heads of 64, feed-forward 3072, vocabulary 51200), with some of its sizes changed."""
    base = {"model": "gpt3-126m", "cluster": "h100", "gpus": 8, "global_batch": 8, "seq": 512, "tp": 2, "pp": 2}
    job = job_from(Settings(**{**base, **settings}))
    return replace(job, model=replace(job.model, **{"layers": 6, **(sizes or {})}))


def _read(job, folder):
    write_kineto(str(folder), predict_job(job, coarse=False), ranks="stages")
    traces = read(str(folder))
    return traces, build(traces)


def _identified(job, folder):
    traces, graph = _read(job, folder)
    return Identification(traces, graph).on(job.cluster)


@pytest.mark.parametrize(
    ("settings", "sizes"),
    [
        ({"seq": 768}, {}),  # tokens = hidden
        ({"seq": 384, "micro_batch": 2}, {}),  # tokens = hidden
        ({"seq": 1536}, {}),  # tokens = this rank's feed-forward width
        ({"seq": 3072, "tp": 1, "gpus": 4}, {}),  # tokens = feed-forward width
        ({"tp": 1, "gpus": 4}, {"vocab": 3072}),  # vocabulary = feed-forward width
        ({"tp": 1, "gpus": 4}, {"vocab": 2304}),  # vocabulary = width of queries, keys and values together
        ({"tp": 1, "gpus": 4}, {"vocab": 1536}),  # less than the feed-forward width
        ({"tp": 1, "gpus": 4}, {"ffn": 2304}),  # feed-forward width = that of queries, keys and values together
        ({"tp": 1, "gpus": 4}, {"ffn": 768}),  # feed-forward width = hidden
        ({}, {"head_dim": 128}),  # heads · their width = 2 · hidden
        ({"tp": 1, "gpus": 4, "seq": 3072}, {"vocab": 3072}),  # three at once
        ({"model": "llama3.2-1b", "tp": 1, "gpus": 4, "seq": 2048}, {}),  # gated; tokens = hidden
    ],
)
def test_sizes_may_be_equal_to_each_other(tmp_path, settings, sizes):
    job = _job(sizes, **settings)
    found = _identified(job, tmp_path)
    assert found.agreement > 0.99  # the trace does not show the length of the table of positions
    assert found.job.plan == job.plan
    keys = ("layers", "hidden", "heads", "kv_heads", "head_dim", "ffn", "gated")
    assert {k: getattr(found.job.model, k) for k in keys} == {k: getattr(job.model, k) for k in keys}


@pytest.mark.parametrize(
    "settings",
    [
        {"precision": "fp8"},
        {"precision": "fp16"},
        {"precision": "fp32"},
        {"precision": "tf32"},
        {"schedule": "gpipe"},
        {"schedule": "zero-bubble"},
        {"vpp": 2},
        {"vpp": 3, "recompute": "full"},
        {"recompute": "selective", "framework": "fsdp2", "zero": 3, "pp": 1, "tp": 1},
        *({"framework": "megatron-2021", "recompute": word} for word in ("none", "selective", "full")),
    ],
)
def test_what_the_plan_says_is_read_back(tmp_path, settings):
    job = _job(**settings)
    found = _identified(job, tmp_path)
    assert found.agreement > 0.98
    assert found.job.plan == job.plan


@pytest.mark.parametrize(
    ("settings", "changes"),
    [
        ({}, ["precision=fp8", "precision=fp16", "precision=fp32", "recompute=selective"]),
        ({"precision": "fp8"}, ["precision=bf16", "tp=1"]),
        ({"framework": "megatron-2021"}, ["recompute=selective", "recompute=full"]),
        ({"framework": "megatron-2021", "recompute": "selective"}, ["recompute=none", "recompute=full", "pp=1"]),
        ({"framework": "fsdp2", "zero": 3, "pp": 1, "tp": 1}, ["recompute=selective", "precision=fp8"]),
        ({"framework": "fsdp2", "zero": 3, "pp": 1, "tp": 1, "recompute": "selective"}, ["recompute=none", "dp=4"]),
    ],
)
def test_precision_and_recomputation_are_what_predict_says(tmp_path, settings, changes):
    job = _job(**settings)
    traces, graph = _read(job, tmp_path)
    plan = Identification(traces, graph)
    for change in changes:
        wanted = parse_settings([change])
        truth = predict_job(with_settings(job, wanted, None), coarse=False).time.time_s
        assert answer_changes(traces, graph, Changes(wanted), plan).outcome.step_time_s == pytest.approx(truth, rel=0.01), change


def test_lower_precision_is_faster(tmp_path):
    traces, graph = _read(_job({"hidden": 3072, "head_dim": 256, "ffn": 12288, "layers": 4}, seq=2048), tmp_path)
    plan = Identification(traces, graph)
    step = {word: answer_changes(traces, graph, Changes({"precision": word}), plan).outcome.step_time_s for word in ("fp32", "bf16", "fp8")}
    assert step["fp8"] < step["bf16"] < step["fp32"]


def test_ranks_that_launched_the_same_work_are_compared_once():
    """Of four ranks in two stages, the first and the third are alike; the fourth launched one multiplication more."""
    short, long = Counter({("gemm", 8): 2}), Counter({("gemm", 8): 3})
    groups = _alike([short, short, Counter(short), long], [0, 1, 0, 1])
    assert [(each.stage, each.ranks, each.work["gemm", 8]) for each in groups] == [(0, 2, 2), (1, 1, 2), (1, 1, 3)]


def test_many_whatifs_of_a_job_cut_it_once(monkeypatch):
    job = read(str(EXAMPLE))
    graph = build(job)
    known, cuts = Identification(job, graph), []
    monkeypatch.setattr(identify, "segment", lambda *given: cuts.append(given) or segment(*given))
    for layers in ("3", "4"):
        unchecked_answer(job, graph, Changes({"layers": layers}), known)
    assert len(cuts) == 1
