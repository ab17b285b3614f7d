"""Until when kernels found their device full, on jobs drawn by hand."""

from dataclasses import replace

import numpy as np
import pytest

from lumos.analyze.collectives import waiting
from lumos.analyze.waiting.causes import NEVER, last_full
from lumos.graph.table import Kind, Occupancy, Processor
from lumos.simulation import simulate
from lumos.simulation.timeline import measured

US = 1000


def found(timeline):
    """When every task found its device full."""
    return last_full(timeline, waiting(timeline))


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
