"""`lumos whatif` on the recorded example."""

from __future__ import annotations

from pathlib import Path

import pytest

EXAMPLE = str(Path(__file__).resolve().parents[2] / "examples" / "gpt-2rank-cpu")


def test_a_slower_operator_slows_the_step_and_says_why(lumos):
    done = lumos("whatif", EXAMPLE, "--scale", "operator:aten::addmm=2", "--json")
    assert done.status == 0, done.err
    found = done.json
    assert found["step_time_s"] > found["base"]["step_time_s"] * 1.1
    assert found["changes"] == ["scale operator:aten::addmm by 2"]
    assert found["moved"][0]["what"] == "operators"
    assert sum(found["breakdown"].values()) == pytest.approx(found["step_time_s"])


def test_the_text_says_the_answer_first(lumos):
    done = lumos("whatif", EXAMPLE, "--rank-slowdown", "1=1.5")
    assert done.status == 0
    assert "a step instead of" in done.out.splitlines()[0]


def test_a_pattern_without_a_match_is_an_error(lumos):
    done = lumos("whatif", EXAMPLE, "--scale", "*nccl*=0.5")
    assert done.status == 1
    assert "no task matches" in done.err


def test_a_malformed_change_is_wrong_usage(lumos):
    assert lumos("whatif", EXAMPLE, "--scale", "x").status == 2


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--scale", "*=1e30"), "longer than a century"),
        (("--rank-slowdown", "0=0"), "a factor above 0"),
    ],
)
def test_an_impossible_factor_is_wrong_usage(lumos, words, reason):
    done = lumos("whatif", EXAMPLE, *words)
    assert (done.status, done.out) == (2, "")
    assert reason in done.err and done.err.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--set", "layres=8"), "did you mean 'layers'"),
        (("--set", "layers=nan"), "not a whole number"),
        (("--set", "zero=7"), "at most 3"),
        (("--set", "cuda_graphs=full"), "valid are on, off"),
        (("--set", "precision=fp9"), "did you mean 'fp8'"),
        (("--grid", "schedule=1f1b,1f2b"), "did you mean '1f1b'"),
    ],
)
def test_a_setting_that_no_job_could_take_is_wrong_usage(lumos, words, reason):
    done = lumos("whatif", "/nowhere", *words)  # refused before a file is looked for
    assert (done.status, done.out) == (2, "")
    assert reason in done.err and "Traceback" not in done.err
