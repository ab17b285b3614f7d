"""The critical path of jobs drawn by hand, where every link can be checked on paper."""

from dataclasses import replace

import numpy as np
import pytest

from lumos.analyze.critical_path import critical_paths
from lumos.graph.table import Dependency, Kind, Processor, Step
from lumos.simulation import simulate
from lumos.simulation.timeline import measured
from lumos.vocabulary import Basis

US = 1000


def lengths(timeline, path):
    """(name, rank, µs at work) of every link."""
    graph = timeline.graph
    return [(graph.names[graph.name[link.task]], link.rank, (link.end_ns - link.start_ns) // US) for link in path.links]


def adds_up(path):
    stretches = sum(link.end_ns - link.start_ns + link.delay_ns + link.idle_ns for link in path.links)
    assert stretches == sum(path.by_class.values()) == sum(path.by_group.values()) == path.duration_ns
    assert sum(share.path_ns for share in path.by_rank) == path.duration_ns
    at = path.start_ns
    for link in path.links:
        assert link.start_ns - link.delay_ns - link.idle_ns == at
        at = link.end_ns
    assert at == path.start_ns + path.duration_ns


def test_one_rank_by_hand(two_steps):
    """Step 0 is complete with B on its thread (0 … 80 µs), not with its kernels; step 1 with k2, 70 µs later: the pause after B, C, its
    launch, 2 µs latency, k2."""
    timeline = simulate(two_steps)
    first, second = critical_paths(timeline)
    assert lengths(timeline, first) == [("A", 0, 10), ("launch", 0, 2), ("launch", 0, 2), ("between", 0, 56), ("B", 0, 10)]
    assert lengths(timeline, second) == [("between", 0, 25), ("C", 0, 10), ("launch", 0, 2), ("k2", 0, 31)]
    assert second.by_class == {
        "other": 31 * US,
        "cpu between operators": 25 * US,
        "cpu operators": 10 * US,
        "launch calls": 2 * US,
        "launch latency": 2 * US,
    }
    assert second.by_group == {"CPU work": 37 * US, "kernels": 31 * US, "launches and gaps": 2 * US}
    assert (first.basis, first.start_ns, first.duration_ns) == (Basis.LATENCY, 0, 80 * US)
    assert (second.basis, second.start_ns, second.duration_ns) == (Basis.PERIOD, 80 * US, 70 * US)
    assert second.links[-1].cause == Dependency.LAUNCH
    for path in (first, second, *critical_paths(measured(two_steps))):
        adds_up(path)


def test_the_paths_of_steps_that_overlap_follow_one_another(cpu_ahead):
    """Kernels at 10–40, 40–70 and 70–110 µs: each step but the first is its own kernel, as its period begins when the one before ends."""
    timeline = measured(cpu_ahead((30, 30, 40)))
    first, second, third = critical_paths(timeline)
    assert lengths(timeline, first) == [("launch", 0, 10), ("k", 0, 30)]
    assert [(p.start_ns // US, p.by_class) for p in (second, third)] == [(40, {"other": 30 * US}), (70, {"other": 40 * US})]
    for path in (first, second, third):
        adds_up(path)


def test_what_no_cause_accounts_for_is_idle(two_steps, shifted):
    """k2 measured 5 µs later than its launch lets it start."""
    path = critical_paths(shifted(two_steps, {9: (5, 5)}))[1]
    assert path.by_class["idle"] == 5 * US and path.links[-1].idle_ns == 5 * US
    adds_up(path)


@pytest.mark.parametrize("run", [measured, simulate])
def test_the_path_goes_on_at_the_rank_that_came_last(two_ranks, run):
    timeline = run(two_ranks)
    (path,) = critical_paths(timeline)
    assert path.duration_ns == 72 * US
    assert lengths(timeline, path) == [("A", 1, 40), ("launch", 1, 2), ("nccl", 1, 20), ("gemm", 1, 8)]
    assert path.by_class == {
        "cpu operators": 40 * US,
        "transfer": 20 * US,
        "gemm": 8 * US,
        "launch calls": 2 * US,
        "launch latency": 2 * US,
    }
    assert [tuple(share) for share in path.by_rank] == [(0, 0, 30 * US, 0), (1, 72 * US, 0, 30 * US)]
    adds_up(path)


def test_a_rank_delayed_by_5_ms_of_cpu_work_delays_all_that_depends_on_it(two_ranks):
    """Rank 0's A takes 5 ms more, so rank 0 now arrives last, at 5014 µs instead of 14. That is 4970 µs after rank 1's arrival
    at 44, so the all-reduce ends on both ranks 4970 µs later."""
    before, duration = simulate(two_ranks), two_ranks.duration.copy()
    duration[0] += 5000 * US
    after = simulate(two_ranks, duration)
    assert ((after.end - before.end)[[3, 8, 4, 9]] == 4970 * US).all()
    (path,) = critical_paths(after)
    assert [tuple(share)[2:] for share in path.by_rank] == [(0, 4970 * US), (4970 * US, 0)]
    assert lengths(after, path) == [("A", 0, 5010), ("launch", 0, 2), ("nccl", 0, 20), ("gemm", 1, 8)]


def test_a_late_rank_is_a_late_start(two_ranks):
    """Rank 1 starts its thread 25 µs late; the step starts with rank 0."""
    late = replace(two_ranks, release_time=np.array([0, 25 * US]))
    (path,) = critical_paths(simulate(late))
    assert (path.start_ns, path.duration_ns, path.by_class["late start of the rank"]) == (0, 97 * US, 25 * US)
    adds_up(path)


def test_a_kernel_that_waits_for_sms(two_kernels):
    """big (stream 7) fills the device for 30 of its 40 µs; small (stream 8) is launched at 4, may start at 34, runs 50 µs.

    Path: launch 0–2, latency 2, big 4–34 (until it releases the device), small 34–84.
    """
    timeline = simulate(two_kernels)
    (path,) = critical_paths(timeline)
    assert lengths(timeline, path) == [("launch", 0, 2), ("big", 0, 30), ("small", 0, 50)]
    assert [link.cause for link in path.links] == [None, Dependency.LAUNCH, Dependency.OCCUPANCY]
    adds_up(path)
    (ignored,) = critical_paths(simulate(replace(two_kernels, ignored=frozenset({Dependency.OCCUPANCY}))))
    assert ignored.duration_ns == 56 * US


def test_on_a_rank_without_device_work_operators_compute(draw_graph):
    tasks = [(0, Kind.OPERATOR, "A", 0, 10), (0, Kind.HOST, "between", 10, 13), (0, Kind.COLLECTIVE, "gloo", 13, 20)]
    graph = draw_graph([Processor(0, False, "thread 1")], tasks, steps=(Step(0, "s", 0, 100 * US),), release=[(0, 0)])
    (path,) = critical_paths(simulate(graph))
    assert path.by_class == {"operators": 10 * US, "transfer": 7 * US, "cpu between operators": 3 * US}
    assert path.by_group == {"CPU work": 3 * US, "operators": 10 * US, "communication": 7 * US}
