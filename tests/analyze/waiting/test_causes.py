"""What let each task start, on jobs drawn by hand; every analysis gives the same answer."""

import numpy as np
import pytest

from lumos.analyze.critical_path import critical_paths
from lumos.analyze.loop.steps import members
from lumos.analyze.waiting.causes import NEVER, Cause, causes, device_causes
from lumos.analyze.waiting.idle import Idle, split
from lumos.analyze.waiting.slack import slack
from lumos.graph.table import Dependency, Kind, Processor, Step
from lumos.simulation import simulate
from lumos.simulation.freeze import freeze

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
