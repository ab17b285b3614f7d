"""Intervals of many scaled operators, worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from lumos.changes.layout.averaged import average
from lumos.changes.layout.prices import TaskPrices

ONES = np.ones(4)
#: Four tasks of 100 ns become twice as long, and may be a tenth longer or shorter than that: half-widths of 20 ns each.
TWICE = (2.0 * ONES, 1.8 * ONES, 2.2 * ONES)
DURATION = np.full(4, 100, np.int64)


def averaged(source, columns=TWICE, before=(ONES, ONES, ONES)):
    out = TaskPrices(DURATION, *columns).copy()
    average(out, TaskPrices(DURATION, *before), np.arange(4), np.array(source))
    return out.columns


@pytest.mark.parametrize(
    ("source", "half_width"),
    [
        ([0, 1, 2, 3], 0.1),  # four errors of 20 ns: √(4 · 20²) = 40 instead of 80 ns, so half of 0.2 each
        ([5, 5, 5, 5], 0.2),  # one error
        ([0, 0, 1, 1], 0.2 / 2**0.5),  # two errors of 40 ns: 56.6 instead of 80 ns
    ],
)
def test_errors_of_different_operators_partly_cancel(source, half_width):
    factor, low, high = averaged(source)
    assert factor.tolist() == [2.0] * 4
    assert low == pytest.approx(2 - half_width)
    assert high == pytest.approx(2 + half_width)


def test_what_an_earlier_change_may_be_off_by_stays():
    """Everything may have been half as long before already: low ends are half of those without."""
    before = (ONES, 0.5 * ONES, ONES)
    _, low, high = averaged([0, 1, 2, 3], (2.0 * ONES, 0.9 * ONES, 2.2 * ONES), before)
    assert low == pytest.approx(0.95)
    assert high == pytest.approx(2.1)


def test_work_that_is_left_out_has_no_error():
    gone = np.array([0.0, 1.0, 1.0, 1.0])
    columns = tuple(column * gone for column in TWICE)
    _, low, high = averaged([0, 1, 1, 1], columns, (gone, gone, gone))
    assert low.tolist() == pytest.approx([0.0, 1.8, 1.8, 1.8])
    assert high.tolist() == pytest.approx([0.0, 2.2, 2.2, 2.2])
