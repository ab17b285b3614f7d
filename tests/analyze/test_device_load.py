import numpy as np
import pytest

from lumos.analyze.device_load import bin_width, busy_curves, curve, queue_lengths
from lumos.analyze.loop.steps import members
from lumos.graph.table import Kind, Processor, Step
from lumos.intervals import union
from lumos.simulation.timeline import measured

MS = 1_000_000


def test_a_curve_by_hand():
    busy = union(np.array([0, 15 * MS // 10]), np.array([MS // 2, 9 * MS]))
    assert curve(busy, 0, 25 * MS // 10).tolist() == [0.5, 0.5, 0.5]  # the last bin ends with the step, half-way


def test_a_curve_starts_with_its_step_and_is_blind_to_other_ranks(draw_graph):
    processors = [Processor(0, True, "stream 7", 0, 7), Processor(0, True, "stream 8", 0, 8), Processor(1, True, "stream 7", 0, 7)]
    tasks = [(0, Kind.KERNEL, "k", 500, 1000), (1, Kind.KERNEL, "l", 750, 2500), (2, Kind.KERNEL, "m", 0, 4000)]
    graph = draw_graph(processors, tasks, steps=(Step(0, "s", 0, 9 * MS),))
    (run,) = busy_curves((measured(graph),), members(graph))
    assert run.bin_ns == MS
    (found,) = run.steps
    assert found.tolist() == [1.0, 1.0]


def test_the_bins_of_a_day_are_no_more_than_those_of_100_seconds(draw_graph):
    """A kernel that works for the first half of a day. 86,400 s in at most 100,000 bins: 864 ms each."""
    day = 86_400_000 * MS
    graph = draw_graph([Processor(0, True, "stream 7", 0, 7)], [(0, Kind.KERNEL, "k", 0, day // 2 // 1000)], steps=(Step(0, "s", 0, day),))
    runs = busy_curves((measured(graph), measured(graph)), members(graph), [(np.array([0]), np.array([day]))] * 2)
    assert [run.bin_ns for run in runs] == [864 * MS] * 2
    (found,) = runs[0].steps
    assert len(found) == 100_000 and found.sum() == 50_000
    assert bin_width(100_000 * MS) == MS and bin_width(100_000 * MS + 1) == 2 * MS and bin_width(0) == MS


def test_the_queue_by_hand(two_steps):
    """k1 is outstanding 12–40, the collective 14–60: one for 2 + 20 µs, two for 26 µs of the 80. Step 1 lasts 70 µs, k2 117–150."""
    first, second = queue_lengths(measured(two_steps), members(two_steps))
    assert first.maximum == 2
    assert first.mean == pytest.approx((2 + 2 * 26 + 20) / 80)
    assert second == (pytest.approx(33 / 70), 1)
