"""What the figures of plots share."""

from __future__ import annotations

import pytest

from lumos.reports.plots.figure import log_axis


def test_ticks_of_a_wide_logarithmic_axis_say_their_decade():
    """From 2 to 30 lie 2, 5, 10 and 20; the decades around them are whole."""
    assert log_axis([30.0, 2.0], "s")["tickvals"] == pytest.approx([1, 2, 5, 10, 20, 50, 100, 200, 500])


@pytest.mark.parametrize("values", [[2.0, 3.0], [], [0.0]])
def test_a_narrow_axis_has_ticks_of_its_own(values):
    assert "tickvals" not in log_axis(values, "s")
