"""Recorded jobs with a known cause of delay: the cause is named first, with about the worth that was injected."""

from functools import cache
from pathlib import Path

import pytest
from validation.faults import FAULTS, Answers, Fault, answers

RECORDED = Path(__file__).parents[1] / "examples" / "faults"
#: How much of each cause was injected, and of pauses the time in ms.
AMOUNT = {"extra work": 10, "sleep": 0.05, "loader stall": 0.05, "slow process": 2.2, "outlier": 0.08, "large exchange": 24}
PAUSE_MS = {"sleep": 50, "loader stall": 50, "outlier": 80}


def fault(cause: str, amount: float) -> Fault:
    (result,) = (f for f in FAULTS if f.cause == cause and f.amount == amount)
    return result


@cache
def said(cause: str, recorded: str = "") -> Answers:
    """What Lumos says of a recording, of the cause's own unless another is named, asked for that cause."""
    return answers(fault(cause, AMOUNT[cause]), RECORDED / "plain", RECORDED / (recorded or cause.replace(" ", "-")))


@pytest.mark.parametrize("cause", AMOUNT)
def test_every_cause_is_named_first(cause):
    result = said(cause)
    assert result.diagnose, result.diagnose_first
    assert result.diagnose_ms == pytest.approx(result.whatif_ms or result.stragglers_ms, rel=0.25)
    if cause == "large exchange":  # which all ranks share
        assert result.critical_path
    else:
        assert result.stragglers, result.first


@pytest.mark.parametrize("cause", PAUSE_MS)
def test_the_worth_of_a_pause_is_its_length(cause):
    assert said(cause).stragglers_ms == pytest.approx(PAUSE_MS[cause], rel=0.15)
    if cause == "loader stall":  # a sleep inside the range of the loader, which is worth all that it did
        assert said(cause).whatif_ms == pytest.approx(50, rel=0.15)


def test_an_innocent_job_is_not_blamed():
    result = said("sleep", "plain")
    kind = result.diagnose_first.partition(",")[0]  # its steps differ on two busy cores, and nothing hides its exchange
    assert not result.stragglers and not result.diagnose and kind in ("slow-steps", "exposed-communication")
