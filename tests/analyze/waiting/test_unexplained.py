from dataclasses import replace

import numpy as np
import pytest

from lumos.analyze.loop.steps import is_operation_level, members
from lumos.analyze.waiting.unexplained import NO_PERIOD, NOT_COUNTED, unexplained_times
from lumos.graph.table import Dependency, Kind, OneOff, Processor, Step
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


def test_an_ignored_dependency_is_no_cause(draw_graph):
    processors = [Processor(0, True, "stream 7", 0, 7), Processor(0, True, "stream 8", 0, 8)]
    tasks = [(0, Kind.KERNEL, "k", 0, 50), (1, Kind.KERNEL, "l", 0, 1), (1, Kind.KERNEL, "m", 50, 60)]
    graph = draw_graph(processors, tasks, [(0, 2, Dependency.STREAM_WAIT)], (Step(0, "s", 0, 99 * US),))
    assert figures(graph)[0].unexplained_idle == 0
    ignoring = replace(graph, ignored=frozenset({Dependency.STREAM_WAIT}))
    assert figures(ignoring)[0].unexplained_idle == pytest.approx(49 / 60)


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


def test_slices_of_one_operator_count_once(draw_graph):
    graph = many(draw_graph, 60, 60)
    event = graph.event.copy()
    event[:30] = 0
    assert not figures(replace(graph, event=event))[0].scored


def test_unexplained_idle_is_said(draw_graph):
    graph = many(draw_graph, 60, 60)
    start, end = graph.measured_start.copy(), graph.measured_end.copy()
    end[-1] += 30 * US
    start[-1] += 30 * US
    step = figures(replace(graph, measured_start=start, measured_end=end))[0]
    assert step.unexplained_idle == pytest.approx(30 / 150)
    assert step.scored


def test_a_step_that_does_not_count_is_not_scored(cpu_ahead):
    graph = replace(cpu_ahead((30, 90, 30, 30)), one_off=OneOff(np.array([2], np.int32), np.ones(1), np.zeros(1, np.int8)))
    reasons = [step.reason for step in figures(graph)]
    assert reasons[:3] == [NO_PERIOD, NOT_COUNTED, NOT_COUNTED] and NOT_COUNTED not in reasons[3:]


def test_shares_are_of_the_period(cpu_ahead):
    """3 µs of the launch of step 1 are kept waiting: a tenth of its period, whatever its latency."""
    kept = {"unclaimed_wait_task": np.array([2], np.int32), "unclaimed_wait_time": np.array([3], np.int64) * US}
    assert figures(replace(cpu_ahead((30, 30)), **kept))[1].kept_wait == pytest.approx(3 / 30)


def test_an_operation_waits_for_the_one_before_it_on_its_stream(draw_graph):
    """The last operation may start at 10 by its data; but its stream works until 50."""
    processors = [Processor(0, True, "stream 7", 0, 7), Processor(0, True, "stream 8", 0, 8)]
    tasks = [(0, Kind.KERNEL, "a", 0, 50), (1, Kind.KERNEL, "b", 0, 10), (0, Kind.KERNEL, "c", 50, 60)]
    graph = draw_graph(processors, tasks, [(1, 2, Dependency.DATA)], (Step(0, "s", 0, 99 * US),))
    assert figures(graph)[0].unexplained_idle == 0
    out_of_order = replace(graph, ignored=frozenset({Dependency.STREAM_ORDER}))
    assert figures(out_of_order)[0].unexplained_idle == pytest.approx(40 / 60)


def test_a_set_that_says_what_launched_what_has_devices(draw_graph):
    """A Chakra set of a recorded job has data dependencies between threads; its kernels are judged as those of the recording."""
    processors = [Processor(0, False, "t"), Processor(0, False, "u"), Processor(0, True, "stream 7", 0, 7)]
    tasks = [(0, Kind.OPERATOR, "o", 0, 10), (1, Kind.LAUNCH, "l", 10, 12), (2, Kind.KERNEL, "k", 13, 60)]
    edges = [(0, 1, Dependency.DATA), (1, 2, Dependency.LAUNCH)]
    graph = draw_graph(processors, tasks, edges, (Step(0, "s", 0, 99 * US),))
    assert not is_operation_level(graph)
    assert figures(graph)[0].too_few == "1 GPU rows and 1 operators in all steps, fewer than 50"


def test_a_delay_before_an_operation_is_no_call_that_launched_it(draw_graph):
    """A recording of operations has delays of the host before them, and no calls."""
    processors = [Processor(0, False, "t"), Processor(0, True, "stream 7", 0, 7), Processor(0, True, "stream 8", 0, 8)]
    tasks = [(0, Kind.HOST, "delay", 0, 10), (1, Kind.KERNEL, "a", 10, 50), (2, Kind.KERNEL, "b", 50, 60)]
    graph = draw_graph(processors, tasks, [(0, 1, Dependency.LAUNCH), (1, 2, Dependency.DATA)], (Step(0, "s", 0, 99 * US),))
    assert is_operation_level(graph)
