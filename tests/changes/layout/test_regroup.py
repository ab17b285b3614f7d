"""Exchanges between other ranks: where the ranks of a group are decides over which links they exchange."""

from functools import cache
from pathlib import Path

import numpy as np
import pytest

from lumos.changes.layout.measured_layout import measured_layout
from lumos.changes.layout.regroup import Links, _takes, recorded_exchange, reexchange, regroup
from lumos.cost.cluster import load_cluster
from lumos.cost.collective_model import Laid, collective, laid
from lumos.graph.build import build
from lumos.graph.table import Collectives
from lumos.segment.segment import segment
from lumos.trace import read
from lumos.vocabulary import CollectiveKind

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "gpt-2rank-cpu"
H100 = load_cluster("h100")
SAME = Links(H100, H100)
NBYTES = 1 << 24


def exchange(group, kind=CollectiveKind.ALL_REDUCE):
    """An exchange between two ranks of a group of that name."""
    column, wide = np.zeros(1, np.int32), np.zeros(1, np.int64)
    facts = Collectives(column, column, wide + NBYTES, column, wide, column, (kind,), (group,))
    return recorded_exchange(facts, 0)


def times(before, *after):
    """By what an exchange between recorded peers is multiplied that becomes others."""
    return _takes(SAME, before, after).of(1_000_000, waits=False).best


@cache
def recorded():
    """A job of two ranks, its layout, and the tasks and rows of its exchanges."""
    job = read(str(EXAMPLE))
    graph = build(job)
    return job, measured_layout(segment(graph, job)), graph.collectives.task, range(len(graph.collectives.task))


@pytest.mark.parametrize(
    ("group", "apart", "lies"),
    [("1 [2, 3]", 1, Laid(2, 1, 2)), ("dp [0, 8]", 8, Laid(1, 8, 16)), ("dp [1, 5]", 4, Laid(2, 1, 8)), ("no list", 1, Laid(2, 1, 2))],
)
def test_of_twice_the_replicas_each_exchange_stays_on_its_links(group, apart, lies):
    before = exchange(group)
    assert before.stride == apart and laid(2, apart, 8) == lies
    two, four = (int(collective("all-reduce", n, NBYTES, H100, **laid(n, apart, 8)._asdict()).time) for n in (2, 4))
    assert times(before, before.of(ranks=4)) == pytest.approx(four / two)


def test_ranks_that_come_between_move_a_group_over_several_nodes():
    before = exchange("dp [0, 1]")
    assert times(before, before.of(apart=8)) > 2


def test_what_the_model_does_not_explain_is_waiting_where_peers_are_missing():
    before = exchange("dp [0, 1]")
    takes = _takes(SAME, before, (before.of(2.0),))
    whole, more = round(4 * takes.before), takes.best - takes.before
    kept = takes.of(whole, waits=True)
    assert kept.best == pytest.approx((whole + more) / whole) and kept.high >= takes.best / takes.before
    assert takes.of(round(takes.before / 2), waits=True).best == pytest.approx(takes.best / takes.before)  # nothing of it is waiting
    assert takes.of(whole, waits=False).best == pytest.approx(takes.best / takes.before)


def test_changes_follow_one_another_in_any_order_and_are_priced_once():
    """Twice the bytes among four ranks: neither change is priced by itself, so their order says nothing."""
    job, layout, tasks, rows = recorded()
    bytes_then_ranks = regroup(regroup(layout, rows, lambda e: (e.of(2.0),)), rows, lambda e: (e.of(ranks=4),))
    ranks_then_bytes = regroup(regroup(layout, rows, lambda e: (e.of(ranks=4),)), rows, lambda e: (e.of(2.0),))
    at_once = regroup(layout, rows, lambda e: (e.of(2.0, 4),))
    first, second, third = (reexchange(each, job, SAME).prices for each in (bytes_then_ranks, ranks_then_bytes, at_once))
    assert np.array_equal(first.columns, second.columns) and np.array_equal(first.columns, third.columns)
    assert (first.best[tasks] > 1).all()


@pytest.mark.parametrize("kind", [CollectiveKind.SCATTER, CollectiveKind.GATHER, CollectiveKind.BARRIER])
def test_a_kind_that_no_model_covers_takes_time_as_its_bytes(kind):
    before = exchange("dp [0, 1]", kind)
    assert times(before, before.of(2.0)) == 2.0


def test_without_known_links_exchanges_take_time_as_their_bytes():
    job, layout, tasks, rows = recorded()
    found = reexchange(regroup(layout, rows, lambda e: (e.of(2.0),)), job, None)
    assert set(found.prices.best[tasks].tolist()) == {2.0} and set(found.prices.low[tasks].tolist()) == {1.0}
    assert [note.code for note in found.diagnostics] == ["exchange-in-proportion"]


def test_the_interval_holds_all_that_may_take_the_place_of_an_exchange():
    job, layout, tasks, rows = recorded()
    found = reexchange(regroup(layout, rows, lambda e: (e,), lambda e: ()), job, SAME).prices
    assert [column[tasks[0]] for column in found.columns] == [1.0, 0.0, 1.0]
