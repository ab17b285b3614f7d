"""A plan that a prediction chooses itself, and what a training run costs on several clusters."""

from dataclasses import replace

import pytest

import lumos
from lumos.cost.cluster import load_cluster
from lumos.errors import LumosError, UsageError
from lumos.prediction.operating import campaign
from lumos.searching.facade import side_by_side
from lumos.searching.search import plan_keys

JOB = {"model": "llama3-8b", "cluster": "h100", "gpus": 8, "global_batch": 16, "seq": 4096}


def test_without_sizes_the_fastest_plan_that_fits_is_predicted():
    found, chosen = lumos.search(**JOB), lumos.predict(**JOB)
    assert plan_keys(chosen.job.plan) == plan_keys(found.best[0].job.plan)
    assert chosen.memory.fits and "chosen-plan" in {d.code for d in chosen.diagnostics}
    plain = lumos.predict(**JOB, tp=1)  # one size is enough to say that the others are 1
    assert (plain.job.plan.dp, plain.memory.fits) == (8, False) and "chosen-plan" not in {d.code for d in plain.diagnostics}


def test_what_else_is_given_holds_for_the_plan_that_is_chosen():
    chosen = lumos.predict(**JOB, recompute="full", zero=1, framework="nemo", switches={"tp_overlap": False}).job
    assert (chosen.plan.recompute, chosen.plan.zero, chosen.framework.name, chosen.framework.tp_overlap) == ("full", 1, "nemo", False)
    assert lumos.predict(**JOB, lora_rank=16).job.plan.lora_rank == 16  # no search: the sizes are 1


def test_where_no_plan_fits_there_is_no_answer():
    with pytest.raises(LumosError, match=r"none of .* plans of llama3-405b on 8 devices fits the 84\.4 GB of h100; .* takes 8\d\d\.\d GB"):
        lumos.predict(**{**JOB, "model": "llama3-405b"})


def test_days_and_dollars_of_a_training_run():
    cluster = load_cluster("h100")
    run = campaign(cluster, 100, 10_000.0, 8.64e10 * 5)  # a million tokens a second
    assert run.days == pytest.approx(5)
    assert run.price is not None and run.price.date and run.dollars == pytest.approx(5 * 24 * 100 * run.price.dollars_per_hour)
    assert campaign(cluster, 100, 10_000.0, 8.64e10, 2.0).dollars == pytest.approx(4800)
    assert campaign(load_cluster("mtia-v1"), 8, 100.0, 1e9).dollars is None


def test_clusters_side_by_side():
    rows = side_by_side(("h100", "b200"), **{key: value for key, value in JOB.items() if key != "cluster"}, tokens=1e12, refine=2)
    assert [row.value for row in rows] == ["h100", "b200"]
    for row in rows:
        (first, *_), best = row.found.campaigns, row.found.best[0]
        assert first.days == pytest.approx(1e12 / (8 * best.tokens_per_s_per_gpu) / 86400)
        assert row.found.to_dict()["best"][0]["campaign"]["dollars"] == first.dollars
    with pytest.raises(UsageError, match="twice"):
        side_by_side(("h100", "h100"), **JOB)


@pytest.mark.parametrize("framework", ["megatron-core", "fsdp2"])
def test_no_two_rows_are_one_plan(framework):
    """In a pipeline of torch's FSDP, gradients that are sharded and those that are not have the same time and memory to the digit."""
    found = lumos.search(**{**JOB, "gpus": 16}, framework=framework, pp=(2, 4), refine=12)
    rows = [(p.time, p.keys["memory"]["peak_bytes"], replace(p.job.plan, zero=0)) for p in found.best]
    assert len(set(rows)) == len(rows) == 12


def test_shared_sizes_of_explain_hold_where_a_plan_states_none():
    found = lumos.explain({"tp": 4}, {"pp": 2}, **JOB, tp=2)
    assert [(p.job.plan.tp, p.job.plan.pp) for p in (found.first, found.second)] == [(4, 1), (2, 2)]
