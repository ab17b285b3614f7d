from __future__ import annotations

import pytest

from lumos.analyze.queue import queue_lengths, queue_steps
from lumos.analyze.steps import members
from lumos.graph.table import Kind, Processor, Step
from lumos.simulate.timeline import measured

US = 1000


def test_the_queue_by_hand(two_steps):
    """k1 is outstanding 12–40, the collective 14–60: one for 2 + 20 µs, two for 26 µs of the 80."""
    first, second = queue_lengths(measured(two_steps), members(two_steps))
    assert first.maximum == 2
    assert first.mean == pytest.approx((2 + 2 * 26 + 20) / 80)
    assert second == (pytest.approx(33 / 45), 1)


def test_the_queue_over_time(two_steps):
    time, length = queue_steps(measured(two_steps), members(two_steps), 0)
    assert time.tolist() == [12 * US, 14 * US, 40 * US, 60 * US, 117 * US, 150 * US]
    assert length.tolist() == [1, 2, 1, 0, 1, 0]


def test_a_rank_that_launches_nothing_has_no_queue(draw_graph):
    graph = draw_graph([Processor(0, False, "t")], [(0, Kind.OPERATOR, "a", 0, 1)], steps=(Step(0, "s", 0, US),))
    assert queue_lengths(measured(graph), members(graph)) == ((None, None),)
