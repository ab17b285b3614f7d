from __future__ import annotations

import pytest


def test_two_jobs(lumos, trace):
    """B has half the work: 30 kernels a step instead of 60, so a step ends at 301 µs."""
    a, b = trace("a.json"), trace("b.json", per_step=30)
    answer = lumos("compare", a, b, "--json").json
    assert (answer["before"]["step_ns"], answer["after"]["step_ns"]) == (601_000, 301_000)
    assert answer["change"] == pytest.approx(-300 / 601)
    (kernel,) = answer["kernels"]
    assert (kernel["name"], kernel["status"], kernel["before"]["runs"], kernel["after"]["runs"]) == ("gemm_kernel", "changed", 59, 29)
    assert kernel["cost_ns"] == -30 * 6000
    assert [row["status"] for row in answer["collectives"]] == ["same"]
    assert sum(answer["before"]["breakdown"].values()) == 601_000


def test_two_steps_of_a_job(lumos, trace):
    answer = lumos("compare", trace(), "--step", "0", "--step", "ProfilerStep#1", "--json").json
    assert (answer["before"]["steps"], answer["after"]["steps"]) == (["ProfilerStep#0"], ["ProfilerStep#1"])
    assert answer["change"] == 0


def test_one_step_of_each_job(lumos, trace):
    answer = lumos("compare", trace("a.json"), trace("b.json"), "--step", "1", "--json").json
    assert answer["before"]["steps"] == answer["after"]["steps"] == ["ProfilerStep#1"]


def test_text_says_the_answer_first_and_fits_80_columns(lumos, trace):
    done = lumos("compare", trace("a.json"), trace("b.json", per_step=30))
    assert done.out.startswith("A takes 601.0 µs a step, B 301.0 µs, -49.9 %: -180.0 µs compute alone\n")
    assert max(map(len, done.out.splitlines())) <= 80
    for part in ("Where the time goes", "Operators", "aten::mm", "Kernels", "gemm_kernel"):
        assert part in done.out
    assert "nothing changed" in lumos("compare", trace("a.json"), trace("b.json")).out


@pytest.mark.parametrize("arguments", ["A", "A --step 0", "A A A", "A A --step 0 --step 1 --step 0"])
def test_what_cannot_be_compared_is_wrong_usage(lumos, trace, arguments):
    path = trace()
    done = lumos("compare", *(path if word == "A" else word for word in arguments.split()))
    assert (done.status, done.out) == (2, "") and "compare takes two jobs" in done.err


def test_a_missing_step_names_those_there_are(lumos, trace):
    done = lumos("compare", trace(), "--step", "0", "--step", "7")
    assert done.status == 2 and "'7' is not a step" in done.err and "ProfilerStep#0" in done.err
