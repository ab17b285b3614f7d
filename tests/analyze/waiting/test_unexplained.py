from dataclasses import replace

import numpy as np
import pytest

from lumos.analyze.loop.steps import members
from lumos.analyze.waiting.idle import unexplained_times
from lumos.graph.table import Dependency, Kind, Processor, Step
from lumos.simulation.timeline import measured

US = 1000


def figures(graph):
    return unexplained_times(measured(graph), members(graph))


def test_kept_waiting_is_a_share_of_its_step(two_steps):
    unclaimed = {"unclaimed_wait_task": np.array([0, 4, 6], np.int32), "unclaimed_wait_time": np.array([4, 4, 9], np.int64) * US}
    graph = replace(two_steps, **unclaimed)
    first, second = figures(graph)
    assert first.kept_wait == pytest.approx(8 / 80)
    assert second.kept_wait == pytest.approx(9 / 70)


def test_idle_without_a_cause_counts_from_the_latest_cause(two_steps):
    assert figures(two_steps)[0].unexplained_idle == 0  # the collective is late by 14 µs: within the tolerance
    late = two_steps.measured_start.copy()
    late[10] = 46 * US  # its launch lets it start at 16
    first, second = figures(replace(two_steps, measured_start=late))
    assert first.unexplained_idle == pytest.approx(30 / 80)
    assert second.unexplained_idle == 0


def test_prefix_is_the_time_its_work_covers_inside_the_step(draw_graph):
    processors = [Processor(0, False, "t"), Processor(0, True, "stream 7", 0, 7)]
    tasks = [
        (0, Kind.LAUNCH, "l", 10, 12),
        (1, Kind.KERNEL, "early", 0, 20),
        (1, Kind.KERNEL, "mine", 20, 110),
    ]
    graph = draw_graph(processors, tasks, [(0, 2, Dependency.LAUNCH)], (Step(0, "s", 5 * US, 200 * US),), release=[(1, 0)])
    (step,) = figures(graph)
    assert step.prefix == pytest.approx(10 / 100)


def many(draw_graph, operators, kernels, device=True):
    processors = [Processor(0, False, "t")] + [Processor(0, True, "stream 7", 0, 7)] * device
    tasks = [(0, Kind.OPERATOR, "op", 2 * i, 2 * i + 1) for i in range(operators)]
    tasks += [(1, Kind.KERNEL, "k", 2 * i, 2 * i + 2) for i in range(kernels)]
    return draw_graph(processors, tasks, steps=(Step(0, "s", 0, 10_000 * US),))


def test_a_step_with_enough_in_it_is_scored(draw_graph):
    assert figures(many(draw_graph, 50, 50))[0].scored
    assert figures(many(draw_graph, 50, 0, device=False))[0].scored


@pytest.mark.parametrize(("operators", "kernels", "device"), [(49, 50, True), (50, 49, True), (49, 0, False)])
def test_a_step_with_little_in_it_is_not(draw_graph, operators, kernels, device):
    step = figures(many(draw_graph, operators, kernels, device))[0]
    assert not step.scored and "fewer than 50" in step.reason
