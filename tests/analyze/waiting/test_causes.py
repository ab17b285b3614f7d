"""What let each task start, on jobs drawn by hand; every analysis gives the same answer."""

from dataclasses import replace

import numpy as np
import pytest

from lumos.analyze.critical_path import critical_paths
from lumos.analyze.loop.steps import members
from lumos.analyze.waiting.causes import Cause, causes, device_causes
from lumos.analyze.waiting.idle import Idle, split
from lumos.analyze.waiting.occupancy import NEVER
from lumos.analyze.waiting.slack import slack
from lumos.graph.table import Dependency, Kind, Occupancy, Processor, Step
from lumos.simulation import simulate
from lumos.simulation.freeze import freeze
from lumos.simulation.timeline import measured

US = 1000


@pytest.mark.parametrize(("factor", "freed_at"), [(1, 34), (2, 64)])
def test_every_analysis_gives_the_same_time_at_which_a_device_was_released(two_kernels, factor, freed_at):
    """big starts at 4 and fills the device for 30 µs, or for 60 where it takes twice as long: it releases it at 34, or at 64.

    small, which could have started at 6 after its launch, starts then. That is the last cause of its start, so its stream's
    idle time is all a wait; the critical path goes on at big; and big, which small waits for, has no slack.
    """
    duration = two_kernels.duration.copy()
    duration[2] *= factor
    timeline, owners, frozen = simulate(two_kernels, duration), members(two_kernels), freeze(two_kernels)
    assert timeline.start[3] == freed_at * US
    assert causes(timeline, frozen).of(3) == Cause(2, freed_at * US, freed_at * US, Dependency.OCCUPANCY)
    by_kind = device_causes(timeline, owners)
    assert by_kind.task.tolist() == [2, 3]
    assert by_kind.launch.tolist() == [4 * US, 6 * US]
    assert by_kind.wait.tolist() == [NEVER, freed_at * US]
    assert by_kind.latest.tolist() == timeline.start[[2, 3]].tolist()
    assert split(timeline, by_kind, np.array([1]), 0, (freed_at + 50) * US).by_cause() == Idle(0, 0, freed_at * US, 0)
    (path,) = critical_paths(timeline)
    assert [(link.task, link.end_ns) for link in path.links[1:]] == [(2, freed_at * US), (3, (freed_at + 50) * US)]
    assert slack(timeline).slack[2] == 0


def test_a_kernel_waits_for_room_from_when_its_stream_is_free(draw_graph):
    """big fills the device from 50 to 90. small, launched by 2, is behind another kernel until 55: it waited for room from then to 90."""
    processors = [Processor(0, False, "thread 1"), Processor(0, True, "stream 7", 0, 7), Processor(0, True, "stream 8", 0, 8)]
    tasks = [
        (0, Kind.LAUNCH, "l", 0, 2),
        (1, Kind.KERNEL, "big", 50, 90),
        (2, Kind.KERNEL, "before", 0, 55),
        (2, Kind.KERNEL, "small", 90, 99),
    ]
    graph = draw_graph(processors, tasks, [(0, 3, Dependency.LAUNCH)], (Step(0, "s", 0, 100 * US),), release=[(0, 0)])
    table = Occupancy(np.array([1, 3], np.int32), np.ones(2, np.float32), np.array([40, 9], np.int64) * US)
    graph = replace(graph, occupancy=table)
    by_kind = device_causes(measured(graph), members(graph))
    assert by_kind.latest[by_kind.task == 3] == 90 * US


def test_both_accounts_agree_on_device_tasks(two_steps):
    timeline = simulate(two_steps, 2 * two_steps.duration)
    found, by_kind = causes(timeline, freeze(two_steps)), device_causes(timeline, members(two_steps))
    assert found.ready[by_kind.task].tolist() == by_kind.latest.tolist()
    assert (by_kind.latest == timeline.start[by_kind.task]).all()


def test_what_the_recording_imposes_has_no_kind(draw_graph):
    """Two kernels of one stream without launches, at 0–10 and 25–30. The recording imposes the second start, not the gap of 2."""
    tasks = [(0, Kind.KERNEL, "k1", 0, 10), (0, Kind.KERNEL, "k2", 25, 30)]
    graph = draw_graph([Processor(0, True, "stream 7", 0, 7)], tasks, lag={Dependency.STREAM_ORDER: 2}, release=[(0, 0), (1, 25)])
    found = causes(simulate(graph), freeze(graph))
    assert found.of(0) == Cause(-1, NEVER, NEVER, None)
    assert found.of(1) == Cause(0, 10 * US, 10 * US, None)


def test_a_dispatch_behind_the_kernel_before_is_a_gap_and_no_wait(draw_graph):
    """k1 at 0–10, and k2, launched by 2, at 13–20: its dispatch behind k1 takes 3."""
    processors = [Processor(0, False, "thread 1"), Processor(0, True, "stream 7", 0, 7)]
    tasks = [(0, Kind.LAUNCH, "l", 0, 2), (1, Kind.KERNEL, "k1", 0, 10), (1, Kind.KERNEL, "k2", 13, 20)]
    edges = [(0, 2, Dependency.LAUNCH), (1, 2, Dependency.OCCUPANCY)]
    lag = {Dependency.STREAM_ORDER: 1, Dependency.OCCUPANCY: 3}
    graph = draw_graph(processors, tasks, edges, (Step(0, "s", 0, 20 * US),), lag, release=[(0, 0)])
    timeline = simulate(graph)
    assert causes(timeline, freeze(graph)).of(2) == Cause(1, 13 * US, 10 * US, Dependency.OCCUPANCY)
    by_kind = device_causes(timeline, members(graph))
    assert (by_kind.previous[1], by_kind.wait[1]) == (13 * US, NEVER)
    assert split(timeline, by_kind, np.array([0, 1]), 0, 20 * US).by_cause() == Idle(0, 3 * US, 0, 0)
    (path,) = critical_paths(timeline)
    assert path.by_class["kernel gaps"] == 3 * US


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_of_causes_that_are_over_at_the_same_time_the_first_is_named(draw_graph, order):
    """Two threads work until 10 µs, and a third waits for both."""
    processors = [Processor(0, False, f"thread {i}") for i in range(3)]
    tasks = [(0, Kind.OPERATOR, "a", 0, 10), (1, Kind.OPERATOR, "b", 0, 10), (2, Kind.OPERATOR, "c", 10, 20)]
    graph = draw_graph(processors, tasks, [(before, 2, Dependency.HAND_OFF) for before in order], (Step(0, "s", 0, 20 * US),), {})
    assert causes(simulate(graph), freeze(graph)).of(2) == Cause(order[0], 10 * US, 10 * US, Dependency.HAND_OFF)
