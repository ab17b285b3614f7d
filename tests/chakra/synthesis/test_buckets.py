"""Buckets of gradients: how many layers one holds jumps with the width, by a limit of bytes that follows by hand."""

import pytest
from tests.chakra.synthesis.test_family import plan

from lumos.chakra.lower import lower
from lumos.chakra.synthesis.family import sample_family
from lumos.chakra.synthesis.model import learn
from lumos.chakra.workload import Workload

#: dp, layers, width. A layer has 4 x width^2 bytes, and a bucket as many layers as 10,000 bytes hold: 6, 2, 1, 11 (all 4).
FACTS = [(2, 12, 20), (2, 6, 30), (4, 4, 50), (4, 4, 15), (2, 4, 30), (4, 12, 20)]
KEYS = ("dp", "layers", "width")
LIMIT = 10_000


def bucketed(dp: int, layers: int, width: int) -> Workload:
    """Ranks that exchange the gradients of their layers in buckets, and then width x 1,000 bytes more; a byte takes 1 ns."""
    held = max(min(LIMIT // (4 * width**2), layers), 1)
    last = {min(i + held, layers) - 1: 4 * width**2 * min(held, layers - i) for i in range(0, layers, held)}
    return lower(plan(1, dp, layers, width, exchanged=last, at_end=1_000 * width))


@pytest.fixture(scope="module")
def sets() -> list[Workload]:
    return [bucketed(*facts) for facts in FACTS]


def of_sets() -> list[dict[str, int]]:
    return [dict(zip(KEYS, facts, strict=True)) for facts in FACTS]


@pytest.mark.parametrize(("facts", "held", "source"), [((2, 10, 25), [4, 4, 2], 0), ((4, 5, 40), [1] * 5, 2), ((2, 6, 20), [6], 1)])
def test_a_sample_is_cut_by_the_limit(sets: list[Workload], facts: tuple[int, ...], held: list[int], source: int) -> None:
    """None of the sets has buckets of 4 layers, and the nearest one to the last facts has buckets of two."""
    model = learn(sets, of_sets())
    found = sample_family(model, 0, dict(zip(KEYS, facts, strict=True)))
    assert found.source == source
    drawn = lower(found.graph)
    per_rank = drawn.communication.size.reshape(facts[0], -1)
    expected = [4 * facts[2] ** 2 * n for n in held] + [1_000 * facts[2]]
    assert per_rank.shape[1] == len(expected)
    assert per_rank[0].tolist() == pytest.approx(expected, rel=0.04)
    assert drawn.duration[drawn.communication.node[: len(expected)]].tolist() == pytest.approx(expected, rel=0.06)
