"""The space holds every plan that the rules allow, once, and no other."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from lumos.errors import UsageError
from lumos.plan.plan import PlanError, check_plan
from lumos.search.settings import proved_only, space_of
from lumos.search.space import PLAN_COLUMNS, SCHEDULES, Space, divisors, enumerate_plans


def test_divisors():
    assert divisors(12) == [1, 2, 3, 4, 6, 12]
    assert divisors(1) == [1]


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
        changes_nothing = (zero > 0 and plan.dp * cp == 1) or (sequence and tp == 1) or (pp == 1 and schedule != "1f1b")
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


def test_only_schedules_that_were_compared_with_measured_runs(small):
    assert proved_only(Space()).schedule == ("1f1b", "interleaved")
    assert proved_only(Space(schedule=("1f1b", "dualpipe"))).schedule == ("1f1b",)
    with pytest.raises(UsageError, match="leave out --proved"):
        proved_only(Space(schedule=("dualpipe",)))


def test_steps_too_long_to_simulate_are_not_listed(small):
    long = replace(small, global_batch=1 << 17)
    plans = enumerate_plans(long, Space(micro_batch=(1,), cp=(1,), tp=(1, 2, 4), recompute=("none",)))
    assert len(plans)
    for row in range(len(plans)):
        check_plan(plans.plan(row), long.model)


def test_a_space_without_plans_is_empty(small):
    assert len(enumerate_plans(small, Space(tp=(3,)))) == 0
