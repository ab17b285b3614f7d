"""Which rows enclose moments. One thread runs "outer" from 0 to 10, and in it "inner" from 4 to 6, another "other" from 20 to 30 (us)."""

import numpy as np
import pytest

from lumos.graph.places import Ranges
from lumos.trace.table import ABSENT

from .conftest import AUTOGRAD, THREAD

US = 1000


@pytest.fixture
def recorded(draw, trace):
    return trace(draw().op("outer", 0, 10).op("inner", 4, 2).op("other", 20, 10, tid=AUTOGRAD))


def names(recorded, rows):
    return [None if row == ABSENT else recorded.strings[recorded.name[row]] for row in rows.tolist()]


def asked(recorded, *moments):
    lane = {recorded.lanes[i].tid: i for i in range(len(recorded.lanes))}
    origin = recorded.start.min()
    return np.array([lane[str(tid)] for tid, _ in moments], np.int32), origin + np.array([time for _, time in moments], np.int64) * US


def test_the_row_that_began_last_is_found_if_it_still_runs(recorded):
    lane, time = asked(recorded, (THREAD, 0), (THREAD, 5), (THREAD, 6), (THREAD, 7), (AUTOGRAD, 5), (AUTOGRAD, 30), (AUTOGRAD, 31))
    ranges = Ranges(recorded, np.arange(3)[::-1])
    assert names(recorded, ranges.last(lane, time)) == ["outer", "inner", "inner", "inner", None, "other", "other"]
    assert names(recorded, ranges.at(lane, time)) == ["outer", "inner", "inner", None, None, "other", None]


def test_without_rows_nothing_encloses(recorded):
    lane, time = asked(recorded, (THREAD, 5), (AUTOGRAD, 25))
    assert Ranges(recorded, np.empty(0, np.int64)).at(lane, time).tolist() == [ABSENT, ABSENT]
    assert Ranges(recorded, np.arange(3)).at(lane[:0], time[:0]).tolist() == []
