"""The share of a step that putting work together anew leaves out, from answers and what the changed scripts took."""

from __future__ import annotations

import pytest
from validation.foreign.calibrate import calibration, needed, rebuilds
from validation.foreign.pairs import Pair
from validation.foreign.score import Score

from lumos.changes.certainty.rebuilt import REBUILT


def score(base, change, low, high, *, planned=False):
    """A changed step of 100 ms, with an interval to which a share was added where measured blocks were put together."""
    share = 0.0 if planned else REBUILT
    return Score(Pair(base, change), 80.0, 100.0, 90.0, 95.0, low * (1 - share), high * (1 + share), "sound", planned=planned)


def test_the_share_that_an_interval_lacks_is_that_of_its_own_way():
    """An interval that ends at 80 lacks a quarter of that, with and without the share that blocks have already."""
    assert needed(score("A", "layers=2", 70, 80)) == pytest.approx(0.25)
    assert needed(score("A", "layers=2", 70, 80, planned=True)) == pytest.approx(0.25)
    assert needed(score("A", "layers=2", 90, 110)) == 0


def test_answers_of_blocks_and_of_plans_are_summed_apart():
    blocks = [score("A", "layers=2", 70, 80), score("B", "dp=4", 90, 110), score("B", "seq=64", 10, 20)]
    text = calibration([*blocks, score("C", "pp=2", 70, 50, planned=True)])
    assert "answered by means of measured blocks: 2; 25.00% holds 80 %" in text
    assert "answered by means of an identified plan: 1; 100.00% holds 80 %" in text
    assert "by means of an identified plan" in calibration(blocks).splitlines()[-1]
    assert not rebuilds(blocks[2])
