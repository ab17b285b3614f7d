"""Communication is chained where ranks could hold one another up, and nowhere else."""

from __future__ import annotations

import pytest
from tests.chakra.test_round_trip import _graph

from lumos.chakra.issue_order import _chains, ordered
from lumos.chakra.lower import lower
from lumos.graph.table import Kind


@pytest.mark.parametrize(
    ("groups", "pairs", "chains"),
    [
        ([(0, 1), (2, 3), (0, 2), (1, 3)], [], [0, 0, 0, 0]),  # a grid: rows and columns close a ring
        ([(0, 1), (1, 2), (2, 3)], [], [0, 1, 2]),  # a line of groups: nobody waits for a rank that waits for him
        ([(0, 1), (0, 1)], [], [0, 0]),  # two communicators of the same ranks
        ([(0, 1, 2, 3), (0, 1)], [], [0, 0]),
        ([(0, 1), (2, 3)], [(0, 2)], [0, 1, -1]),  # one message between two groups
        ([(0, 1), (2, 3)], [(0, 2), (1, 3)], [0, 0, 0, 0]),  # two of them close a ring
        ([], [(0, 1), (1, 2), (0, 2)], [-1, -1, -1]),  # sends alone never wait
        ([(0, 1), (1, 2), (0, 2), (3, 4)], [], [0, 0, 0, 3]),  # a ring of three, and a group apart
        ([(0,), (0, 1)], [], [0, 1]),
    ],
)
def test_groups_on_a_ring_share_a_chain(groups: list[tuple[int, ...]], pairs: list[tuple[int, ...]], chains: list[int]) -> None:
    assert _chains([*groups, *pairs], len(groups)).tolist() == chains


def test_the_collectives_of_a_group_follow_one_another() -> None:
    """On each of two ranks two collectives that nothing orders, on two streams: the first to start goes first on both."""
    rows = [(Kind.COLLECTIVE, processor, ns) for processor, ns in ((1, 6_000), (2, 5_000), (4, 6_000), (5, 5_000))]
    before = lower(_graph(rows, [], [0, 2, 1, 3], 0))
    after = ordered(before)
    assert (before.dep.tolist(), after.dep.tolist()) == ([], [0, 2])
    assert after.dep_offset.tolist() == [0, 0, 1, 1, 2]
    assert after.start.tolist() == before.start.tolist()
