"""How much of what a multiplication takes beyond its model it takes at another size."""

from __future__ import annotations

from math import exp, log
from types import SimpleNamespace

import numpy as np
import pytest

from lumos import load_cluster
from lumos.changes.layout.misfit import Usual, usual
from lumos.changes.layout.prices import Ratio
from lumos.changes.layout.rescale import modelled
from lumos.operators.shaped import ShapedOperator

A100 = load_cluster("a100-40gb").accelerator


def times(rows, columns=1024, depth=1024, dtype="c10::BFloat16", batch=0):
    first, second = (rows, depth), (depth, columns)
    if batch:
        first, second = (batch, *first), (batch, *second)
    return ShapedOperator("aten::bmm" if batch else "aten::mm", (first, second), (dtype, dtype))


def fitted(before, after, ratio, slower, typical=1.0):
    """The new over the old time of a kernel that takes `slower` times the 100 us of its model, where others take `typical` times theirs."""
    known = Usual({"c10::BFloat16": log(typical), "float": log(typical)})
    found = known.fitted(before, after, Ratio(ratio, ratio, ratio, 0.0, 100_000.0), 100_000.0 * slower)
    return None if found is None else found.best


def test_the_more_the_rows_change_the_less_of_a_misfit_is_left():
    assert fitted(times(512), times(1024), 2, 1.2) == pytest.approx(2 * 1.2 ** (2**-0.8) / 1.2)
    assert fitted(times(512), times(2048), 4, 1.2) == pytest.approx(4 * 1.2 ** (4**-0.8) / 1.2)
    assert fitted(times(2048), times(512), 1 / 4, 0.9) == pytest.approx(0.9 ** (4**-0.8) / 0.9 / 4)


def test_more_of_it_is_left_where_only_the_depth_changes():
    assert fitted(times(512, depth=1024), times(512, depth=2048), 2, 1.2) == pytest.approx(2 * 1.2 ** (2**-0.55) / 1.2)


def test_what_all_multiplications_take_longer_stays():
    assert fitted(times(512), times(1024), 2, 1.2, typical=1.2) == pytest.approx(2)


def test_the_misfit_of_a_kernel_of_which_only_the_number_or_a_ragged_size_stays_is_kept_whole():
    assert fitted(times(512, batch=4), times(512, batch=16), 4, 1.2) is None
    assert fitted(times(512, 50_257), times(1024, 50_257), 2, 1.2) is None
    assert fitted(times(512, 50_257, dtype="float"), times(1024, 50_257, dtype="float"), 2, 1.2) is not None


@pytest.mark.parametrize("slower", [0.1, 0.5, 2, 10])
def test_more_work_never_takes_less_time(slower):
    ratios = (0.01, 0.1, 0.3, 0.9, 1.1, 2, 3, 5, 10, 30, 300)
    found = [fitted(times(512), times(1024), ratio, slower) for ratio in ratios]
    assert found == sorted(found)


def test_the_interval_reaches_to_all_of_it():
    found = Usual({"c10::BFloat16": 0.0}).fitted(times(512), times(1024), Ratio(2.0, 1.9, 2.1, 0.0, 100.0), 120.0)
    assert (found.low, found.high) == (pytest.approx(1.9 * exp((2**-0.8 - 1) * log(1.2))), 2.1)


def test_the_usual_is_the_middle_of_the_time_of_all_that_are_not_ragged():
    """Three of equal time, 1.1, 1.2 and 1.5 times as long as modelled; one of 50,257 columns, three times as long, does not count.
    As if a fourth took what the model says, it is three quarters of that, as a logarithm."""
    operators = (times(512), times(1024), times(2048), times(512, 50_257))
    slower = np.array([1.1, 1.2, 1.5, 3.0])
    model = np.array([int(modelled(o, A100).time) for o in operators])
    calls = np.rint(1e9 / (model * slower)).astype(int)  # as many of each as make up the same time
    rows = np.arange(calls.sum())
    shapes = SimpleNamespace(of_row=np.repeat(np.arange(4), calls))
    duration = np.repeat(model * slower, calls)
    found = usual(operators, shapes, rows, rows, duration, A100)
    assert found.slower == {"c10::BFloat16": pytest.approx(0.75 * log(1.2))}
