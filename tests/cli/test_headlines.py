"""Every verb says the same time of a job's step, on the same basis, and counts the same steps."""

from pathlib import Path

import pytest

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "gpt-2rank-cpu"
VERBS = ("replay", "breakdown", "critical-path", "stragglers", "compare")


@pytest.fixture
def warmed_up(trace, tmp_path):
    """Two ranks of six steps, which begin every 1000 µs, but for a pause of 2000 µs more before step 3."""
    for rank in (0, 1):
        trace(f"rank{rank}.json", rank, 2, steps=6, long=3)
    return tmp_path


def answers(lumos, path, verbs=VERBS):
    """The JSON of each verb; `compare` compares the job with itself."""
    result = {}
    for verb in verbs:
        done = lumos(verb, path, *([path] if verb == "compare" else []), "--json")
        assert done.status == 0, done.err
        result[verb] = done.json
    return result


def figures(answer):
    """The time of the step, its latency and the basis, of an answer or, for `compare`, of each of its two jobs."""
    sides = [answer[side] for side in ("a", "b")] if "a" in answer else [answer]
    return {(side["step_time_ns"], side["latency_ns"], side["basis"]) for side in sides}


def test_every_verb_says_the_same_time_of_the_step(lumos, warmed_up):
    for verb, answer in answers(lumos, warmed_up).items():
        assert figures(answer) == {(1_400_000, 601_000, "period")}, verb


def test_every_verb_counts_the_same_steps(lumos, warmed_up):
    """Step 0 has no period; step 3 takes three times as long as the others, and counts."""
    result = answers(lumos, warmed_up)
    for verb in ("replay", "breakdown", "critical-path"):
        of_rank = [step for step in result[verb]["steps"] if step.get("rank", 0) == 0]
        assert [(step["name"], step["basis"], step["counts"]) for step in of_rank] == [
            ("ProfilerStep#0", "latency", False),
            *((f"ProfilerStep#{i}", "period", True) for i in range(1, 6)),
        ], verb
    counted = [f"ProfilerStep#{i}" for i in range(1, 6)]
    assert [step["name"] for step in result["replay"]["steps"] if step["rank"] == 0 and step["scored"]] == counted
    assert result["stragglers"]["steps"] == len(counted)
    assert result["compare"]["a"]["steps"] == result["compare"]["b"]["steps"] == counted
    for verb, answer in result.items():
        assert any(d["code"] == "steps-uneven" and "median" in d["message"] for d in answer["diagnostics"]), verb


def test_a_job_without_streams_says_so(lumos):
    done = lumos("breakdown", EXAMPLE, "--by", "stream")
    assert "nothing to show: no device work in the steps" in done.out
