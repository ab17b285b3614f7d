from __future__ import annotations

import json
import re
from itertools import pairwise

import pytest

import lumos
from lumos.graph.table import Kind
from lumos.prediction.passes import stage_passes
from lumos.reports.plots.predict import plot_prediction
from lumos.vocabulary import Phase

JOB = {"model": "llama3.2-1b", "cluster": "h100", "gpus": 2, "global_batch": 3, "seq": 512, "pp": 2}


@pytest.mark.parametrize("blocks", [False, True])
def test_a_stage_runs_its_passes_in_the_order_of_one_forward_one_backward(blocks):
    """Of two stages and three microbatches, the first is one forward pass ahead of the last; the optimizer ends both."""
    prediction = lumos.predict(**JOB, blocks=blocks)
    passes = stage_passes(prediction)
    letters = {Phase.FORWARD: "f", Phase.BACKWARD: "b"}
    order = [[f"{letters[p.phase]}{p.microbatch}" for p in passes if p.stage == stage and p.phase in letters] for stage in (0, 1)]
    assert order == [["f0", "f1", "b0", "f2", "b1", "b2"], ["f0", "b0", "f1", "b1", "f2", "b2"]]
    for stage in (0, 1):
        own = [p for p in passes if p.stage == stage]
        assert own[-1].phase is Phase.OPTIMIZER
        assert all(before.end_ns <= after.start_ns for before, after in pairwise(own))
    at = {(p.stage, p.phase, p.microbatch): p for p in passes}
    assert at[1, Phase.FORWARD, 0].start_ns >= at[0, Phase.FORWARD, 0].end_ns
    assert at[0, Phase.BACKWARD, 0].start_ns >= at[1, Phase.BACKWARD, 0].end_ns


@pytest.mark.parametrize("blocks", [False, True])
@pytest.mark.parametrize(
    "plan",
    [
        {"framework": "fsdp2-compiled"},
        {"pp": 2, "vpp": 2, "recompute": "full"},
        {"pp": 2, "tp": 2, "schedule": "zero-bubble"},
        {"pp": 2, "schedule": "dualpipe"},
        {"cp": 2, "zero": 2},
        {"model": "mixtral-8x7b", "ep": 2, "pp": 2},
    ],
    ids=str,
)
def test_each_plan_has_passes_that_cover_its_kernels(plan, blocks):
    prediction = lumos.predict(**{**JOB, "gpus": 4, "global_batch": 8, "pp": 1, **plan}, blocks=blocks)
    passes = stage_passes(prediction)
    forward = [p for p in passes if p.phase is Phase.FORWARD]
    assert {p.stage for p in forward} == set(range(prediction.job.plan.pp))
    assert {p.microbatch for p in forward} == set(range(prediction.job.plan.microbatches))
    run = prediction.timeline
    kernels = run.graph.kind == Kind.KERNEL
    for stage in range(prediction.job.plan.pp):
        last = run.end[kernels & (run.graph.rank_of_task == stage)].max() - run.start.min()
        assert max(p.end_ns for p in passes if p.stage == stage) == last


def test_the_plot_has_the_step_the_memory_with_its_limit_and_the_schedule(tmp_path):
    prediction = lumos.predict(**JOB)
    plot_prediction(str(tmp_path / "plot.html"), prediction)
    text = (tmp_path / "plot.html").read_text()
    figure = json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.S)[1])
    rows = {axis: [t for t in figure["data"] if t["yaxis"] == axis] for axis in ("y", "y2", "y3")}
    assert [t["x"][0] for t in rows["y"]] == list(prediction.breakdown.values())
    assert sum(t["x"][0] for t in rows["y2"]) == pytest.approx(prediction.memory.peak_bytes / 1e9, rel=0.1)
    assert [{t["legend"] for t in rows[axis]} for axis in rows] == [{"legend"}, {"legend2"}, {"legend3"}]
    assert figure["layout"]["legend"]["y"] > figure["layout"]["legend2"]["y"] > figure["layout"]["legend3"]["y"]
    (limit,) = figure["layout"]["shapes"]
    assert limit["x0"] == prediction.job.cluster.accelerator.usable_bytes / 1e9
    assert [t["name"] for t in rows["y3"]] == ["forward", "backward", "optimizer"]
    assert sum(len(t["x"]) for t in rows["y3"]) == len(stage_passes(prediction))


def test_the_command_says_where_the_plot_is(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    from lumos.cli.predict import predict

    predict(model="llama3.2-1b", cluster="h100", gpus=1, global_batch=1, seq=128, plot="plot.html")
    assert capsys.readouterr().out.rstrip().endswith("drawn in plot.html")
    assert (tmp_path / "plot.html").stat().st_size > 1000
