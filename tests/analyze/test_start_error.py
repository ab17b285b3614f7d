from __future__ import annotations

import numpy as np
import pytest

from lumos.analyze.start_error import by_class, by_stream, start_errors, summary
from lumos.analyze.steps import members
from lumos.simulate.timeline import measured


def test_errors_are_relative_to_the_step_and_a_fraction_of_it(two_steps, shifted):
    late = shifted(two_steps, {8: (8, 8)})
    errors = start_errors(measured(two_steps), late, members(two_steps))
    assert errors[8] == pytest.approx(8 / 80)
    assert errors[10] == 0


def test_a_step_late_as_a_whole_has_no_start_error(two_steps, shifted):
    late = shifted(two_steps, dict.fromkeys((6, 7, 9), (33, 33)))
    errors = start_errors(measured(two_steps), late, members(two_steps))
    assert errors[9] == 0


def test_a_summary_of_nothing_is_nothing():
    assert summary(np.empty(0)) == (None, None)
    assert summary(np.array([0.0, 0.1, 0.2])).median == pytest.approx(0.1)


def test_by_class_and_stream(two_steps, shifted):
    late = shifted(two_steps, {10: (4, 8)})
    owners = members(two_steps)
    compared = measured(two_steps), late, owners, start_errors(measured(two_steps), late, owners)
    classes = by_class(*compared)
    assert set(classes) == {"collective", "other"}
    assert (classes["collective"].measured_ns, classes["collective"].replayed_ns) == (30_000, 34_000)
    assert classes["collective"].start_error.median == pytest.approx(4 / 80)
    streams = by_stream(*compared)
    assert {name: group.tasks for name, group in streams.items()} == {"rank 0 stream 7": 2, "rank 0 stream 8": 1}
