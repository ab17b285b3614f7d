"""The window's begin: a device that was busy before the recording started."""

import pytest

from lumos.analyze.replay import replay
from lumos.analyze.trust import trust
from lumos.graph.one_rank import rank_graph
from lumos.graph.table import Kind
from lumos.vocabulary import Grade

US = 1000


def busy_before(draw):
    """60 operators of 10 us, each with a launch; the 60 kernels of 10 us run from 5,000 to 5,600, when the device is free."""
    drawing = draw()
    for i in range(60):
        drawing.op("op", 10 * i, 9).launch((10 * i + 2, 5), (5000 + 10 * i, 10))
    return drawing


def test_the_first_work_of_a_busy_device_starts_as_measured_and_the_rest_is_scored(draw, trace):
    step = replay(rank_graph(trace(busy_before(draw)))).steps[0]
    assert (step.measured_ns, step.replayed_ns) == (5600 * US, 5600 * US)
    assert step.scored and step.unexplained_idle == 0 and step.prefix == 10 / 5600


def test_the_time_for_which_the_device_was_held_up_is_unknown(draw, trace):
    found = trust(rank_graph(trace(busy_before(draw))))
    assert (found.grade, [reason.code for reason in found.reasons]) == (Grade.LIMITED, ["held-up", "prefix"])
    assert found.unknown == pytest.approx((5000 - 7 + 10) / 5600)  # the first launch returns at 7; 10 are the held-up work


def test_every_stream_in_use_at_the_begin_is_held_up_but_none_that_waits_for_another(draw, trace):
    # 7 and 8 are launched to before the device is seen to work, at 5,000; 9 waits for 7, and 10 is first used later
    drawing = draw().launch((0, 5), (5000, 50), 7, "a").launch((10, 5), (5020, 10), 8, "b").call("cudaStreamWaitEvent", 20, 1)
    drawing.launch((30, 5), (5052, 10), 9, "c").launch((5010, 5), (5500, 10), 10, "d")
    graph = rank_graph(trace(drawing))
    kernels = graph.release_task[(graph.kind == Kind.KERNEL)[graph.release_task]]
    assert [graph.names[i] for i in graph.name[kernels]] == ["a", "b"]
