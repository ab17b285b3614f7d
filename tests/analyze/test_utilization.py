from __future__ import annotations

import numpy as np
import pytest

from lumos.analyze.steps import members
from lumos.analyze.utilization import busy_curves, curve, difference
from lumos.graph.table import Kind, Processor, Step
from lumos.intervals import union
from lumos.simulate.timeline import measured

MS = 1_000_000


def test_a_curve_by_hand():
    busy = union(np.array([0, 15 * MS // 10]), np.array([MS // 2, 9 * MS]))
    assert curve(busy, 0, 25 * MS // 10).tolist() == [0.5, 0.5, 0.5]  # the last bin ends with the step, half-way


def test_a_curve_starts_with_its_step_and_is_blind_to_other_ranks(draw_graph):
    processors = [Processor(0, True, "stream 7", 0, 7), Processor(0, True, "stream 8", 0, 8), Processor(1, True, "stream 7", 0, 7)]
    tasks = [(0, Kind.KERNEL, "k", 500, 1000), (1, Kind.KERNEL, "l", 750, 2500), (2, Kind.KERNEL, "m", 0, 4000)]
    graph = draw_graph(processors, tasks, steps=(Step(0, "s", 0, 9 * MS),))
    (found,) = busy_curves(measured(graph), members(graph))
    assert found.tolist() == [1.0, 1.0]


def test_the_shorter_run_is_idle_where_it_has_ended():
    assert difference(np.array([1.0, 0.5]), np.array([0.5])) == pytest.approx(0.5)
    assert difference(np.array([1.0]), np.array([1.0])) == 0.0
    assert difference(np.empty(0), np.empty(0)) is None
