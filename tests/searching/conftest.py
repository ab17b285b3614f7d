"""Problems small enough to simulate every plan in full."""

import pytest

from lumos.cost.cluster import load_cluster
from lumos.model import load_model
from lumos.plan.profiles import framework_profile
from lumos.searching.space import Problem


@pytest.fixture(scope="session")
def small() -> Problem:
    return Problem(load_model("llama3-8b"), framework_profile("megatron-core"), load_cluster("h100"), 16, 32, 4096)


@pytest.fixture(scope="session")
def mixture() -> Problem:
    return Problem(load_model("mixtral-8x7b"), framework_profile("megatron-core"), load_cluster("h100"), 32, 64, 4096)
