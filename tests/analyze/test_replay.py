from dataclasses import replace

import numpy as np
import pytest

from lumos.analyze.loop.steps import members
from lumos.analyze.replay import dependencies, replay, start_error, start_errors
from lumos.analyze.waiting.unexplained import NO_PERIOD, NOT_COUNTED
from lumos.diagnostics import Diagnostic
from lumos.errors import GraphError
from lumos.graph.table import Dependency, Kind, OneOff, Processor, Step
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


def test_the_step_of_the_job_is_its_typical_one(cpu_ahead, shifted):
    """Ranks take 30 and 40 a step; as replayed, the last kernel of rank 1 ends 6 later."""
    graph = cpu_ahead((30, 30), (40, 40))
    result = replay(graph, shifted(graph, {7: (0, 6)}))
    assert (result.step_time_ns, result.latency_ns, result.basis) == (40 * US, 80 * US, "period")
    assert result.replayed_step_time_ns == 46 * US
    assert [(s.rank, s.measured_ns // US, s.replayed_ns // US) for s in result.steps] == [
        (0, 40, 40),
        (0, 30, 30),
        (1, 50, 50),
        (1, 40, 46),
    ]


def test_steps_that_do_not_count_are_listed_and_not_scored(cpu_ahead):
    """Something in step 1 happens once; the first step has no period, and step 2 only shows when step 3 begins."""
    graph = cpu_ahead((30, 90, 30, 30))
    graph = replace(graph, one_off=OneOff(np.array([2], np.int32), np.ones(1), np.zeros(1, np.int8)))
    result = replay(graph, measured(graph))
    assert [s.unscored_reason for s in result.steps[:3]] == [NO_PERIOD, NOT_COUNTED, NOT_COUNTED]
    assert "fewer than 50" in result.steps[3].unscored_reason
    assert [s.counts for s in result.steps] == [False, False, False, True]
    assert [d.code for d in result.diagnostics] == ["step-left-out"]


def test_only_scored_steps_are_averaged(two_steps):
    result = replay(two_steps, measured(two_steps))
    assert not any(s.scored for s in result.steps)
    assert (result.mean_abs_error, result.max_abs_error, result.exposed_communication_error) == (None, None, None)


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


def test_a_job_without_communication_has_no_such_error(draw_graph):
    graph = scored(draw_graph, communicate=False)
    result = replay(graph, measured(graph))
    assert result.exposed_communication_error is None
    assert result.collective_start_error == (None, None)


def test_constants_are_named_one_value_a_rank(two_steps):
    graph = replace(two_steps, queue_depth=np.array([1020], np.int32))
    assert replay(graph, measured(graph)).constants == {"launch_latency_ns": (2000,), "queue_depth": (1020,)}


def test_dependencies_count_edges_and_processor_order(two_steps):
    assert dependencies(two_steps) == 3 + 7 + 1


def test_ignored_kinds_and_diagnostics_are_carried(two_steps):
    finding = Diagnostic("code", "message")
    graph = replace(two_steps, ignored=frozenset({Dependency.STREAM_WAIT}), diagnostics=(finding,))
    result = replay(graph, measured(graph))
    assert (result.ignored, result.diagnostics) == (("stream-wait",), (finding,))


def test_without_a_timeline_the_graph_is_simulated(two_steps):
    result = replay(two_steps)
    # the collective now starts when its launch lets it, at 16 µs; nothing else moves but what follows
    assert result.collective_start_error.median == pytest.approx(14 / 80)


def test_a_graph_that_never_ran_cannot_be_compared(two_steps):
    with pytest.raises(GraphError, match="never measured"):
        replay(replace(two_steps, measured_start=None, measured_end=None))


def test_marks_that_hold_nothing_are_an_error(two_steps):
    with pytest.raises(GraphError, match="no step"):
        replay(replace(two_steps, steps=(Step(0, "s", -9 * US, 0),)), measured(two_steps))


def test_errors_are_relative_to_the_step_and_a_fraction_of_it(two_steps, shifted):
    late = shifted(two_steps, {8: (8, 8)})
    errors = start_errors(measured(two_steps), late, members(two_steps))
    assert errors[8] == pytest.approx(8 / 80)
    assert errors[10] == 0


def test_a_step_late_as_a_whole_has_no_start_error(two_steps, shifted):
    """B and all of step 1 are 33 late. Had B been in time, step 1 would take 33 more, and k2 would be late by 33 of 70."""
    work = dict.fromkeys((6, 7, 9), (33, 33))
    truth, owners = measured(two_steps), members(two_steps)
    assert start_errors(truth, shifted(two_steps, {4: (33, 33), **work}), owners)[9] == 0
    assert start_errors(truth, shifted(two_steps, work), owners)[9] == pytest.approx(33 / 70)


def test_a_summary_of_nothing_is_nothing():
    assert start_error(np.empty(0)) == (None, None)
    assert start_error(np.array([0.0, 0.1, 0.2])).median == pytest.approx(0.1)
