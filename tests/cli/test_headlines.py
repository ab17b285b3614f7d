"""A headline says whether its step is the mean of the ranks' steps or the step of the job."""

from __future__ import annotations

from pathlib import Path

import pytest

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "gpt-2rank-cpu"
MEAN, JOB = "mean over ranks", "from the first rank's start to the last rank's end"


@pytest.mark.parametrize(
    ("words", "which"),
    [
        (("replay",), MEAN),
        (("breakdown",), MEAN),
        (("critical-path",), JOB),
        (("stragglers",), JOB),
        (("whatif", "--rank-slowdown", "1=1.5"), JOB),
    ],
)
def test_the_headline_says_which_step(lumos, words, which):
    done = lumos(words[0], EXAMPLE, *words[1:])
    assert done.status == 0, done.err
    assert which in " ".join(" ".join(done.out.splitlines()[:3]).split())


@pytest.mark.parametrize("verb", ["replay", "breakdown", "critical-path"])
def test_one_rank_has_one_step(lumos, trace, verb):
    first = " ".join(lumos(verb, trace()).out.splitlines()[:2])
    assert MEAN not in first and JOB not in first


def test_a_job_without_streams_says_so(lumos):
    done = lumos("breakdown", EXAMPLE, "--by", "stream")
    assert "nothing to show: no device work in the steps" in done.out
