"""What an interval holds for blocks that are put together anew, and for assumptions that move nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from lumos.diagnostics import Diagnostic
from lumos.graph.build import build
from lumos.trace import read
from lumos.vocabulary import Grade
from lumos.whatif.certainty.rebuilt import REBUILT, as_far_as_rebuilt, rebuilt_to_hold
from lumos.whatif.certainty.trusted import MATTERS, as_far_as_reached
from lumos.whatif.changes import Changes
from lumos.whatif.whatif import answer_changes

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "gpt-2rank-cpu"


@pytest.fixture(scope="module")
def example():
    job = read(EXAMPLE)
    return job, build(job)


def noise(outcome):
    return outcome.step_time_high_s / outcome.step_time_s


def test_more_layers_are_less_sure_than_the_recorded_ones(example):
    found = answer_changes(*example, Changes({"layers": "8"}))
    assert noise(found.outcome) == pytest.approx(noise(found.base) * (1 + REBUILT))
    assert answer_changes(*example, Changes({"layers": "4"})).outcome == found.base


def test_the_share_that_would_just_hold_a_target(example):
    """Of an interval of 90 to 110, which REBUILT makes wider, 88 is a 45th below the low end, and 121 a tenth above the high one."""
    low, high = 90 * (1 - REBUILT), 110 * (1 + REBUILT)
    assert rebuilt_to_hold(88, low, high) == pytest.approx(1 / 45)
    assert rebuilt_to_hold(121, low, high) == pytest.approx(0.1)
    assert rebuilt_to_hold(100, low, high) == 0
    found = answer_changes(*example, Changes())
    assert as_far_as_rebuilt(found) is found


@pytest.mark.parametrize(("reaches", "grade"), [(2 * MATTERS, Grade.LIMITED), (MATTERS / 2, Grade.SOUND), (0, Grade.LIMITED)])
def test_an_assumption_limits_an_answer_that_it_could_move(example, reaches, grade):
    """Or of which the interval holds nothing."""
    found = answer_changes(*example, Changes())
    outcome = replace(found.outcome, step_time_high_s=found.outcome.step_time_high_s * (1 + reaches))
    assumed = replace(found, outcome=outcome, diagnostics=(Diagnostic("stages-assumed", "…"),))
    assert as_far_as_reached(assumed).trust.grade is grade
