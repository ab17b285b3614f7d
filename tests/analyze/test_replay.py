from dataclasses import replace

import numpy as np
import pytest

from lumos.analyze.loop.steps import members
from lumos.analyze.replay import replay, start_errors
from lumos.analyze.waiting.idle import NO_PERIOD, NOT_COUNTED
from lumos.errors import GraphError
from lumos.graph.table import Kind, OneOff, Processor, Step
from lumos.simulation.timeline import measured

US = 1000


def test_the_measurement_replays_without_error(two_steps):
    result = replay(two_steps, measured(two_steps))
    assert [s.error for s in result.steps] == [0.0, 0.0]
    assert [(s.basis, s.measured_ns, s.latency_ns) for s in result.steps] == [("latency", 80 * US, 80 * US), ("period", 70 * US, 45 * US)]
    assert result.steps[0].kernel_start_error == (0.0, 0.0)
    assert result.collective_start_error == (0.0, 0.0)
    assert result.steps[0].utilization_error == 0.0


def test_errors_are_signed_and_relative(two_steps, shifted):
    """B ends 8 later, at 88, and k2 9 earlier, at 141: step 0 takes 88 instead of 80, and step 1, from 88 on, 53 instead of 70."""
    first, second = replay(two_steps, shifted(two_steps, {4: (0, 8), 9: (0, -9)})).steps
    assert first.error == pytest.approx(8 / 80)
    assert second.error == pytest.approx(-17 / 70)


def test_steps_that_do_not_count_are_listed_and_not_scored(cpu_ahead):
    """Something in step 1 happens once; the first step has no period, and step 2 only shows when step 3 begins."""
    graph = cpu_ahead((30, 90, 30, 30))
    graph = replace(graph, one_off=OneOff(np.array([2], np.int32), np.ones(1), np.zeros(1, np.int8)))
    result = replay(graph, measured(graph))
    assert [s.unscored_reason for s in result.steps[:3]] == [NO_PERIOD, NOT_COUNTED, NOT_COUNTED]
    assert "fewer than 50" in result.steps[3].unscored_reason
    assert [s.counts for s in result.steps] == [False, False, False, True]
    assert [d.code for d in result.diagnostics] == ["step-left-out"]


def scored(draw_graph, communicate=True):
    processors = [Processor(0, False, "t"), Processor(0, True, "stream 7", 0, 7)]
    kinds = [Kind.COLLECTIVE if communicate and i == 0 else Kind.KERNEL for i in range(60)]
    tasks = [(0, Kind.OPERATOR, "op", 2 * i, 2 * i + 1) for i in range(60)] + [
        (1, kind, "k", 2 * i, 2 * i + 2) for i, kind in enumerate(kinds)
    ]
    return draw_graph(processors, tasks, steps=(Step(0, "s", 0, 10_000 * US),))


def test_means_over_scored_steps(draw_graph, shifted):
    graph = scored(draw_graph)
    result = replay(graph, shifted(graph, {119: (0, 12), 60: (0, -1)}))
    assert result.steps[0].scored
    assert result.mean_abs_error == result.max_abs_error == pytest.approx(12 / 120)
    assert result.exposed_communication_error == pytest.approx(1 / 120)


def test_constants_are_named_one_value_a_rank(two_steps):
    graph = replace(two_steps, queue_depth=np.array([1020], np.int32))
    assert replay(graph, measured(graph)).constants == {"launch_latency_ns": (2000,), "queue_depth": (1020,)}


def test_a_graph_that_never_ran_cannot_be_compared(two_steps):
    with pytest.raises(GraphError, match="never measured"):
        replay(replace(two_steps, measured_start=None, measured_end=None))


def test_marks_that_hold_nothing_are_an_error(two_steps):
    with pytest.raises(GraphError, match="no step"):
        replay(replace(two_steps, steps=(Step(0, "s", -9 * US, 0),)), measured(two_steps))


def test_a_step_late_as_a_whole_has_no_start_error(two_steps, shifted):
    """B and all of step 1 are 33 late. Had B been in time, step 1 would take 33 more, and k2 would be late by 33 of 70."""
    work = dict.fromkeys((6, 7, 9), (33, 33))
    truth, owners = measured(two_steps), members(two_steps)
    assert start_errors(truth, shifted(two_steps, {4: (33, 33), **work}), owners)[9] == 0
    assert start_errors(truth, shifted(two_steps, work), owners)[9] == pytest.approx(33 / 70)
