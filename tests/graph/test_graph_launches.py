"""Launches of whole graphs of device work."""

import pytest

from lumos.graph.one_rank import rank_graph
from lumos.graph.table import Dependency
from lumos.simulation import simulate

US = 1000


def shifts(graph, name, by):
    """By how many us every piece of device work starts later where the work called `name` takes `by` us longer."""
    work = [i for i in range(len(graph)) if graph.on_device[i]]
    durations = graph.duration.copy()
    durations[[i for i in work if graph.names[graph.name[i]] == name]] += by * US
    base, longer = simulate(graph).start, simulate(graph, durations).start
    return {graph.names[graph.name[i]]: int(longer[i] - base[i]) // US for i in work if "nccl" not in graph.names[graph.name[i]]}


@pytest.fixture
def between_two(draw, trace):
    """A kernel on stream 7 to 106; a graph on streams 13 and 14 from there to 160, after a collective; another kernel on stream 7."""
    drawing = draw().launch((0, 3), (6, 100), 7, "before").launch((4, 3), (9, 300), 20, "ncclDevKernel_AllReduce_Sum_f32_RING_LL")
    drawing.call("cudaGraphLaunch", 10, 10, correlation=50).work("kernel", "a1", 106, 20, 13, 50)
    drawing.work("kernel", "a2", 126, 34, 13, 50).work("kernel", "b", 106, 10, 14, 50)
    return rank_graph(trace(drawing.launch((30, 5), (160, 10), 7, "after")))


def test_a_graph_follows_the_work_of_its_threads_stream(between_two):
    assert shifts(between_two, "before", 40) == {"before": 0, "a1": 40, "a2": 40, "b": 40, "after": 40}


def test_work_behind_a_graph_follows_all_of_the_graph(between_two):
    assert shifts(between_two, "a2", 40) == {"before": 0, "a1": 0, "a2": 0, "b": 0, "after": 40}
    assert shifts(between_two, "b", 100) == {"before": 0, "a1": 0, "a2": 0, "b": 0, "after": 56}  # to 216 instead of 160


def test_a_graph_launch_gives_no_launch_latency(draw, trace):
    # the first piece of the graph starts 9 us after its call, the kernel of a plain launch 2 us
    drawing = draw().call("cudaGraphLaunch", 0, 10, correlation=50).work("kernel", "in graph", 19, 20, 7, 50)
    assert rank_graph(trace(drawing.launch((50, 5), (57, 10)))).lag[0, Dependency.LAUNCH] == 2 * US
