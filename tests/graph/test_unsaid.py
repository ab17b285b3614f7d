"""Calls that wait for all device work although their names do not say so."""

import numpy as np
import pytest

from lumos.graph.launches import Call, classify, device_work
from lumos.graph.one_rank import rank_graph
from lumos.graph.waits.unsaid import polls, with_unsaid_waits


def steps(draw, name, frees, *, kernel=100, wait=True, late=10):
    """Steps of 1,000 us: five kernels of `kernel` us follow one another, launched within 30 us, and then a call frees memory in each of the
    numbered steps. It begins at 40 us and returns `late` us after the last kernel, or after 5 us where it does not `wait`."""
    drawing = draw()
    for number in range(4):
        at = 1000 * number
        drawing.step(number, at, 990)
        for i in range(5):
            drawing.launch((at + 6 * i, 5), (at + 7 + kernel * i, kernel))
        if number in frees:
            drawing.call(name, at + 40, 5 * kernel + 7 + late - 40 if wait else 5)
        drawing.op("python", at + 5 * kernel + 20, 480)
    return drawing


def waiting(found):
    return int((with_unsaid_waits(found, classify(found), device_work(found)) == Call.DEVICE_SYNC).sum())


NAMES = ("hipFree", "cudaFree", "hipMalloc", "cudaMalloc", "cudaHostAlloc", "cudaMallocHost", "cudaHostRegister", "hipHostMalloc")


@pytest.mark.parametrize("name", (*NAMES, "cuMemFree_v2"))
def test_a_call_that_returns_with_the_last_work_in_every_step_waits_for_it(draw, trace, loop_time, name):
    found = trace(steps(draw, name, range(4)))
    assert waiting(found) == 4
    assert loop_time(found, 1) == pytest.approx(1000, abs=1)
    assert loop_time(found, 2) == pytest.approx(1500, abs=1)  # five kernels are 500 us longer, and the call with them
    assert loop_time(found, 0.5) == pytest.approx(750, abs=1)


@pytest.mark.parametrize(
    ("drawn", "calls"),
    [
        ({"frees": (1, 2)}, 2),
        ({"frees": (1,)}, 0),  # one call of 0.5 ms may end with the device by chance
        ({"frees": (1,), "kernel": 190}, 0),  # 0.93 ms
        ({"frees": range(4), "wait": False}, 0),
        ({"frees": range(4), "late": 70}, 0),  # what it did until then is not known
    ],
)
def test_what_shows_that_a_call_waits(draw, trace, drawn, calls):
    assert waiting(trace(steps(draw, "hipFree", **drawn))) == calls


def test_one_long_call_that_ends_with_the_device_waits(draw, trace):
    drawing = draw().launch((0, 5), (7, 1200)).launch((6, 5), (1207, 100), 8).call("hipFree", 20, 1290)
    assert waiting(trace(drawing)) == 1


def polling(draw, *, apart, between=0):
    """Steps of 400 us: a kernel of 200 us, and an event that is polled every `apart` us from 10 us on, with so much work in between."""
    drawing = draw()
    for at in range(0, 1600, 400):
        drawing.step(at // 400, at, 399).launch((at, 3), (at + 5, 200)).call("cudaEventRecord", at + 5, 1)
        for time in np.cumsum([at + 10, *apart]).tolist():
            drawing.call("cudaEventQuery", time, 1).op("work", time + 2, between)
        drawing.op("python", time + 5, 100)
    drawing.rows = [row for row in drawing.rows if row["name"] != "work" or between]
    return drawing


def test_queries_at_even_times_wait_for_their_event(draw, trace, loop_time):
    """The event comes to pass at 205 us, and is asked for at 210. The step of 320 us in all follows the kernel, to the next query."""
    found = trace(polling(draw, apart=[20] * 10))
    assert len(polls(found).call) == 4 and loop_time(found, 2) - loop_time(found, 1) == pytest.approx(200, abs=1)
    (evidence,) = [each for each in rank_graph(found).evidence if each.code == "polled"]
    assert evidence.share == pytest.approx(80 / 1401, abs=1e-3)  # four waits, each of up to 20 us, in 1,401


@pytest.mark.parametrize("drawn", [{"apart": (20, 50, 140)}, {"apart": (200,)}, {"apart": [20] * 10, "between": 3}])
def test_queries_at_uneven_times_few_or_between_work_are_no_wait(draw, trace, drawn):
    assert not len(polls(trace(polling(draw, **drawn))).call)
