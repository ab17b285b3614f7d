"""Exchanges between other ranks: where the ranks of a group are decides over which links they exchange."""

from __future__ import annotations

import numpy as np
import pytest

from lumos.changes.layout.regroup import recorded_exchange, regrouping
from lumos.cost.cluster import load_cluster
from lumos.cost.collective_model import Laid, collective, laid
from lumos.graph.table import Collectives
from lumos.vocabulary import CollectiveKind

H100 = load_cluster("h100")
NBYTES = 1 << 24


def exchange(group):
    """An all-reduce between two ranks of a group of that name."""
    column, wide = np.zeros(1, np.int32), np.zeros(1, np.int64)
    facts = Collectives(column, column, wide + NBYTES, column, wide, column, (CollectiveKind.ALL_REDUCE,), (group,))
    return recorded_exchange(facts, 0, 2)


@pytest.mark.parametrize(
    ("group", "apart", "lies"),
    [("1 [2, 3]", 1, Laid(2, 1, 2)), ("dp [0, 8]", 8, Laid(1, 8, 16)), ("dp [1, 5]", 4, Laid(2, 1, 8)), ("no list", 1, Laid(2, 1, 2))],
)
def test_of_twice_the_replicas_each_exchange_stays_on_its_links(group, apart, lies):
    before = exchange(group)
    assert before.stride == apart and laid(2, apart, 8) == lies
    two, four = (int(collective("all-reduce", n, NBYTES, H100, **laid(n, apart, 8)._asdict()).time) for n in (2, 4))
    assert regrouping(H100)(before, before.of(ranks=4)).best == pytest.approx(four / two)


def test_ranks_that_come_between_move_a_group_over_several_nodes():
    before = exchange("dp [0, 1]")
    assert regrouping(H100)(before, before.of(apart=8)).best > 2
