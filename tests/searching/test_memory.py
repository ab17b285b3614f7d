"""Memory in columns equals the memory of `blocks.memory`, to the byte."""

from dataclasses import replace

import numpy as np
import pytest

from lumos.blocks.memory import peak_memory
from lumos.plan.profiles import framework_profile
from lumos.searching.bounds import peak_bytes
from lumos.searching.space import SCHEDULES, Space, enumerate_plans


@pytest.mark.parametrize("name", ["small", "mixture"])
@pytest.mark.parametrize(
    ("framework", "grad_reduce"), [("megatron-core", "microbatch"), ("megatron-core", "group"), ("megatron-2021", "step")]
)
def test_columns_equal_one_plan_at_a_time(name, framework, grad_reduce, request):
    framework = replace(framework_profile(framework), grad_reduce=grad_reduce)
    problem = replace(request.getfixturevalue(name), framework=framework)
    plans = enumerate_plans(problem, Space(schedule=SCHEDULES))
    peak = peak_bytes(plans)
    for row in np.random.default_rng(7).choice(len(plans), 60, replace=False).tolist():
        assert peak[row] == peak_memory(problem.job(plans.plan(row))).peak_bytes, plans.plan(row)
