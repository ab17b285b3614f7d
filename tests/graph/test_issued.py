"""What was issued before a moment, and where among it a wait finds its source, on four kernels (us).

Stream 7: kernel n (0 to 3) is launched from 10 n to 10 n + 2 and runs from 10 n + 3 to 10 n + 8. Stream 8, where it is drawn: a kernel that
is launched from 12 to 13 and runs from 14 to 60.
"""

from __future__ import annotations

import numpy as np
import pytest

from lumos.graph.launches import device_work
from lumos.graph.waits.issued import NO_TIME, Issued
from lumos.trace.table import ABSENT

US = 1000


@pytest.fixture
def issued(draw, trace):
    def of(*, beside: bool = False) -> Issued:
        drawing = draw()
        for n in range(4):
            drawing.launch((10 * n, 2), (10 * n + 3, 5))
        if beside:
            drawing.launch((12, 1), (14, 46), stream=8)
        return Issued(device_work(trace(drawing)))

    return of


def us(*times):
    return np.array(times, np.int64) * US


def test_a_launch_that_begins_with_the_call_is_not_before_it(issued):
    assert [issued().last_before(0, time * US) for time in (0, 10, 11)] == [ABSENT, 0, 1]


def test_of_all_streams_the_work_that_ends_last_is_awaited(issued):
    # before 35 us, stream 7 has been issued kernel 3, which ends at 38, and stream 8 (number 4), which ends at 60
    assert issued(beside=True).last_of_all_before(us(35)).tolist() == [4]


def test_a_source_has_an_event_in_every_repetition(issued):
    # called at 15 and 35, after kernels 1 and 3: behind kernel 1 nothing was recorded, so that both wait for the kernel before
    awaitable = us(5, 0, 25, 34)
    awaitable[1] = NO_TIME
    assert issued().sources(0, us(15, 35), us(50, 50), awaitable, last=False).tolist() == [0, 2]


def test_an_event_that_one_repetition_has_not_recorded_yet_is_none(issued):
    # behind kernel 3, the event is recorded at 36, after the call
    assert issued().sources(0, us(15, 35), us(50, 50), us(5, 14, 25, 36), last=False).tolist() == [0, 2]


def test_a_clock_of_whole_microseconds_may_show_an_end_late(issued):
    # kernel 1 ends at 18: a wait that was over at 17 may have been for it, one that was over at 16 may not
    late = [issued().sources(0, us(15), us(over), us(5, 14, 25, 34), last=False).tolist() for over in (17, 16)]
    assert late == [[1], [0]]
