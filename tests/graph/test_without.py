"""Work that is taken out of a job, with all that it waited for."""

from dataclasses import replace

import numpy as np
import pytest

from lumos.analyze.loop.steady import steady
from lumos.analyze.loop.steps import members
from lumos.changes.durations import Durations, Scale
from lumos.graph.one_rank import rank_graph
from lumos.simulation import freeze, simulate, sweep
from lumos.trace.table import Job

US = 1000


@pytest.fixture
def loop_of():
    """What the loop of a job takes for a step, µs."""
    return lambda graph: steady(members(graph)).step_time_ns / US


def test_a_synchronisation_that_is_dropped_takes_its_wait_with_it(draw, trace, loop_of):
    """Each of four steps launches a kernel of 80 µs, copies its result back, for which the call waits until 94 µs, and works 20 µs on the
    CPU. Without `item` the CPU is ahead, and the kernels follow one another with the gap of 2 µs that the copies show."""
    drawing = draw()
    for k in range(4):
        at = 200 * k
        drawing.step(k, at, 200).launch((at, 10), (at + 12, 80))
        drawing.op("aten::item", at + 10, 90).copy((at + 12, 84), (at + 94, 1), "Memcpy DtoH (Device -> Pageable)", 4)
        drawing.op("work", at + 100, 100)
    one = trace(drawing)
    job, graph = Job((one,)), rank_graph(one)
    assert loop_of(graph) == pytest.approx(200, abs=1)
    free = Durations(scales=(Scale("operator:aten::item", 0.0),)).apply(graph, job)
    gone = Durations(drops=("operator:aten::item",)).apply(graph, job)
    assert loop_of(free) == pytest.approx(192, abs=5)  # the wait for the kernel remains
    assert loop_of(gone) == pytest.approx(110, abs=1)  # a launch of 10 and work of 100


def test_what_waited_for_work_that_goes_waits_for_the_work_before_it(draw, trace):
    """Two kernels of 50 µs, on one stream from 12 µs on, and a call that waits for both. Without the second it waits for the first."""
    drawing = draw().launch((0, 10), (12, 50), name="first").launch((10, 10), (62, 50), name="second")
    graph = rank_graph(trace(drawing.call("cudaStreamSynchronize", 20, 95).op("after", 115, 10)))
    gone = np.array([graph.names[i] == "second" for i in graph.name])
    left = replace(graph, left_out=gone)

    def begins(run):
        return (run.start[[graph.names[i] == "after" for i in graph.name]][0] - run.start[~gone].min()) // US

    assert [begins(run) for run in (simulate(graph), simulate(left), sweep(freeze(left)))] == [115, 65, 65]
    first = [graph.names[i] == "first" for i in graph.name]
    for run in (simulate(left), sweep(freeze(left)), sweep(freeze(left), 2 * graph.duration)):
        assert run.start[gone] == run.end[gone] == run.end[first]
