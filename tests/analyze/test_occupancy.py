"""Until when kernels found their device full, on jobs drawn by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from lumos.analyze.collectives import waiting
from lumos.analyze.occupancy import NEVER, last_full
from lumos.graph.table import Dependency, Kind, Occupancy, Processor
from lumos.simulate import simulate
from lumos.simulate.timeline import measured

US = 1000


def found(timeline):
    return last_full(timeline, waiting(timeline))


def sharing(draw_graph):
    """Streams 7 and 8 take 0.6 and 0.4 of the device; stream 9 waits until one of them releases its share (µs)."""
    processors = [Processor(0, True, f"stream {i}", 0, i) for i in (7, 8, 9)]
    tasks = [(0, Kind.KERNEL, "a", 0, 50), (1, Kind.KERNEL, "b", 10, 40), (2, Kind.KERNEL, "c", 35, 60), (2, Kind.KERNEL, "d", 60, 70)]
    graph = draw_graph(processors, tasks)
    table = Occupancy(np.arange(4, dtype=np.int32), np.array([0.6, 0.4, 0.5, 0.5], np.float32), np.array([50, 20, 25, 10], np.int64) * US)
    return replace(graph, occupancy=table)


def test_a_device_is_full_until_the_first_kernel_releases_its_share(draw_graph):
    """b holds its share until 30, though it runs until 40. For d, on the stream of b, the device was last full at 30 too."""
    until, holder = found(measured(sharing(draw_graph)))
    assert until.tolist() == [NEVER, NEVER, 30 * US, 30 * US]
    assert holder.tolist() == [-1, -1, 1, 1]


def test_a_device_counts_as_full_until_the_start_of_a_kernel_that_began_too_early(draw_graph):
    """c was measured to begin at 20, though a and b fill the device until b releases its share at 30. With b's share at 0.5 and
    a's at 1, c waited for a: after b's release alone, the device was still full."""
    graph = sharing(draw_graph)
    start = graph.measured_start.copy()
    start[2] = 20 * US
    early = replace(measured(graph), start=start)
    assert [column[2] for column in found(early)] == [20 * US, 1]
    table = replace(graph.occupancy, share=np.array([1, 0.5, 0.5, 0.5], np.float32))
    assert [column[2] for column in found(replace(early, graph=replace(graph, occupancy=table)))] == [20 * US, 0]


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
