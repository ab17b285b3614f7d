"""The parts add up to the step, and their difference shows in what the plans differ."""

import pytest

from lumos.blocks.price import Pricer
from lumos.plan.configuration import job_from
from lumos.prediction.predict import predict_job
from lumos.prediction.step_time import PredictedStep
from lumos.searching.explain import RECOMPUTED, StepParts, Timed, against, explain_predictions
from lumos.searching.settings import settings_of

COMMON = "model=llama3-8b,cluster=h100,gpus=16,global_batch=32,seq=4096"


def explained(a, b):
    jobs = [job_from(settings_of(f"{COMMON},{text}")) for text in (a, b)]
    pricer = Pricer(jobs[0].cluster)
    first, second = (predict_job(job, pricer, coarse=True) for job in jobs)
    return first, second, explain_predictions(first, second, pricer)


def test_parts_add_up_to_the_steps():
    first, second, found = explained("tp=2,pp=2", "tp=8,zero=0")
    assert sum(found.first.values()) == pytest.approx(first.time.time_s, rel=1e-6)
    assert sum(found.second.values()) == pytest.approx(second.time.time_s, rel=1e-6)
    assert sum(found.difference.values()) == pytest.approx(second.time.time_s - first.time.time_s, rel=1e-6)


def test_recomputation_is_named():
    first, second, found = explained("tp=2,pp=2", "tp=2,pp=2,recompute=full")
    assert max(found.difference, key=lambda part: found.difference[part]) == RECOMPUTED
    repeated = found.difference[RECOMPUTED] + found.difference["tensor-parallel communication"]  # the forward pass's, done twice
    assert repeated == pytest.approx(second.time.time_s - first.time.time_s, rel=0.15)


def timed(text, time, seconds, spread):
    return Timed(job_from(settings_of(f"{COMMON},{text}")), PredictedStep(*time), StepParts(seconds, spread))


SPREAD = {"multiplications": 0.1, "tensor-parallel communication": 0.2}


def test_the_part_that_decides_is_the_one_whose_error_would_most_likely_make_a_tie():
    """10 s against 10.4 s. The multiplications differ by 0.2 s of that: they would have to cost 0.4 / 0.2 = twice as little, which none
    believes. The communication differs by 0.2 s the other way and by 0.6 s in all: two thirds off."""
    fast = timed("tp=2", (10.0, 9.0, 11.0), {"multiplications": 9.0, "tensor-parallel communication": 1.0}, SPREAD)
    slow = timed("tp=8", (10.4, 9.4, 11.4), {"multiplications": 8.8, "tensor-parallel communication": 1.6}, SPREAD)
    found = against(slow, fast)
    assert (found.difference_s, found.equal) == (pytest.approx(0.4), True)
    assert (found.decides, found.tie) == ("tensor-parallel communication", pytest.approx(-0.4 / 0.6))
    assert found.measure == "an all-gather and a reduce-scatter of 34 MB over 8 devices of a node"  # 2 bytes, 4,096 tokens, 4,096 wide


def test_intervals_that_are_apart_make_plans_differ_and_far_errors_decide_nothing():
    fast = timed("tp=2", (10.0, 9.5, 10.5), {"multiplications": 9.0, "tensor-parallel communication": 1.0}, SPREAD)
    slow = timed("tp=8", (20.0, 18.0, 22.0), {"multiplications": 10.0, "tensor-parallel communication": 10.0}, SPREAD)
    assert against(slow, fast) == (10.0, False, None, None, None)


def test_a_schedule_without_measured_runs_decides_before_any_part():
    parts = {"multiplications": 10.0}, SPREAD
    fast = timed("pp=2,schedule=zero-bubble", (10.0, 9.0, 11.0), *parts)
    slow = timed("pp=2", (10.4, 9.4, 11.4), *parts)
    assert against(slow, fast).decides == "the zero-bubble schedule"
    both = timed("pp=2,schedule=zero-bubble", (10.4, 9.4, 11.4), *parts)
    assert against(both, fast).decides is None
