"""The coarse form agrees with the full simulation, and the bounds lie below it."""

from dataclasses import replace

import numpy as np
import pytest

from lumos.blocks.price import Pricer
from lumos.plan.profiles import framework_profile
from lumos.prediction.step_time import step_time
from lumos.searching.bounds import lower_bounds, peak_bytes
from lumos.searching.coarse import coarse_step_times
from lumos.searching.prices import block_columns
from lumos.searching.space import SCHEDULES, Plans, Space, enumerate_plans


def sample(problem, count, space=None) -> Plans:
    plans = enumerate_plans(problem, space or Space())
    fits = np.flatnonzero(peak_bytes(plans) <= problem.cluster.accelerator.usable_bytes)
    return plans.take(np.random.default_rng(3).choice(fits, min(count, len(fits)), replace=False))


def both(plans):
    """Coarse and full seconds, and the bounds."""
    pricer = Pricer(plans.problem.cluster)
    columns = block_columns(plans, pricer)
    full = np.array([step_time(plans.problem.job(plans.plan(row)), pricer).time_s for row in range(len(plans))])
    return coarse_step_times(plans, columns, pricer.coefficients), full, lower_bounds(plans, columns, pricer.coefficients)


def ranks(values):
    return np.argsort(np.argsort(values))


@pytest.mark.parametrize(("name", "framework"), [("small", "megatron-core"), ("mixture", "megatron-core"), ("small", "nemo")])
def test_agrees_with_the_full_simulation(name, framework, request):
    every = Space(zero=(0, 1, 2, 3), schedule=SCHEDULES)
    plans = sample(replace(request.getfixturevalue(name), framework=framework_profile(framework)), 50, every)
    coarse, full, _ = both(plans)
    error = np.abs(coarse / full - 1)
    assert np.median(error) < 0.002
    assert np.max(error[plans["zero"] < 2]) < 0.03  # beyond, passes wait for exchanges of the passes before them
    assert np.max(error) < 0.1
    assert np.corrcoef(ranks(coarse), ranks(full))[0, 1] > 0.98


@pytest.mark.parametrize(
    ("batch", "least", "space"),
    [
        (64, -0.04, Space(zero=(2,), cp=(4, 8), pp=(2, 4), micro_batch=(1,))),
        (32, -0.005, Space(zero=(2,), cp=(2, 4, 8), pp=(2, 4, 8), micro_batch=(1, 2), schedule=("zero-bubble",))),
    ],
)
def test_passes_that_wait_for_reductions(small, batch, least, space):
    """Short passes, whose gradients take longer to reduce than to compute. A stage has room for those of two buckets; the reductions of a
    step follow each other; and those of the weight gradients that a zero-bubble schedule leaves to the end run alone."""
    coarse, full, _ = both(sample(replace(small, global_batch=batch), 40, space))
    error = coarse / full - 1
    assert np.median(np.abs(error)) < 0.002
    assert np.min(error) > least
    assert np.max(error) < 0.01


@pytest.mark.parametrize("framework", ["megatron-core", "megatron-2021", "fsdp2", "generic"])
def test_sharded_parameters_in_a_pipeline(small, framework):
    problem = replace(small, framework=framework_profile(framework), global_batch=64)
    space = Space(zero=(1, 3), pp=(2, 4), vpp=(1, 2), tp=(1, 2, 4), schedule=("1f1b", "interleaved"))
    plans = enumerate_plans(problem, space)
    rows = [np.random.default_rng(5).choice(np.flatnonzero(plans["zero"] == zero), 8, replace=False) for zero in (1, 3)]
    coarse, full, _ = both(plans.take(np.concatenate(rows)))
    assert np.median(np.abs(coarse / full - 1)) < 0.002
    assert np.max(np.abs(coarse / full - 1)) < 0.03


@pytest.mark.parametrize("framework", ["megatron-core", "nemo", "megatron-2021", "fsdp2"])
def test_no_step_is_faster_than_its_bound(small, framework):
    _, full, bounds = both(sample(replace(small, framework=framework_profile(framework)), 40))
    assert np.all(bounds <= full * (1 + 1e-9))
    assert np.median(bounds / full) > 0.7  # a bound near zero would prune nothing


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_long_steps_are_extrapolated_from_short_ones(small, schedule):
    """More microbatches than the pipeline needs to reach its steady state."""
    long = replace(small, global_batch=256)
    vpp = (2,) if schedule == "interleaved" else (1,)
    plans = enumerate_plans(long, Space(tp=(4,), pp=(4,), vpp=vpp, micro_batch=(1,), schedule=(schedule,), recompute=("none",)))
    assert len(plans)
    coarse, full, _ = both(plans)
    assert np.max(np.abs(coarse / full - 1)) < 0.01


def test_a_plan_takes_the_same_time_alone_and_with_others(small):
    plans = sample(small, 50)
    pricer = Pricer(small.cluster)
    together = coarse_step_times(plans, block_columns(plans, pricer), pricer.coefficients)
    for row in range(0, 50, 10):
        alone = plans.take(np.array([row]))
        assert coarse_step_times(alone, block_columns(alone, pricer), pricer.coefficients)[0] == pytest.approx(together[row], rel=1e-12)
