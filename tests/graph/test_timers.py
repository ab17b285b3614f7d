"""Threads that work on their own."""

import numpy as np
import pytest

from lumos.graph.build import build
from lumos.graph.table import Dependency
from lumos.simulation import simulate

US = 1000


def looped(draw, begins):
    """Three steps of 1000 us on the main thread: 18 operators of 40 us, each followed by 10 us of Python, then 100 us of Python.
    Another thread runs an operator of 5 us at the given times."""
    drawing = draw()
    for step in range(3):
        drawing.row("user_annotation", f"ProfilerStep#{step}", 1000 * step, 1000)
        for i in range(18):
            drawing.op(f"op {i}", 1000 * step + 50 * i, 40)
        drawing.op("optimizer", 1000 * step + 1000 - 10, 8)
    for begin in begins:
        drawing.op("aten::add", begin, 5, tid=200)
    return drawing


def test_a_thread_that_ticks_is_nobodys_cause(draw, job):
    """Ticks every 270 us: at 320, 590 and 860 of the first step, then 130, 400, 670 and 940. The Python time from 890 to 990, in which one
    falls, stays work, and a tick that takes 50 us more moves nothing but itself."""
    graph = build(job(looped(draw, [320 + 270 * i for i in range(10)])))
    assert [p.timer for p in graph.processors] == [False, True]
    assert not (graph.pred_kind == Dependency.HAND_OFF).any()
    ticks = graph.processor == 1
    slower = np.where(ticks, graph.duration + 50 * US, graph.duration)
    assert (simulate(graph, slower).start == simulate(graph).start)[~ticks].all()


@pytest.mark.parametrize("late", [0, 3])
def test_a_thread_that_is_handed_its_work_at_the_same_places_is_not_on_its_own(draw, job, late):
    """The other thread works 5 us after the same two operators of every step: its work comes from the loop."""
    begins = [1000 * step + at + late * step for step in range(3) for at in (495, 895)]
    graph = build(job(looped(draw, begins)))
    assert [p.timer for p in graph.processors] == [False, False]
