from __future__ import annotations

from dataclasses import replace

import numpy as np

from lumos.analyze.steps import members, step_spans
from lumos.graph.table import Dependency, Kind, Processor, Step
from lumos.simulate.timeline import Timeline, measured

US = 1000


def test_a_step_owns_what_starts_in_its_mark_and_what_that_launches(two_steps):
    owners = members(two_steps)
    assert [s.name for s in owners.steps] == ["ProfilerStep#0", "ProfilerStep#1"]
    assert owners.tasks(0).tolist() == [0, 1, 2, 3, 4, 5, 8, 10]
    assert owners.tasks(1).tolist() == [6, 7, 9]


def test_device_work_follows_its_launch_into_the_next_step(two_steps):
    late = two_steps.measured_start.copy()
    late[10] = 130 * US
    graph = replace(two_steps, measured_start=late)
    assert members(graph).step[10] == 0


def test_a_pause_at_the_end_does_not_lengthen_a_step(two_steps):
    start, end = step_spans(measured(two_steps), members(two_steps))
    assert (start.tolist(), end.tolist()) == ([0, 105 * US], [80 * US, 150 * US])


def test_work_launched_before_the_window_belongs_to_no_step(draw_graph):
    thread, stream = Processor(3, False, "thread 1"), Processor(3, True, "stream 7", 0, 7)
    tasks = [
        (0, Kind.OPERATOR, "A", 0, 10),
        (0, Kind.LAUNCH, "launch", 10, 12),
        (1, Kind.KERNEL, "early", 0, 20),
        (1, Kind.KERNEL, "mine", 20, 30),
        (1, Kind.KERNEL, "orphan", 30, 35),
    ]
    graph = draw_graph([thread, stream], tasks, [(1, 3, Dependency.LAUNCH)], (Step(3, "s", 0, 100 * US),), release=[(0, 0), (2, 0)])
    owners = members(graph)
    assert owners.prefix.tolist() == [False, False, True, False, False]
    assert owners.tasks(0).tolist() == [0, 1, 3, 4]


def test_a_rank_that_shows_no_launch_has_no_prefix(draw_graph):
    stream = Processor(0, True, "stream 7", 0, 7)
    graph = draw_graph(
        [stream], [(0, Kind.KERNEL, "k", 0, 5), (0, Kind.KERNEL, "l", 6, 9)], steps=(Step(0, "s", 0, 9000),), release=[(0, 0)]
    )
    assert members(graph).tasks(0).tolist() == [0, 1]


def test_a_step_without_work_is_left_out(two_steps):
    graph = replace(two_steps, steps=(Step(0, "before", -50 * US, 0), *two_steps.steps))
    owners = members(graph)
    assert [s.name for s in owners.steps] == ["ProfilerStep#0", "ProfilerStep#1"]
    assert owners.tasks(0).tolist() == members(two_steps).tasks(0).tolist()


def test_tasks_outside_every_mark_belong_to_no_step(two_steps):
    owners = members(replace(two_steps, steps=two_steps.steps[1:]))
    assert (owners.step[[0, 1, 8, 10]] == -1).all() and (owners.step[[6, 7, 9]] == 0).all()


def test_an_assembled_graph_is_one_step_a_rank(two_steps):
    graph = replace(two_steps, measured_start=None, measured_end=None, steps=())
    timeline = Timeline(graph, two_steps.measured_start, two_steps.measured_end, "replayed")
    owners = members(graph)
    start, end = step_spans(timeline, owners)
    assert len(owners.steps) == 1 and int(end[0] - start[0]) == 150 * US


def test_marks_of_ranks_do_not_mix(draw_graph):
    threads = [Processor(rank, False, "thread 1") for rank in (2, 5)]
    tasks = [(0, Kind.OPERATOR, "a", 0, 1), (0, Kind.OPERATOR, "b", 10, 11), (1, Kind.OPERATOR, "a", 5, 6), (1, Kind.OPERATOR, "b", 15, 16)]
    marks = (Step(2, "s", 0, 10 * US), Step(2, "t", 10 * US, 20 * US), Step(5, "s", 5 * US, 15 * US), Step(5, "t", 15 * US, 25 * US))
    owners = members(draw_graph(threads, tasks, steps=marks))
    assert owners.step.tolist() == [0, 1, 2, 3]
    assert owners.step_rank().tolist() == [0, 0, 1, 1]
    assert np.array_equal(owners.rank, [0, 0, 1, 1])
