"""A search gives the same answer wherever its plans are timed, also where a node is lost in the middle."""

from __future__ import annotations

import numpy as np
import pytest

from lumos.errors import UsageError
from lumos.search.engine import Local, Ray, engine_of
from lumos.search.search import answer, search
from lumos.search.space import Space, enumerate_plans

SPACE = Space(cp=(1, 2), micro_batch=(1, 2))


def without_clock(found):
    return {**answer(found), "seconds_s": 0}


def test_threads_do_not_change_the_answer(small):
    one, three = (search(small, SPACE, refine=3, engine=Local(small, threads)) for threads in (1, 3))
    assert without_clock(one) == without_clock(three)


def test_an_unknown_engine_is_refused(small):
    with pytest.raises(UsageError, match="local, ray"):
        engine_of("dask", small)


@pytest.mark.filterwarnings("ignore")
def test_a_lost_node_changes_nothing(small):
    pytest.importorskip("ray", reason="Ray is not installed (extra `distributed`)")
    import ray
    from ray.cluster_utils import Cluster

    plans = enumerate_plans(small, SPACE)
    rows = np.arange(len(plans))
    expected = np.concatenate([seconds for _, seconds in Local(small, 1).times(plans, rows)])
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        lost = cluster.add_node(num_cpus=1)
        cluster.add_node(num_cpus=1)
        ray.init(address=cluster.address, log_to_driver=False)
        engine = Ray(small, block=64)
        found = np.zeros(len(plans))
        for done, (some, seconds) in enumerate(engine.times(plans, rows)):
            found[some] = seconds
            if done == 1:
                cluster.remove_node(lost, allow_graceful=False)
        assert np.array_equal(found, expected)
        assert without_clock(search(small, SPACE, refine=3, engine=engine)) == without_clock(search(small, SPACE, refine=3))
    finally:
        ray.shutdown()
        cluster.shutdown()
