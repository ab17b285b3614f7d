"""What an interval holds for blocks that are put together anew, and for assumptions that move nothing."""

from dataclasses import replace

import pytest
from validation.foreign.calibrate import rebuilt_to_hold

from lumos.changes.certainty.trusted import REBUILT, as_far_as_reached, as_far_as_rebuilt
from lumos.changes.changes import Changes
from lumos.changes.layout.measured_layout import measured_layout
from lumos.changes.layout.prices import exactly
from lumos.changes.whatif import answer_changes
from lumos.diagnostics import Diagnostic
from lumos.segment.segment import segment
from lumos.vocabulary import Grade


def noise(outcome):
    return outcome.step_time_high_s / outcome.step_time_s


def test_more_layers_are_less_sure_than_the_recorded_ones(example):
    found = answer_changes(*example, Changes({"layers": "8"}))
    unknown = found.trust.unknown * found.base.step_time_s / found.outcome.step_time_s
    assert noise(found.outcome) - unknown == pytest.approx(noise(found.base) * (1 + REBUILT))
    assert answer_changes(*example, Changes({"layers": "4"})).outcome == found.base


def test_the_share_that_would_just_hold_a_target(example):
    """Of an interval of 90 to 110, which REBUILT makes wider, 88 is a 45th below the low end, and 121 a tenth above the high one."""
    low, high = 90 * (1 - REBUILT), 110 * (1 + REBUILT)
    assert rebuilt_to_hold(88, low, high) == pytest.approx(1 / 45)
    assert rebuilt_to_hold(121, low, high) == pytest.approx(0.1)
    assert rebuilt_to_hold(100, low, high) == 0


def test_a_change_that_moves_no_step_is_less_sure_than_none(example):
    """Another change than that of the recorded value, which is the recorded job."""
    found, layout = answer_changes(*example, Changes()), measured_layout(segment(example[1], example[0]))
    assert as_far_as_rebuilt(found, layout, layout) is found
    slower = layout.prices.copy()
    slower.multiply(0, exactly(2.0))
    assert noise(as_far_as_rebuilt(found, replace(layout, prices=slower), layout).outcome) > noise(found.outcome)


@pytest.mark.parametrize(("held", "grade"), [(True, Grade.SOUND), (False, Grade.LIMITED)])
def test_an_assumption_limits_an_answer_whose_interval_does_not_hold_it(example, held, grade):
    assumed = replace(answer_changes(*example, Changes()), diagnostics=(Diagnostic("stages-assumed", "…"),))
    assert as_far_as_reached(assumed, held=held).trust.grade is grade
