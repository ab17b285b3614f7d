"""The share of a step that putting work together anew leaves out, from answers and what the changed scripts took."""

import pytest
from validation.foreign.calibrate import calibration, needed, rebuilds
from validation.foreign.pairs import Pair
from validation.foreign.score import Score

from lumos.changes.certainty.trusted import REBUILT


def score(base, change, low, high):
    """A changed step of 100 ms, with an interval that holds the share already."""
    return Score(Pair(base, change), 80.0, 100.0, 90.0, 95.0, low * (1 - REBUILT), high * (1 + REBUILT), "sound")


def test_the_share_that_an_interval_lacks_is_beyond_the_one_that_it_has():
    """An interval that ends at 80 lacks a quarter of that."""
    assert needed(score("A", "layers=2", 70, 80)) == pytest.approx(0.25)
    assert needed(score("A", "layers=2", 90, 110)) == 0


def test_changes_of_sizes_do_not_count():
    blocks = [score("A", "layers=2", 70, 80), score("B", "dp=4", 90, 110), score("B", "seq=64", 10, 20)]
    assert "Changes that resize nothing: 2; 25.00% holds 80 %" in calibration(blocks)
    assert calibration(blocks[2:]) == "No change that resizes nothing is answered."
    assert not rebuilds(blocks[2])
