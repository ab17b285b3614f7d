"""A thread that waits for several threads at once. Times are in us."""

import pytest

from lumos.graph.one_rank import rank_graph
from lumos.simulation import simulate

MAIN, LEFT, RIGHT = 100, 200, 300


def forked(draw, *right):
    """Steps of 1,000 us: the main thread works for 100, two threads then work on its behalf, the left one for 500, the right one for as
    long as is said for each step; the main thread goes on 10 after the left one has finished."""
    drawing = draw()
    for step, each in enumerate(right):
        begin = 1000 * step
        drawing.op("aten::index", begin, 100)
        drawing.op("left", begin + 130, 500, LEFT).op("right", begin + 130, each, RIGHT)
        drawing.op("aten::linear", begin + 640, 360)
    return drawing


def last_step(graph, name, factor):
    durations = graph.duration.copy()
    durations[[graph.names[i] == name for i in graph.name]] *= factor
    return int(simulate(graph, durations).end.max()) // 1000


@pytest.mark.parametrize(("name", "factor", "expected"), [("left", 1, 4000), ("right", 2, 4000 + 4 * 300), ("left", 2, 4000 + 4 * 500)])
def test_the_main_thread_waits_for_the_later_of_both(draw, trace, name, factor, expected):
    """The right thread takes 400, so twice that is 300 more than the left one's 500."""
    assert last_step(rank_graph(trace(forked(draw, 400, 400, 400, 400))), name, factor) == expected


def test_a_thread_that_once_works_on_is_not_awaited(draw, trace):
    """In the third step the right thread still works when the main thread goes on."""
    graph = rank_graph(trace(forked(draw, 400, 400, 600, 400)))
    assert last_step(graph, "right", 1) == 4000
    assert last_step(graph, "left", 2) >= 4000 + 3 * 500
    assert max(graph.pred_offset[i + 1] - graph.pred_offset[i] for i in range(len(graph))) == 1
