"""A search gives the same answer wherever its plans are timed, also if a node is lost on the way."""

import numpy as np
import pytest

from lumos.distribute import Workers
from lumos.searching.engine import Local, Ray, layer_blocks
from lumos.searching.prices import block_columns
from lumos.searching.search import search_problem
from lumos.searching.space import Space, enumerate_plans, structures

SPACE = Space(cp=(1, 2), micro_batch=(1, 2))


def without_clock(found):
    return {**found.to_dict(), "seconds_s": 0}


def test_threads_do_not_change_the_answer(small):
    one, three = (search_problem(small, SPACE, refine=3, engine=Local(small, threads)) for threads in (1, 3))
    assert without_clock(one) == without_clock(three)


def test_blocks_hold_every_row_once_and_have_equal_work(small):
    plans = enumerate_plans(small, Space())
    rows = np.random.default_rng(0).permutation(len(plans))
    parts = layer_blocks(plans, rows, 6)
    assert sorted(np.concatenate(parts).tolist()) == sorted(rows.tolist())

    def passes(block):
        return sum(len(r) * s.stages * s.chunks * s.microbatches for s, r in structures(plans.take(block)))

    assert 6 <= len(parts) <= 7
    assert max(map(passes, parts)) < 1.5 * np.mean(list(map(passes, parts)))


@pytest.mark.filterwarnings("ignore")
def test_a_lost_node_changes_nothing(small):
    pytest.importorskip("ray", reason="Ray is not installed (extra `distributed`)")
    import ray
    from ray.cluster_utils import Cluster

    plans = enumerate_plans(small, SPACE)
    rows = np.arange(len(plans))
    local = Local(small, 1)
    columns = block_columns(plans, local.pricer)
    expected = np.zeros(len(plans))
    for some, seconds in local.times(plans, columns, rows):
        expected[some] = seconds
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        lost = cluster.add_node(num_cpus=1)
        cluster.add_node(num_cpus=1)
        ray.init(address=cluster.address, log_to_driver=False)
        engine = Ray(small, Workers(ray))
        found = np.zeros(len(plans))
        for done, (some, seconds) in enumerate(engine.times(plans, columns, rows)):
            found[some] = seconds
            if done == 1:
                cluster.remove_node(lost, allow_graceful=False)
        assert np.array_equal(found, expected)
        assert without_clock(search_problem(small, SPACE, refine=3, engine=engine)) == without_clock(search_problem(small, SPACE, refine=3))
    finally:
        ray.shutdown()
        cluster.shutdown()
