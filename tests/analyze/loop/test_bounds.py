"""What physics allows of an answer, on jobs of a few tasks (µs)."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.drawn_graph import drawn_graph

from lumos.analyze.loop.bounds import beyond_bounds, duration_bounds, outside_bounds, size_bounds, worth_bound
from lumos.analyze.loop.steady import altered, steady
from lumos.analyze.loop.steps import members
from lumos.diagnostics import Diagnostic
from lumos.graph.evidence import WAITS_INFERRED
from lumos.graph.table import Dependency, Kind, Processor
from lumos.vocabulary import Grade

US = 1000
THREADS = (Processor(0, False, "thread 1"), Processor(0, False, "thread 2"), Processor(0, True, "stream 7", 0, 7))


def graph_of(tasks, edges, waits=()):
    """A graph of tasks (processor, kind, name, µs) and of edges (before, after, dependency) between their positions."""
    drawn = [(processor, kind, name, time * US) for processor, kind, name, time in tasks]
    return drawn_graph(THREADS, drawn, edges, waits=waits)


@pytest.fixture
def base():
    """A thread works 10 and launches K1 of 30 and, 20 later, K2 of 10; it ends at 70. The kernels run 10 to 40 and 40 to 50."""
    tasks = [
        (0, Kind.OPERATOR, "first", 10),
        (0, Kind.LAUNCH, "launch K1", 0),
        (0, Kind.OPERATOR, "second", 20),
        (0, Kind.LAUNCH, "launch K2", 0),
        (0, Kind.OPERATOR, "third", 40),
        (2, Kind.KERNEL, "K1", 30),
        (2, Kind.KERNEL, "K2", 10),
    ]
    return steady(members(graph_of(tasks, [(1, 5, Dependency.LAUNCH), (3, 6, Dependency.LAUNCH)])))


def durations_with(loop, **times):
    own = loop.loop.graph.duration.copy()
    for name, time in times.items():
        own[list(loop.loop.graph.names).index(name)] = time * US
    return own


@pytest.mark.parametrize(
    ("times", "low", "high"),
    [
        ({"third": 20}, 50, 70),  # 20 of the 40 in which it runs
        ({"third": 20, "K2": 5}, 50, 70),  # K2 runs in the time of the third, which becomes half as long as well
        ({"K1": 15, "K2": 5}, 70, 70),  # the thread alone needs 70
        ({"third": 60, "K2": 15}, 90, 90),  # … and 90
        ({"K1": 90}, 100, 130),  # the stream needs 100; K1 can add the 60 that it takes longer
        ({"first": 5, "K1": 60}, 70, 100),  # the stream needs 70; K1 can add 30
        ({}, 70, 70),
    ],
)
def test_a_step_lies_between_what_can_be_saved_and_added(base, times, low, high):
    """The step is that of the thread, 70."""
    assert base.step_time_ns == 70 * US
    bounds = duration_bounds(base, durations_with(base, **times))
    assert (bounds.low_ns / US, bounds.high_ns / US) == (pytest.approx(low), pytest.approx(high))
    if times:
        after = altered(base, members(replace(base.loop.graph, duration=durations_with(base, **times))))
        assert beyond_bounds(base, after) == ()


def test_a_step_beyond_its_bounds_is_unsound(base):
    """What becomes faster saves 20 of 70; within half a percent of the step is rounding."""
    bounds = duration_bounds(base, durations_with(base, third=20))
    assert (
        outside_bounds(bounds, 70 * US, 50 * US) == outside_bounds(bounds, 70 * US, 49_700) == outside_bounds(bounds, 70 * US, 70_300) == ()
    )
    (shorter,), (longer,) = outside_bounds(bounds, 70 * US, 40 * US), outside_bounds(bounds, 70 * US, 80 * US)
    assert shorter.code == "beyond-bounds" and shorter.grade is Grade.UNSOUND
    assert shorter.message == "what becomes faster can save 20.00 µs at most, and yet the step takes 40.00 µs instead of 70.00 µs"
    assert longer.message == "no work takes more time, and yet the step takes 80.00 µs instead of 70.00 µs"


@pytest.mark.parametrize(("before", "inferred", "unknown"), [(50, True, 10 / 70), (50, False, None), (5, True, None)])
def test_what_inferred_waits_that_nothing_ever_waited_at_make_of_a_step_is_not_known(before, inferred, unknown):
    """K1 runs from 10 to 20, and K2, which waits for it, begins `before` after 10. With K1 of 80, K2 begins at 90 and ends at 100; without
    the wait the step ends with K1. Where K2 begins at 15 without it, the base shows the wait."""
    tasks = [(0, Kind.OPERATOR, "first", 10), (0, Kind.LAUNCH, "launch K1", 0), (0, Kind.OPERATOR, "second", before)]
    tasks += [(0, Kind.LAUNCH, "launch K2", 0), (2, Kind.KERNEL, "K1", 10), (1, Kind.KERNEL, "K2", 10)]
    graph = graph_of(tasks, [(1, 4, Dependency.LAUNCH), (3, 5, Dependency.LAUNCH), (4, 5, Dependency.STREAM_WAIT)])
    loop = steady(members(replace(graph, diagnostics=(Diagnostic(WAITS_INFERRED, ""),) * inferred)))
    found = beyond_bounds(loop, altered(loop, members(replace(loop.loop.graph, duration=durations_with(loop, K1=80)))))
    assert [(one.code, one.share) for one in found] == ([] if unknown is None else [("waits-never-seen", pytest.approx(unknown))])


@given(
    tasks=st.lists(st.tuples(st.integers(0, 2), st.integers(1, 50), st.integers(0, 100)), min_size=1, max_size=12),
    links=st.lists(st.tuples(st.integers(0, 11), st.integers(0, 11)), max_size=10),
    repeat=st.booleans(),
)
def test_no_order_of_work_leaves_its_bounds(tasks, links, repeat):
    """Any work on two threads and a stream, in a fixed order, once and as a loop, with any other durations."""
    kinds = (Kind.OPERATOR, Kind.OPERATOR, Kind.KERNEL)
    edges = {(a, b, Dependency.DATA) for a, b in links if a < b < len(tasks)}
    graph = graph_of([(place, kinds[place], str(i), was) for i, (place, was, _) in enumerate(tasks)], sorted(edges))
    loop = steady(members(graph), repeat=repeat)
    after = altered(loop, members(replace(graph, duration=np.array([US * becomes for *_, becomes in tasks], np.int64))))
    assert beyond_bounds(loop, after) == ()


@pytest.mark.parametrize(
    ("wanted", "times"),
    [
        ({"microbatches": 8}, 2),
        ({"microbatches": 6}, 1.5),
        ({"hidden": 2048}, 4),
        ({"seq": 130}, 4),  # tiles may be of the recorded 128
        ({"micro_batch": 3, "layers": 24}, 4),
        ({"hidden": 512, "layers": 24}, 2),  # what is less saves nothing for certain
        ({"layers": 6}, 1),
    ],
)
def test_a_job_of_other_sizes_takes_no_longer_than_in_proportion(wanted, times):
    recorded = {"microbatches": 4, "hidden": 1024, "seq": 128, "micro_batch": 2, "layers": 12}
    assert size_bounds(0.1, 0.1 * times * 1.004, recorded, wanted) == ()
    (found,) = size_bounds(0.1, 0.1 * times * 1.006, recorded, wanted)
    assert found.grade is Grade.UNSOUND and f"takes {times:g} times as long at most" in found.message


def test_sizes_as_they_were_change_nothing():
    recorded = {"layers": 12, "seq": 128}
    assert size_bounds(0.1, 0.10009, recorded, {"layers": 12, "seq": 128}) == () == size_bounds(0.1, 0.9, recorded, {"tp": 2})
    for wrong in (0.1002, 0.0998):
        (found,) = size_bounds(0.1, wrong, recorded, {"layers": 12})
        assert "layers=12 instead of 12 changes nothing" in found.message


def test_nothing_saves_more_than_the_step():
    assert worth_bound(10.0 * US, 10.0 * US) == ()
    (found,) = worth_bound(11.0 * US, 10.0 * US)
    assert "no more than the step of 10.00 µs, and yet it would save 11.00 µs" in found.message
