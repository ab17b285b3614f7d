"""A queue that work from before the recording had filled: launches of the recording waited for it."""

from __future__ import annotations

from pathlib import Path

import pytest

import lumos

FOREIGN = Path(__file__).resolve().parents[2] / "examples" / "foreign"


def test_launches_that_waited_for_work_from_before_the_window_are_not_kept():
    """With half of the batch the script took 6.11 ms."""
    assert lumos.whatif(str(FOREIGN / "LSTM__tf32"), micro_batch=32).outcome.step_time_s == pytest.approx(6.11e-3, rel=0.05)
