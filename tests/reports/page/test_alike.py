from __future__ import annotations

import numpy as np

from lumos.reports.page.timeline_lanes import ranks_alike


def test_ranks_that_do_the_same_are_one_group():
    """Ranks 0, 1 and 3 run class 0 in all of 20 cells; in rank 2 class 1 takes 5 of them, in rank 3 two: a quarter and a tenth."""
    label = np.zeros((4, 20), np.uint8)
    label[2, :5] = label[3, :2] = 1
    lanes = [(rank, "device") for rank in range(4)]
    assert ranks_alike(lanes, label, np.full((4, 20), 200, np.uint8)) == [[0, 1, 3], [2]]


def test_a_rank_that_is_busy_half_the_time_is_not_like_one_that_is_always_busy():
    busy = np.array([[255] * 8, [255] * 8, [127] * 8], np.uint8)
    assert ranks_alike([(rank, "device") for rank in range(3)], np.zeros((3, 8), np.uint8), busy) == [[0, 1], [2]]


def test_ranks_with_other_lanes_are_not_compared():
    few = [(0, "cpu"), (0, "device"), (1, "cpu")]
    assert ranks_alike(few, np.zeros((3, 4), np.uint8), np.full((3, 4), 255, np.uint8)) == [[0], [1]]
