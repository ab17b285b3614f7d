"""How a group lies on nodes, which decides what its collectives cost."""

import pytest

from lumos.blocks.work import Collective
from lumos.cost.cluster import load_cluster
from lumos.emulation.device.issue import exchange_work
from lumos.emulation.record import Exchange
from lumos.vocabulary import CollectiveKind


def exchange(kind=CollectiveKind.ALL_GATHER, elements=(100, 800), **more):
    into, out = elements
    values = {"name": "x", "group": "g", "sequence": 0, "thread": 0, "begin": 0, "end": 1, "dtype": "bfloat16", **more}
    return Exchange(kind=kind, input_elements=into, output_elements=out, **values)


@pytest.mark.parametrize(
    ("ranks", "world", "expected"),
    [
        (range(8), 64, (8, 8, 1, 8)),  # a whole node
        (range(0, 64, 8), 64, (8, 1, 8, 57)),  # one device of each of eight nodes: all eight groups of a node share its interfaces
        (range(16), 16, (16, 8, 1, 16)),  # two whole nodes
        ((0, 1, 2, 3, 8, 9, 10, 11), 16, (8, 4, 2, 12)),  # half of each of two nodes
        ((0, 8), 12, (2, 1, 8, 9)),
    ],
)
def test_a_group_lies_on_nodes_that_the_ranks_fill_in_order(ranks, world, expected):
    size, per_node, concurrent, span = expected
    found = exchange_work(exchange(), 0, list(ranks), world, load_cluster("h100"))
    assert found == Collective(CollectiveKind.ALL_GATHER, size, 1600, per_node, concurrent, span)


def test_a_message_is_between_two_ranks_of_its_group():
    found = exchange_work(exchange(CollectiveKind.SEND, (100, 100), peer=8), 0, [0, 8, 16, 24], 32, load_cluster("h100"))
    assert found == Collective(CollectiveKind.SEND_RECEIVE, 2, 200, 1, 8, 9)
