"""Recorded jobs with a known cause of delay: the cause is named first, with about the worth that was injected."""

from pathlib import Path

import pytest
from validation.faults import FAULTS, Answers, Fault, Scored, answers, measured_worth_ms

RECORDED = Path(__file__).parents[1] / "examples" / "faults"


def fault(cause: str, amount: float) -> Fault:
    (found,) = (f for f in FAULTS if f.cause == cause and f.amount == amount)
    return found


@pytest.mark.parametrize(
    ("cause", "amount"),
    [("extra work", 10), ("sleep", 0.05), ("loader stall", 0.05), ("slow process", 2.2), ("outlier", 0.08)],
)
def test_stragglers_names_the_cause_on_one_rank_first(cause, amount):
    said = answers(fault(cause, amount), RECORDED / "plain", RECORDED / cause.replace(" ", "-"))
    assert said.stragglers, said.first


@pytest.mark.parametrize(
    ("cause", "amount"),
    [("extra work", 10), ("sleep", 0.05), ("loader stall", 0.05), ("slow process", 2.2), ("outlier", 0.08), ("large exchange", 24)],
)
def test_diagnose_names_every_cause_first(cause, amount):
    said = answers(fault(cause, amount), RECORDED / "plain", RECORDED / cause.replace(" ", "-"))
    assert said.diagnose, said.diagnose_first
    assert said.diagnose_ms == pytest.approx(said.whatif_ms or said.stragglers_ms, rel=0.25)


def test_diagnose_finds_no_fault_of_a_rank_in_the_plain_job():
    said = answers(fault("sleep", 0.05), RECORDED / "plain", RECORDED / "plain")
    kind = said.diagnose_first.partition(",")[0]  # its steps differ on two busy cores, and nothing hides its exchange
    assert not said.diagnose and kind in ("slow-steps", "exposed-communication")


def test_the_critical_path_names_an_exchange_that_all_ranks_share():
    said = answers(fault("large exchange", 24), RECORDED / "plain", RECORDED / "large-exchange")
    assert said.critical_path


@pytest.mark.parametrize(("cause", "amount", "injected_ms"), [("sleep", 0.05, 50), ("loader stall", 0.05, 50), ("outlier", 0.08, 80)])
def test_the_worth_of_a_pause_is_its_length(cause, amount, injected_ms):
    said = answers(fault(cause, amount), RECORDED / "plain", RECORDED / cause.replace(" ", "-"))
    assert said.stragglers_ms == pytest.approx(injected_ms, rel=0.15)


def test_a_name_is_not_taken_for_a_longer_one():
    """A pause before aten::ones_like is the cause "sleep", and no stall of the loader, which is before aten::ones."""
    said = answers(fault("loader stall", 0.05), RECORDED / "plain", RECORDED / "sleep")
    assert said.first.startswith("stall, before aten::ones_like") and not said.stragglers


def test_a_range_is_worth_all_that_it_did():
    """The loader's 50 ms are a sleep inside its range."""
    said = answers(fault("loader stall", 0.05), RECORDED / "plain", RECORDED / "loader-stall")
    assert said.whatif_ms == pytest.approx(50, rel=0.15)


def test_an_innocent_job_is_not_blamed():
    said = answers(fault("sleep", 0.05), RECORDED / "plain", RECORDED / "plain")
    assert not said.stragglers


def test_a_worth_is_the_difference_of_the_medians_and_an_outlier_that_of_its_step():
    seconds = {"plain": [0.050, 0.049, 0.051], "with": [0.070, 0.071, 0.150]}
    assert measured_worth_ms(fault("sleep", 0.02), seconds) == pytest.approx(21)
    assert measured_worth_ms(fault("outlier", 0.08), seconds) == pytest.approx(79)


def test_a_cause_within_the_noise_is_not_counted():
    said = Answers("stall", True, 20.0, "stall", True, 20.0, True, 20.0, None)
    assert Scored(fault("sleep", 0.02), (18.0, 20.0, 22.0), (said,) * 3).counted  # 20 ± 2
    assert not Scored(fault("sleep", 0.02), (-9.0, 4.0, 8.0), (said,) * 3).counted  # 4 ± 8.5
