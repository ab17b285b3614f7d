"""Why an interval is as wide as it is."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from lumos.changes.answer import Answer, Changed, Provenance
from lumos.changes.certainty.trusted import as_far_as_told, interval_causes
from lumos.changes.changes import Changes
from lumos.changes.whatif import answer_changes


def test_the_causes_of_an_interval_make_up_its_width(example):
    """The gpt example has three periods, and nothing of it is unknown: its half-width is the replay's error and the steps' spread."""
    found = answer_changes(*example, Changes())
    causes = interval_causes(example[1], found)
    assert not causes.few_steps
    assert causes[3:] == (0, 0, 0)
    half = (causes.base_error**2 + causes.step_spread**2) ** 0.5
    assert found.outcome.step_time_high_s / found.outcome.step_time_s - 1 == pytest.approx(max(half, 0.001), rel=1e-6)


def test_what_the_interval_of_a_changed_plan_consists_of(example):
    """A base of 10 s, 10 % either way; the changed step between 7.2 and 13.2 s. Without those 10 % it is between 8 and 12 s, which is what
    the costs of its work leave open. With 1 % of the base unknown, each end lies another 0.1 s out."""
    _, graph = example

    def causes(low, high, unknown):
        base, changed, trust = step_of(10, 9, 11), step_of(10.5, low, high), SimpleNamespace(unknown=unknown)
        return interval_causes(graph, SimpleNamespace(base=base, outcome=changed, trust=trust, altered=True, job=None))

    assert causes(7.2, 13.2, 0.0)[3:] == (0, 0, pytest.approx(4))
    assert causes(7.1, 13.3, 0.01)[3:] == (pytest.approx(0.1), 0, pytest.approx(4))


@pytest.mark.parametrize(("low", "high", "grade"), [(8.4, 9.6, "sound"), (7.9, 9.2, "limited"), (8.9, 10, "limited")])
def test_an_interval_that_is_wider_than_the_change_limits_the_answer(low, high, grade):
    """10 s become 9; an interval may reach less than 1 s to each side, as that is what the change does."""
    base, changed = step_of(10, 9.9, 10.1), step_of(9, low, high)
    found = Answer(changed, base, None, (), (), Provenance(1, 0, 0))
    assert as_far_as_told(found).trust.grade == grade
    assert as_far_as_told(replace(found, outcome=step_of(9.9, 9.5, 10.3))).trust.grade == "sound"  # 4 % is what a replay may be off
    assert as_far_as_told(replace(found, altered=False)).trust.grade == "sound"


def step_of(time, low, high):
    return SimpleNamespace(step_time_s=time, step_time_low_s=low, step_time_high_s=high)


def test_errors_of_kernels_of_other_names_do_not_add_up_but_those_of_one_unknown_do():
    """Two kernels of one name may each take 15 ns less than they are said to, and one of another name 40 ns less: together 50 ns less, as
    30, 40 and 50 make a right triangle, but 70 ns where one unknown decides all."""
    graph = SimpleNamespace(name=np.array([0, 0, 1]), duration=np.array([100, 100, 100]))
    changed = Changed(graph, None, np.array([85, 85, 60]), np.array([100, 100, 140]), None, None)
    apart, one = (changed.with_separate_errors(np.full(3, together)) for together in (False, True))
    assert (graph.duration - apart.low).sum() == pytest.approx(50, abs=1.5)  # of whole ns
    assert (graph.duration - one.low).sum() == 70
    assert (apart.high - graph.duration).tolist() == [0, 0, 40]
