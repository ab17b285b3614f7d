import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


def test_two_jobs(lumos, trace):
    """B has half the work: 30 kernels a step instead of 60, so its only step is complete at 301 µs."""
    a, b = trace("a.json", steps=1), trace("b.json", steps=1, per_step=30)
    answer = lumos("compare", a, b, "--json").json
    assert (answer["a"]["step_time_ns"], answer["b"]["step_time_ns"], answer["change_ns"]) == (601_000, 301_000, -300_000)
    assert answer["a"]["basis"] == answer["b"]["basis"] == "latency"
    assert answer["change"] == pytest.approx(-300 / 601)
    (kernel,) = answer["kernels"]
    assert (kernel["name"], kernel["status"], kernel["before"]["runs"], kernel["after"]["runs"]) == ("gemm_kernel", "changed", 59, 29)
    assert kernel["cost_ns"] == -30 * 6000
    assert [row["status"] for row in answer["collectives"]] == ["same"]
    assert sum(answer["a"]["breakdown"].values()) == 601_000


def test_a_first_step_is_unlike_the_others(lumos, trace):
    """The first step is known by its latency, 601 µs, the second by its period, 1000."""
    answer = lumos("compare", trace(), "--step", "0", "--step", "1", "--json").json
    assert (answer["change_ns"], answer["diagnostics"][0]["code"]) == (399_000, "basis-differs")
    out = lumos("compare", trace(), "--step", "0", "--step", "1").out
    assert out.startswith("A takes 601.0 µs a step (latency), B 1.00 ms (period), +66.4 %: +399.0 µs\nneither\n")


def test_text_says_the_answer_first_and_fits_80_columns(lumos, trace):
    done = lumos("compare", trace("a.json", steps=1), trace("b.json", steps=1, per_step=30))
    assert done.out.startswith("A takes 601.0 µs a step, B 301.0 µs (latencies), -49.9 %: -180.0 µs compute\nalone\n")
    assert max(map(len, done.out.splitlines())) <= 80
    for part in ("Where the time of the step goes", "Operators", "aten::mm", "Kernels", "gemm_kernel"):
        assert part in done.out
    same = lumos("compare", trace("a.json"), trace("b.json")).out
    assert "nothing changed" in same and "1.00 ms a step (period; latency 601.0 µs)" in same


@pytest.mark.parametrize("arguments", ["A", "A --step 0", "A A A", "A A --step 0 --step 1 --step 0"])
def test_what_cannot_be_compared_is_wrong_usage(lumos, trace, arguments):
    path = trace()
    done = lumos("compare", *(path if word == "A" else word for word in arguments.split()))
    assert (done.status, done.out) == (2, "") and "compare takes two jobs" in done.err


def test_a_slowdown_fails(lumos, trace, interrupted):
    """Steps of 1000 µs; the same slowed down by a tenth; and a job with one step of four that took three times as long."""
    a, b = trace("a.json", steps=5), trace("b.json", steps=5)
    b.write_text(json.dumps(slowed(json.loads(b.read_text()), 1.1)))
    done = lumos("compare", a, b, "--fail-above", "3%")
    assert done.status == 1 and "failed: B is slower by more than 3.0 %, beyond the noise (+10.0 % ± 0.0 %)" in done.out
    answer = lumos("compare", a, b, "--fail-above", "0.2", "--json")
    assert (answer.status, answer.json["regression"]["verdict"]) == (0, "within")
    noisy = lumos("compare", a, interrupted, "--fail-above", "3%")
    assert noisy.status == 0 and "passed, but not shown" in noisy.out
    assert lumos("compare", a, b, "--json").json["regression"] is None


@pytest.mark.parametrize(
    ("share", "status", "why"), [("3", 2, "write 3% for"), ("-1%", 2, "is no share"), ("3%", 1, "A's step is a latency")]
)
def test_a_slowdown_that_cannot_be_judged(lumos, trace, share, status, why):
    done = lumos("compare", trace(steps=1), trace("b.json"), "--fail-above", share)
    assert done.status == status and why in done.err


def test_the_action_leaves_the_answer_as_the_summary_of_the_job(trace, tmp_path):
    a, b = trace("a.json", steps=5), trace("b.json", steps=5)
    b.write_text(json.dumps(slowed(json.loads(b.read_text()), 1.1)))
    given = {"BEFORE": a, "AFTER": b, "FAIL_ABOVE": "3%", "PYTHON": sys.executable, "GITHUB_STEP_SUMMARY": tmp_path / "summary.md"}
    script = Path(__file__).parents[2] / ".github" / "actions" / "compare" / "compare.sh"
    done = subprocess.run(["bash", script], env={**os.environ, **{key: str(value) for key, value in given.items()}}, capture_output=True)
    assert done.returncode == 1 and "    failed: B is slower by more than 3.0 %" in (tmp_path / "summary.md").read_text()


def slowed(recorded, factor):
    for row in recorded["traceEvents"]:
        row.update({key: row[key] * factor for key in ("ts", "dur") if key in row})
    return recorded
