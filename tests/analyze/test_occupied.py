from __future__ import annotations

from dataclasses import replace

import numpy as np

from lumos.analyze.occupied import NEVER, full_until
from lumos.graph.table import Dependency, Kind, Occupancy, Processor
from lumos.simulate.timeline import measured

US = 1000


def sharing(draw_graph):
    """Streams 7 and 8 each take 0.6 and 0.4 of the device; 9 waits until one lets go (µs)."""
    processors = [Processor(0, True, f"stream {i}", 0, i) for i in (7, 8, 9)]
    tasks = [(0, Kind.KERNEL, "a", 0, 50), (1, Kind.KERNEL, "b", 10, 40), (2, Kind.KERNEL, "c", 35, 60), (2, Kind.KERNEL, "d", 60, 70)]
    graph = draw_graph(processors, tasks)
    table = Occupancy(np.arange(4, dtype=np.int32), np.array([0.6, 0.4, 0.5, 0.5], np.float32), np.array([50, 20, 25, 10], np.int64) * US)
    return replace(graph, occupancy=table)


def test_full_until_the_first_lets_go(draw_graph):
    found = full_until(measured(sharing(draw_graph)))
    # b holds until 30, though it runs until 40; d sees the same last full time, before its stream's own kernels
    assert found.tolist() == [NEVER, NEVER, 30 * US, 30 * US]


def test_a_kernel_that_started_while_full_was_not_held_back_after(draw_graph):
    graph = sharing(draw_graph)
    start = graph.measured_start.copy()
    start[2] = 20 * US
    assert full_until(replace(measured(graph), start=start))[2] == 20 * US


def test_ignored_or_absent_occupancy_is_no_cause(draw_graph):
    graph = sharing(draw_graph)
    for other in (replace(graph, ignored=frozenset({Dependency.OCCUPANCY})), replace(graph, occupancy=None)):
        assert (full_until(measured(other)) == NEVER).all()
