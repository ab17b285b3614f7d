"""Launches that wait for a place in the queue of launches."""

import numpy as np
import pytest

from lumos.graph.launches import device_work
from lumos.graph.one_rank import rank_graph
from lumos.graph.table import Kind
from lumos.graph.waits.full_queue import full_queue
from lumos.simulation import simulate

US = 1000
NONE = np.empty(0, np.int64)


def depth_of(found):
    return full_queue(found, device_work(found), NONE).depth


def filled(draw, lost=(), kernel=10.0):
    """1,500 launches of 1 us, of kernels of 10 us: outstanding grows by 9 in 10 until 1,000 are queued, then each call waits for a kernel
    to end, and returns 1 us later. lost: the numbers of launches that the recording lacks, with their kernels. kernel: another length."""
    drawing = draw()
    begin = 0.0
    ends: list[float] = []
    for i in range(1500):
        call = 1.0
        if i >= 1000 and ends[i - 1000] > begin:
            call = ends[i - 1000] - begin + 1
        start = max(ends[-1] if ends else 0, begin + call)
        if i not in lost:
            drawing.launch((begin, call), (start, kernel))
        ends.append(start + kernel)
        begin += call
    return drawing


# The end of kernel 300 made place for launch 1300, which waited for nothing that is recorded: so much of its time stays its own.
@pytest.mark.parametrize(("lost", "kept"), [((), 1), ((1100,), 1), ((1100, 1101, 1150), 1), ((300,), 10), (range(0, 1500, 100), 1)])
def test_a_launch_into_a_full_queue_costs_what_others_cost_also_where_rows_are_lost(draw, trace, lost, kept):
    found = trace(filled(draw, lost))
    graph = rank_graph(found)
    launches = np.flatnonzero(graph.kind == Kind.LAUNCH)
    assert (found.duration[graph.event[launches]] == 10 * US).sum() > 350  # the calls waited for most of a kernel
    assert sorted(graph.duration[launches])[-2:] == [1 * US, kept * US]
    base, faster = (simulate(graph, np.where(graph.kind == Kind.KERNEL, graph.duration // of, graph.duration)) for of in (1, 2))
    assert faster.end.max() / base.end.max() == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize(("waits", "returns", "depth"), [(3, 1, 0), (4, 1, 1000), (4, -1, 0), (4, 61, 0)])
def test_a_queue_is_full_where_long_launches_return_when_a_place_is_free(draw, trace, waits, returns, depth):
    # 1,000 kernels of 150 us were launched before the recording. Every call begins 1 us after one of them has begun, at 1,000 outstanding
    # launches, and returns so long (us) after its end; three such calls may take long by chance.
    drawing = draw()
    for i in range(1000):
        drawing.work("kernel", "kernel", 150.0 * i, 150.0, 7, drawing.correlate())
    for i in range(waits):
        drawing.launch((300.0 * i + 1, 149.0 + returns), (150_000 + 10.0 * i, 10.0))
        if i < waits - 1:
            drawing.launch((300.0 * i + 220, 4.0), (150_005 + 10.0 * i, 1.0))
    assert depth_of(trace(drawing)) == depth


def test_launches_that_wait_for_work_that_was_never_recorded_cost_what_others_cost(draw, trace):
    # The first 600 kernels and their launches are not in the recording. Launches from 1,000 on wait for their ends, 50 us each.
    found = trace(filled(draw, range(600), kernel=50.0))
    graph = rank_graph(found)
    launches = np.flatnonzero(graph.kind == Kind.LAUNCH)
    assert (found.duration[graph.event[launches]] == 50 * US).sum() > 450
    assert (graph.duration[launches] == 1 * US).all()
    assert (simulate(graph).end[launches] == graph.measured_end[launches]).all()


def test_a_loop_that_keeps_few_launches_ahead_has_no_full_queue(draw, trace):
    drawing = draw()
    for i in range(300):
        drawing.launch((10 * i, 5), (10 * i + 40, 9))
    assert depth_of(trace(drawing)) == 0
