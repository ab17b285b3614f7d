from dataclasses import replace

import numpy as np
import pytest

from lumos.analyze.flops import achieved_flops
from lumos.analyze.loop.steps import members
from lumos.graph.table import Kind, Processor, Step
from lumos.simulation.timeline import measured
from lumos.trace.table import Category, Job


def test_achieved_is_operations_over_the_time_of_all_calls(launched):
    job, graph = launched
    (found,) = achieved_flops(measured(graph), members(graph), job)
    assert (found.operator, found.shapes, found.calls, found.time_ns) == ("aten::mm", "[[8,4],[4,2]]", 2, 160_000)
    assert found.flops_per_s == pytest.approx(2 * 128 / 160e-6)


def test_without_devices_the_operators_own_time_counts(draw_graph, record):
    trace = record((Category.OPERATOR, "aten::mm", 0, 0, 16_000, {"Input Dims": "[[8,4],[4,2]]"}))
    tasks = [(0, Kind.OPERATOR, "aten::mm", 0, 10), (0, Kind.OPERATOR, "aten::mm", 12, 16)]
    graph = draw_graph([Processor(0, False, "t")], tasks, steps=(Step(0, "s", 0, 99_000),))
    graph = replace(graph, event=np.array([0, 0], np.int32))  # two slices of one operator
    (found,) = achieved_flops(measured(graph), members(graph), Job((trace,)))
    assert (found.calls, found.time_ns) == (1, 14_000)
