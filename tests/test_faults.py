"""Recorded jobs with a known cause of delay: the cause is named first, with about the worth that was injected."""

from functools import cache
from pathlib import Path

import pytest
from validation.faults import FAULTS, Answers, Fault, Scored, answers, measured_worth_ms

RECORDED = Path(__file__).parents[1] / "examples" / "faults"
#: How much of each cause was injected, and of pauses the time in ms.
AMOUNT = {"extra work": 10, "sleep": 0.05, "loader stall": 0.05, "slow process": 2.2, "outlier": 0.08, "large exchange": 24}
PAUSE_MS = {"sleep": 50, "loader stall": 50, "outlier": 80}


def fault(cause: str, amount: float) -> Fault:
    (found,) = (f for f in FAULTS if f.cause == cause and f.amount == amount)
    return found


@cache
def said(cause: str, recorded: str = "") -> Answers:
    """What Lumos says of a recording, of the cause's own unless another is named, asked for that cause."""
    return answers(fault(cause, AMOUNT[cause]), RECORDED / "plain", RECORDED / (recorded or cause.replace(" ", "-")))


@pytest.mark.parametrize("cause", AMOUNT)
def test_every_cause_is_named_first(cause):
    found = said(cause)
    assert found.diagnose, found.diagnose_first
    assert found.diagnose_ms == pytest.approx(found.whatif_ms or found.stragglers_ms, rel=0.25)
    if cause == "large exchange":  # which all ranks share
        assert found.critical_path
    else:
        assert found.stragglers, found.first


@pytest.mark.parametrize("cause", PAUSE_MS)
def test_the_worth_of_a_pause_is_its_length(cause):
    assert said(cause).stragglers_ms == pytest.approx(PAUSE_MS[cause], rel=0.15)
    if cause == "loader stall":  # a sleep inside the range of the loader, which is worth all that it did
        assert said(cause).whatif_ms == pytest.approx(50, rel=0.15)


def test_an_innocent_job_is_not_blamed():
    found = said("sleep", "plain")
    kind = found.diagnose_first.partition(",")[0]  # its steps differ on two busy cores, and nothing hides its exchange
    assert not found.stragglers and not found.diagnose and kind in ("slow-steps", "exposed-communication")


def test_a_name_is_not_taken_for_a_longer_one():
    """A pause before aten::ones_like is the cause "sleep", and no stall of the loader, which is before aten::ones."""
    found = said("loader stall", "sleep")
    assert found.first.startswith("stall, before aten::ones_like") and not found.stragglers


def test_a_worth_is_the_difference_of_the_medians_and_an_outlier_that_of_its_step():
    seconds = {"plain": [0.050, 0.049, 0.051], "with": [0.070, 0.071, 0.150]}
    assert measured_worth_ms(fault("sleep", 0.02), seconds) == pytest.approx(21)
    assert measured_worth_ms(fault("outlier", 0.08), seconds) == pytest.approx(79)


def test_a_cause_within_the_noise_is_not_counted():
    said = Answers("stall", True, 20.0, "stall", True, 20.0, True, 20.0, None)
    assert Scored(fault("sleep", 0.02), (18.0, 20.0, 22.0), (said,) * 3).counted  # 20 ± 2
    assert not Scored(fault("sleep", 0.02), (-9.0, 4.0, 8.0), (said,) * 3).counted  # 4 ± 8.5
