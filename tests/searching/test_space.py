"""The space holds every plan that the rules allow, once, and no other."""

from dataclasses import replace
from itertools import product

import pytest

from lumos.errors import UsageError
from lumos.plan.plan import PlanError, check_plan
from lumos.plan.profiles import framework_profile
from lumos.prediction.predict import predict_job
from lumos.searching.settings import space_of
from lumos.searching.space import PLAN_COLUMNS, SCHEDULES, Space, enumerate_plans


def test_every_plan_keeps_the_rules_and_uses_every_device(small, mixture):
    for problem in (small, mixture):
        plans = enumerate_plans(problem, Space())
        assert len(plans) > 500
        assert len({tuple(row) for row in plans.rows.tolist()}) == len(plans)
        for row in range(0, len(plans), 7):
            plan = plans.plan(row)
            check_plan(plan, problem.model)
            assert plan.devices == problem.gpus


def test_no_plan_that_the_rules_allow_is_missing(small):
    """Compared with the whole product of all choices, without those that make no difference."""
    space = Space(micro_batch=(1, 2), cp=(1, 2), recompute=("none",), schedule=("1f1b", "zero-bubble", "dualpipe"))
    listed = {tuple(row) for row in enumerate_plans(small, space).rows.tolist()}
    some = enumerate_plans(small, space).plan(0)
    expected = set()
    sizes = (1, 2, 4, 8, 16)
    for tp, pp, cp, zero, micro_batch, sequence, schedule in product(
        sizes[:4], sizes, (1, 2), range(4), (1, 2), (False, True), ("1f1b", "zero-bubble", "dualpipe")
    ):
        if small.gpus % (tp * pp * cp):
            continue
        plan = replace(
            some,
            tp=tp,
            pp=pp,
            cp=cp,
            dp=small.gpus // (tp * pp * cp),
            zero=zero,
            micro_batch=micro_batch,
            sequence_parallel=sequence,
            schedule=schedule,
            vpp=1,
            ep=1,
            recompute="none",
        )
        changes_nothing = (
            (zero > 0 and plan.dp * cp == 1) or (sequence and tp == 1) or (pp == 1 and schedule != "1f1b") or (zero == 3 and pp > 1)
        )
        try:
            check_plan(plan, small.model)
        except PlanError:
            continue
        if not changes_nothing:
            values = [getattr(plan, name) for name in PLAN_COLUMNS[:-2]]
            expected.add((*map(int, values), 0, SCHEDULES.index(schedule)))
    assert listed == expected


def test_named_values_bound_the_space_and_lift_its_limits(small):
    plans = enumerate_plans(small, Space(tp=(2,), pp=(4,), vpp=(3,), schedule=("interleaved",)))
    assert set(plans["tp"].tolist()) == {2}
    assert set(plans["vpp"].tolist()) == {3}  # 32 layers in 12 chunks: not even, so only where it is named
    assert 3 not in enumerate_plans(small, Space(pp=(4,)))["vpp"].tolist()


def test_a_range_of_values_keeps_the_limits_of_the_space(small):
    space = space_of({"pp": "2..4", "tp": "4..64", "vpp": "1..3"})
    plans = enumerate_plans(small, space)
    assert set(plans["pp"].tolist()) == {2, 4}
    assert set(plans["tp"].tolist()) == {4, 8}  # not 16: groups stay inside a node, unless 16 is named
    assert 3 not in plans["vpp"].tolist()  # 32 layers in 12 chunks: not even
    assert len(plans)
    with pytest.raises(UsageError, match="8 is more than 2"):
        space_of({"tp": "8..2"})
    same = {"pp": range(2, 5), "tp": (4, 8), "vpp": 1, "zero": 3, "schedule": ("1f1b", "gpipe"), "recompute": "none"}
    assert space_of(same) == space_of({"pp": "2..4", "tp": "4,8", "vpp": "1", "zero": "3", "schedule": "1f1b, gpipe", "recompute": "none"})


@pytest.mark.parametrize(
    ("framework", "schedules"),
    [
        ("megatron-core", {"1f1b", "interleaved"}),
        ("megatron-bridge", {"1f1b", "interleaved"}),  # as the profile that it is like
        ("megatron-deepspeed", {"1f1b"}),
        ("hai-llm", {"1f1b", "interleaved", "zero-bubble", "dualpipe"}),
        ("generic", {"1f1b", "interleaved", "zero-bubble", "dualpipe"}),
    ],
)
def test_schedules_are_those_that_the_framework_has(small, framework, schedules):
    problem = replace(small, framework=framework_profile(framework))
    sizes = Space(tp=(2,), pp=(2,), micro_batch=(1,))
    assert {SCHEDULES[i] for i in enumerate_plans(problem, sizes)["schedule"]} == schedules
    named = enumerate_plans(problem, replace(sizes, schedule=("dualpipe",)))
    assert {SCHEDULES[i] for i in named["schedule"]} == {"dualpipe"}


def test_of_zero_1_and_3_in_a_pipeline_one_is_listed_where_they_are_the_same(small):
    """Megatron Core gathers the parameters that a sharded optimizer updated during the first passes, as ZeRO 3 does in a pipeline; FSDP2 is
    ZeRO 3; where parameters are gathered after the optimizer, the two differ."""
    sizes = Space(tp=(2,), pp=(2,), micro_batch=(1,), cp=(1,))
    steps = [predict_job(small.job(replace(enumerate_plans(small, sizes).plan(0), zero=zero)), coarse=True) for zero in (1, 3)]
    assert steps[0].time == steps[1].time and steps[0].memory.peak_bytes == steps[1].memory.peak_bytes
    assert set(enumerate_plans(small, sizes)["zero"].tolist()) == {0, 1, 2}
    assert set(enumerate_plans(small, replace(sizes, zero=(3,)))["zero"].tolist()) == {3}
    assert set(enumerate_plans(small, replace(sizes, pp=(1,)))["zero"].tolist()) == {0, 1, 2, 3}
    for framework, listed in ((framework_profile("fsdp2"), {0, 2, 3}), (replace(small.framework, gather_overlap=False), {0, 1, 2, 3})):
        assert set(enumerate_plans(replace(small, framework=framework), sizes)["zero"].tolist()) == listed


def test_steps_too_long_to_simulate_are_not_listed(small):
    long = replace(small, global_batch=1 << 17)
    plans = enumerate_plans(long, Space(micro_batch=(1,), cp=(1,), tp=(1, 2, 4), recompute=("none",)))
    assert len(plans)
    for row in range(len(plans)):
        check_plan(plans.plan(row), long.model)
