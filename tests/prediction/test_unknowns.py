"""What a configuration leaves open widens the interval, and is asked for."""

import math

import pytest
from tests.prediction.test_rows_of_runs import row

import lumos
from lumos.plan.profiles import choose, is_profiled, other_years, profile_questions
from lumos.prediction.step_time import Open, PredictedStep, covering, questions
from lumos.prediction.validate import job_of

JOB = {"model": "llama3-8b", "cluster": "h100", "gpus": 16, "global_batch": 32, "seq": 4096, "tp": 4}


def test_habits_multiply_and_independent_facts_combine_by_squares():
    time = PredictedStep(1.0, 1 / 1.08, 1.08)
    habits = [Open("a", "?", {"slow": 1.1}, of_framework=True), Open("b", "?", {"slow": 1.2, "fast": 0.8}, of_framework=True)]
    found = covering(time, habits)
    assert found.high_s == pytest.approx(1 + math.hypot(0.08, 1.1 * 1.2 - 1))
    assert 1 / found.low_s == pytest.approx(1 + math.hypot(0.08, 1 / 0.8 - 1))
    others = [Open("c", "?", {"slow": 1.3}), Open("d", "?", {"slow": 1.4})]
    assert covering(time, others).high_s == pytest.approx(1 + math.hypot(0.08, 0.3, 0.4))
    assert covering(time, []) == pytest.approx(time)


def test_only_what_matters_is_asked():
    asked = questions([Open("a", "warm?", {"yes": 1.05}), Open("b", "blue?", {"yes": 1.001})])
    assert [note.code for note in asked] == ["a"]
    assert "warm? The step by other answers: yes +5%" in asked[0].message


def test_what_is_stated_is_no_longer_open():
    open_job = lumos.predict(**JOB, framework="generic")
    told = lumos.predict(**JOB, framework="generic", switches={"fusion": "fused", "loss": "torch"})
    codes = {u.code for u in open_job.unknowns}
    assert "unknown-fusion" in codes
    assert codes - {u.code for u in told.unknowns} == {"unknown-fusion"}
    assert told.time.time_s == open_job.time.time_s
    assert told.time.high_s < open_job.time.high_s
    assert {u.code for u in lumos.predict(**JOB).unknowns} == {"unknown-network"}  # two nodes


def test_rows_of_unknown_frameworks_get_the_profile_of_their_time():
    now, then = (job_of(row(framework="HomeGrown", year=year)) for year in ("2025", "2021"))
    assert (now.framework.name, now.framework.attention, then.framework.attention) == ("generic", "cudnn", "unfused")
    assert choose("HomeGrown", 2023).framework.attention == "fa1"  # version 2 is of July of that year
    assert {"unknown-fusion", "unknown-overlap", "unknown-virtual-stages"} <= {u.code for u in now.unknowns}
    assert not is_profiled(choose("HomeGrown", 2025).framework)
    assert {q.code for q in profile_questions("generic")} >= {"unknown-host", "unknown-attention"}


def test_a_framework_without_a_year_may_be_of_another():
    assert {f.attention for f in other_years("Megatron-LM").values()} == {"unfused"}
    assert "unknown-year" in {u.code for u in job_of(row(framework="Megatron-LM", year="")).unknowns}
    assert "unknown-year" not in {u.code for u in job_of(row(framework="Megatron-LM", year="2025")).unknowns}


def test_recomputation_is_open_where_the_job_would_not_fit_without():
    large = {"model": "llama3-70b", "layers": "", "hidden": "", "heads": "", "gpu": "A100-80GB", "seq_len": "8192", "framework": "NeMo"}
    codes = {u.code for u in job_of(row(**large)).unknowns}
    assert "unknown-recomputation" in codes
    assert "unknown-recomputation" not in {u.code for u in job_of(row(**large, recompute="none")).unknowns}
