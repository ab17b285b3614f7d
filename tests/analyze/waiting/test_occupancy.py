"""Until when kernels found their device full, on jobs drawn by hand."""

from dataclasses import replace

import numpy as np
import pytest

from lumos.analyze.collectives import waiting
from lumos.analyze.waiting.occupancy import NEVER, last_full
from lumos.graph.table import Dependency, Kind, Occupancy, Processor
from lumos.simulation import simulate
from lumos.simulation.timeline import measured

US = 1000


def found(timeline, ready=0):
    """When every task found its device full, if it was otherwise ready at `ready` µs."""
    return last_full(timeline, waiting(timeline), np.full(len(timeline.graph), ready * US))


def sharing(draw_graph):
    """Streams 7 and 8 take 0.6 and 0.4 of the device; stream 9 waits until one of them releases its share (µs)."""
    processors = [Processor(0, True, f"stream {i}", 0, i) for i in (7, 8, 9)]
    tasks = [(0, Kind.KERNEL, "a", 0, 50), (1, Kind.KERNEL, "b", 10, 40), (2, Kind.KERNEL, "c", 35, 60), (2, Kind.KERNEL, "d", 60, 70)]
    graph = draw_graph(processors, tasks)
    table = Occupancy(np.arange(4, dtype=np.int32), np.array([0.6, 0.4, 0.5, 0.5], np.float32), np.array([50, 20, 25, 10], np.int64) * US)
    return replace(graph, occupancy=table)


def test_a_device_is_full_until_the_first_kernel_releases_its_share(draw_graph):
    """b holds its share until 30, though it runs until 40. For d the device was last full at 30 too."""
    until, holder = found(measured(sharing(draw_graph)))
    assert until.tolist() == [NEVER, NEVER, 30 * US, 30 * US]
    assert holder.tolist() == [-1, -1, 1, 1]


def began(graph, start):
    """The measured timeline, with c beginning at another time (µs)."""
    times = graph.measured_start.copy()
    times[2] = start * US
    return replace(measured(graph), start=times)


def test_a_device_counts_as_full_until_the_start_of_a_kernel_that_began_a_little_early(draw_graph):
    """c was measured to begin at 20, though a and b fill the device until b releases its share at 30. With b's share at 0.5 and
    a's at 1, c, which begins at 35, waits for a until 50: after b's release alone, the device was still full."""
    graph = sharing(draw_graph)
    assert [column[2] for column in found(began(graph, 20))] == [20 * US, 1]
    table = replace(graph.occupancy, share=np.array([1, 0.5, 0.5, 0.5], np.float32))
    assert [column[2] for column in found(began(replace(graph, occupancy=table), 35))] == [35 * US, 0]


def test_a_kernel_that_began_far_too_early_was_held_back_by_nothing(draw_graph):
    """a fills the device until 500 and runs until 510: a wave takes 10 µs. c began at 470 or, which refutes that, at 450."""
    graph = sharing(draw_graph)
    end = np.array([510, 40, 600, 700], np.int64) * US
    table = replace(graph.occupancy, share=np.ones(4, np.float32), hold=np.array([500, 0, 25, 10], np.int64) * US)
    graph = replace(graph, duration=end - graph.measured_start, measured_end=end, occupancy=table)
    assert found(began(graph, 470)).until[2] == 470 * US
    assert found(began(graph, 450)).until[2] == NEVER


def test_a_device_that_was_free_for_long_held_back_nothing_before(draw_graph):
    """The device is full from 10 to 30. c begins at 35: ready at 0 or 25, it waited for that; ready at 30, it did not. Had b run from
    25 to 55, the device would be full from 25 to 45: c, ready at 0, could have begun before that; ready at 10, about when it did."""
    graph = sharing(draw_graph)
    assert [found(measured(graph), ready).until[2] for ready in (0, 25, 30)] == [30 * US, 30 * US, NEVER]
    start, end = graph.measured_start.copy(), graph.measured_end.copy()
    start[1], end[1] = 25 * US, 55 * US
    later = replace(measured(graph), start=start, end=end)
    assert [found(later, ready).until[2] for ready in (0, 10)] == [NEVER, 35 * US]


@pytest.mark.parametrize(("second", "until"), [(45, 80), (60, NEVER)])
def test_short_pauses_of_a_full_device_do_not_count(draw_graph, second, until):
    """a fills the device from 10 to 30, b from `second` to 80. c, ready at 5, begins at 82: it might have begun in a pause of 30 µs."""
    processors = [Processor(0, True, "stream 7", 0, 7), Processor(0, True, "stream 8", 0, 8)]
    tasks = [(0, Kind.KERNEL, "a", 10, 30), (0, Kind.KERNEL, "b", second, 80), (1, Kind.KERNEL, "c", 82, 90)]
    graph = draw_graph(processors, tasks)
    table = Occupancy(np.arange(3, dtype=np.int32), np.ones(3, np.float32), graph.duration.copy())
    last = found(measured(replace(graph, occupancy=table)), 5).until[2]
    assert last == (until if until == NEVER else until * US)


def test_a_release_while_others_still_fill_the_device_does_not_count(draw_graph):
    """b (0.4) holds its share from 0 to 20, and a fills the device from 10 to 60: for c, which began at 62, it was full until 60."""
    graph = sharing(draw_graph)
    start, end = (np.array(times, np.int64) * US for times in ([10, 0, 62, 90], [60, 30, 87, 100]))
    table = replace(graph.occupancy, share=np.array([1, 0.4, 0.5, 0.5], np.float32))
    graph = replace(graph, duration=end - start, measured_start=start, measured_end=end, occupancy=table)
    until, holder = found(measured(graph))
    assert (until[2], holder[2]) == (60 * US, 0)


def test_ignored_or_absent_occupancy_is_no_cause(draw_graph):
    graph = sharing(draw_graph)
    for other in (replace(graph, ignored=frozenset({Dependency.OCCUPANCY})), replace(graph, occupancy=None)):
        until, holder = found(measured(other))
        assert (until == NEVER).all() and (holder == -1).all()


@pytest.mark.parametrize("seconds", [1, 40])
def test_a_member_of_a_rendezvous_holds_its_share_while_it_waits(draw_graph, seconds):
    """Rank 0's collective fills its device from its arrival at 0. It transfers from rank 1's arrival at 3 for 6 units and releases
    the device when half of that is done, so the kernel on the other stream starts at 6. The same with durations whose product
    exceeds 64 bits."""
    unit = seconds * 1_000_000_000
    processors = [Processor(0, True, "stream 7", 0, 7), Processor(0, True, "stream 8", 0, 8), Processor(1, True, "stream 7", 0, 7)]
    tasks = [
        (0, Kind.COLLECTIVE, "nccl", 0, 0),
        (1, Kind.KERNEL, "k", 0, 0),
        (2, Kind.KERNEL, "late", 0, 0),
        (2, Kind.COLLECTIVE, "nccl", 0, 0),
    ]
    graph = replace(
        draw_graph(processors, tasks),
        duration=np.array([4, 5, 3, 4]) * unit,
        rendezvous_offset=np.array([0, 2]),
        rendezvous_task=np.array([0, 3], np.int32),
        occupancy=Occupancy(np.array([0, 1], np.int32), np.array([1, 0.5], np.float32), np.array([2, 5]) * unit),
    )
    timeline = simulate(graph, np.array([6, 5, 3, 6]) * unit)
    assert timeline.start.tolist() == [0, 6 * unit, 0, 3 * unit]
    until, holder = found(timeline)
    assert (until[1], holder[1]) == (6 * unit, 0)
