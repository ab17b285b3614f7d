"""What was issued before a moment, and which of it repeated waits are for, on four kernels (us).

Stream 7: kernel n of 0 to 3 is launched from 10 n to 10 n + 2 and runs from 10 n + 3 to 10 n + 8. Stream 8: from 12 to 13, and 14 to 60.
"""

import numpy as np
import pytest

from lumos.graph.launches import device_work
from lumos.graph.waits.issued import NO_TIME, Issued
from lumos.graph.waits.solve import Awaitable, OpenWaits, unrefuted
from lumos.trace.table import ABSENT


@pytest.fixture
def issued(draw, trace):
    drawing = draw().launch((12, 1), (14, 46), stream=8)
    for n in range(4):
        drawing.launch((10 * n, 2), (10 * n + 3, 5))
    return Issued.of(device_work(trace(drawing)))


def us(*times):
    return np.array(times, np.int64) * 1000


def awaited(issued, called, over, events, furthest=NO_TIME, *, recorded=False):
    """What calls of one place may wait for, of kernels that can be awaited from some times on."""
    one = np.zeros(len(called), np.int64)
    waits = OpenWaits(one, one, one, np.arange(len(called)), one + ABSENT, called, over, called)
    return unrefuted(issued, waits, 0, Awaitable(events, furthest, recorded=recorded)).tolist()


def test_what_was_issued_before_a_call(issued):
    # a launch that begins with the call is not; at 35 us, kernel 3 is the last on stream 7
    assert issued.last_before(0, us(0, 10, 11)).tolist() == [ABSENT, 0, 1]
    assert issued.ended_before(0, us(0, 35)).tolist() == [ABSENT, 38_000]


def test_what_one_repetition_refutes_is_refuted_for_all(issued):
    # called at 15 and 35, the second is over at 36, before kernel 3 ends at 38: both wait for the kernel before the last, if they may
    both = awaited(issued, us(15, 35), us(50, 36), us(5, 14, 25, 34)), awaited(issued, us(15, 35), us(50, 36), us(0, 10, 20, 30), 0)
    assert both == ([0, 2], [ABSENT, ABSENT])


def test_what_no_event_stands_for_is_not_awaited(issued):
    # behind kernel 1 nothing was recorded, and behind kernel 3 only at 36, after the call
    assert awaited(issued, us(15, 35), us(50, 50), np.array([5_000, NO_TIME, 25_000, 36_000])) == [0, 2]


def test_events_are_counted_by_the_calls_that_record_them(issued):
    # before the second call, one of two more events stands for the same kernel: the one before the last is that of kernel 2 all the same
    assert awaited(issued, us(15, 39), us(7, 29), us(5, 12, 26, 28), recorded=True) == [0, 2]
    assert awaited(issued, us(15, 35), us(50, 36), us(5, 14, 25, 34), recorded=True) == [0, 2]


def test_a_clock_of_whole_microseconds_may_show_an_end_late(issued):
    # kernel 1 ends at 18: a wait that was over at 17 may have been for it, one that was over at 16 may not
    assert [awaited(issued, us(15), us(over), us(5, 14, 25, 34)) for over in (17, 16)] == [[1], [0]]
