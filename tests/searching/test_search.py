"""Searches compared with simulating every plan in full; sweeps, interruption."""

import sys

import numpy as np
import pytest

from lumos.blocks.price import Pricer
from lumos.errors import LumosError, UsageError
from lumos.prediction.step_time import step_time
from lumos.searching.engine import Local
from lumos.searching.search import SearchStage, search_problem
from lumos.searching.settings import sweep_of
from lumos.searching.space import Space, enumerate_plans

module = sys.modules["lumos.searching.search"]
FEW = Space(cp=(1,), micro_batch=(1, 2), schedule=("1f1b", "interleaved"), zero=(1,), sequence_parallel=(True,))


@pytest.fixture(scope="module")
def found(small):
    return search_problem(small, FEW, refine=5)


def test_finds_the_plans_that_simulating_all_finds(small, found, monkeypatch):
    monkeypatch.setattr(module, "FIRST_ROUND", 8)  # so that the first round sets a limit that prunes the rest
    pruned = search_problem(small, FEW, refine=5)
    assert pruned.pruned > 0
    plans = enumerate_plans(small, FEW)
    pricer = Pricer(small.cluster)
    capacity = small.cluster.accelerator.usable_bytes
    times = sorted(
        step_time(small.job(plans.plan(row)), pricer).time_s
        for row in range(len(plans))
        if module.peak_bytes(plans.take(np.array([row])))[0] <= capacity
    )
    for some in (found, pruned):
        assert [p.time.time_s for p in some.best] == pytest.approx(times[:5], rel=1e-9)
        assert some.infeasible + some.pruned + some.evaluated == some.plans


def test_no_plan_beats_one_of_the_front_in_both_time_and_memory(found):
    c = found.candidates
    front = c.pareto().tolist()
    for row in range(len(c.plans)):
        beaten = np.any((c.seconds <= c.seconds[row]) & (c.peak < c.peak[row]) | (c.seconds < c.seconds[row]) & (c.peak <= c.peak[row]))
        if row in front:
            assert not beaten
    assert front[0] == 0
    assert c.peak[front[-1]] == c.peak.min()


def test_sweeps_double_or_list():
    assert sweep_of("gpus=256..2048") == ("gpus", (256, 512, 1024, 2048))
    assert sweep_of("seq=4096,6144") == sweep_of({"seq": (4096, 6144)}) == ("seq", (4096, 6144))
    with pytest.raises(UsageError, match="one size with its values, not 2"):
        sweep_of({"seq": (4096,), "gpus": (8,)})
    for wrong in ("gpus", "tp=1..4", "gpus=4..2", "seq=x"):
        with pytest.raises(UsageError):
            sweep_of(wrong)


def stop_while_timing(stage, done, total):
    if stage is SearchStage.TIMING:
        raise KeyboardInterrupt


def test_interruption_gives_the_best_so_far(small):
    stopped = search_problem(small, FEW, refine=2, report=stop_while_timing)
    assert not stopped.complete
    assert stopped.evaluated > 0
    assert len(stopped.best) == 1  # the fastest so far, though the first round was never finished
    assert stopped.best[0].job.plan == stopped.candidates.plans.plan(0)


@pytest.mark.parametrize("at", ["enumerate_plans", "lower_bounds"])
def test_interruption_before_a_plan_was_timed_says_so(small, monkeypatch, at):
    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(module, at, stop)
    with pytest.raises(LumosError, match="before any plan was timed"):
        search_problem(small, FEW)


def test_plans_that_the_coarse_form_took_for_too_fast_do_not_displace_others(small, found):
    """The coarse times of the plans that are simulated first are halved: without looking on, they alone would be the answer."""
    plans, seconds = found.candidates.plans, found.candidates.seconds.copy()
    slow = np.argsort(seconds)[-3:]
    seconds[slow] = seconds.min() * np.array([0.5, 0.6, 0.7])
    full = module._Full(Local(small), 3, lambda *_: None)
    full.best(plans, seconds)
    assert {p.job.plan for p in full.fastest()} == {plans.plan(row) for row in slow.tolist()}
    full.settle(plans, seconds)
    assert [p.time.time_s for p in full.fastest()] == pytest.approx([p.time.time_s for p in found.best[:3]])
