"""What a recording's own exchanges and copies say of those that it does not have, and which exchanges meet."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lumos.changes.layout.measured_layout import measured_layout
from lumos.changes.layout.placed import AddedTimes, Addition, met
from lumos.changes.layout.prices import exactly
from lumos.changes.layout.rates import CARRIES, Rates, rates_of
from lumos.changes.layout.regroup import Links
from lumos.changes.layout.reprice import opened
from lumos.cost.cluster import load_cluster
from lumos.cost.collective_model import collective
from lumos.cost.memory_bound_model import moved
from lumos.graph.build import build
from lumos.segment.segment import segment
from lumos.trace import read
from lumos.vocabulary import CollectiveKind

#: A language model recorded in one process on a device.
RECORDED = Path(__file__).parents[3] / "examples" / "foreign" / "GPT-2__fp32__host-bound"
A100 = load_cluster("a100-40gb")
#: Groups of four exchanged 16 MB in 0.8 times the modelled time, and 256 MB in 0.9 times.
RATES = Rates(A100.accelerator, A100, {(4, 1): ((16_000_000, 0.8), (256_000_000, 0.9))}, (1.5, 1.2, 2.0), stated=True)


@pytest.mark.parametrize(
    ("kind", "ranks", "nbytes", "ratio"),
    [
        (CollectiveKind.ALL_GATHER, 4, 16_000_000, 0.8),
        (CollectiveKind.ALL_TO_ALL, 4, 40_000_000, 0.8),
        (CollectiveKind.REDUCE_SCATTER, 4, 900_000_000, 0.9),
        (CollectiveKind.ALL_REDUCE, 4, 2_000_000_000, None),
        (CollectiveKind.BROADCAST, 4, 16_000_000, None),
        (CollectiveKind.ALL_REDUCE, 4, 500_000, None),
    ],
)
def test_exchanges_take_as_much_longer_as_the_nearest_recorded_one(kind, ranks, nbytes, ratio):
    """Within a factor of four of its bytes, in groups of as many ranks; others take what the model says."""
    found, modelled = RATES.exchange(kind, ranks, nbytes), collective(kind, ranks, nbytes, A100)
    if ratio is None:
        assert found == AddedTimes(int(modelled.time), int(modelled.low), int(modelled.high))
    else:
        assert found.best == pytest.approx(ratio * int(modelled.time), abs=1)
        assert (found.best / found.low, found.high / found.best) == pytest.approx((1 + CARRIES, 1 + CARRIES), rel=1e-4)


def test_exchanges_of_other_groups_take_as_much_longer_too_and_perhaps_not():
    found, modelled = RATES.exchange(CollectiveKind.ALL_REDUCE, 8, 16_000_000), collective(CollectiveKind.ALL_REDUCE, 8, 16_000_000, A100)
    assert found.best == pytest.approx(0.8 * int(modelled.time), abs=1)
    assert (found.low, found.high) == (pytest.approx(0.8 * int(modelled.low), abs=1), int(modelled.high))
    across = RATES.exchange(CollectiveKind.ALL_REDUCE, 16, 16_000_000)  # over other links
    assert across.best == int(collective(CollectiveKind.ALL_REDUCE, 16, 16_000_000, A100).time)


def test_copies_take_as_much_longer_as_recorded_kernels():
    modelled = int(moved(2 * 50_000_000, A100.accelerator, "pointwise").time)
    assert RATES.copy(50_000_000) == tuple(round(modelled * ratio) for ratio in (1.5, 1.2, 2.0))


def test_kernels_that_take_twice_as_long_show_half_the_rate():
    job = read(str(RECORDED))
    graph = build(job)
    graphs, links = (graph, replace(graph, duration=2 * graph.duration)), Links(A100, A100)
    (best, low, high), twice = (rates_of(segment(each, job), job, links, stated=True).memory for each in graphs)
    assert low < best < high
    assert twice == pytest.approx((2 * best, 2 * low, 2 * high))
    assert rates_of(segment(graph, job), job, links, stated=True).links == {}


def exchanges(*ranks, group):
    return [Addition("exchange", rank, "lane", AddedTimes(1, 1, 1), (0,), (), 0, (), group) for rank in ranks]


def meetings(additions, world):
    return [a.meets for a in met(additions, world)]


def test_neighbours_meet_in_the_order_of_their_exchanges():
    """Four ranks in groups of two, each of which exchanges twice."""
    a, b, c, d, e, f, g, h = meetings(exchanges(0, 0, 1, 1, 2, 2, 3, 3, group=2), 4)
    assert (a, b, e, f) == (c, d, g, h)
    assert len({a, b, e, f}) == 4
    assert len(set(meetings(exchanges(0, 1, 2, 3, group=4), 4))) == 1


@pytest.mark.parametrize("additions", [exchanges(0, 0, 1, group=2), exchanges(0, 1, 2, group=2), exchanges(0, 1, group=1)])
def test_exchanges_that_are_not_as_many_on_all_ranks_meet_none(additions):
    assert set(meetings(additions, 2 if len(additions) < 3 or additions[-1].rank < 2 else 3)) == {-1}


def test_tasks_whose_interval_becomes_wider_are_open():
    job = read(str(RECORDED))
    before = measured_layout(segment(build(job), job))
    twice, wider = before.prices.copy(), before.prices.copy()
    for prices in (twice, wider):
        prices.multiply(np.arange(len(prices.best)), exactly(2.0))
    wider.reach(np.array([5]), 1.1)
    assert opened(before, replace(before, prices=wider), job).open == {5}
    assert opened(before, replace(before, prices=twice), job).open == frozenset()
