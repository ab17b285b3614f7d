"""One step's durations in another step's graph, on jobs drawn by hand (µs)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from validation.exchange import exchange


def test_the_durations_of_a_step_give_its_period_in_the_graph_of_another(cpu_ahead):
    """Steps 1 and 2 take 30 and 33, set by their kernels. Taking the other's period is wrong by 3 of 33 and by 3 of 30."""
    found = exchange(cpu_ahead((30, 30, 33)))
    assert (found.pairs, found.alone, found.before) == (2, 0, 0)
    assert found.again == pytest.approx((3 / 33 + 3 / 30) / 2)


def test_steps_that_hardly_differ_tell_nothing(cpu_ahead):
    assert exchange(cpu_ahead((300, 300, 301))) is None


def test_steps_that_do_other_things_are_not_exchanged(cpu_ahead):
    graph = cpu_ahead((30, 30, 33))
    name = graph.name.copy()
    name[5] = len(graph.names)  # the kernel of step 2
    assert exchange(replace(graph, name=name, names=[*graph.names, "other"])) is None
