from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lumos.analyze.breakdown import breakdown, four_way, variability
from lumos.analyze.idle import Idle
from lumos.analyze.steps import members
from lumos.graph.table import Dependency, Kind, Processor, Step
from lumos.simulate.timeline import measured

US = 1000


def test_the_four_parts_by_hand(two_steps):
    first, second = breakdown(measured(two_steps))
    assert first.breakdown == (16 * US, 10 * US, 20 * US, 34 * US)
    assert second.breakdown == (31 * US, 0, 0, 14 * US)
    assert (first.duration_ns, second.duration_ns) == (80 * US, 45 * US)


def test_work_of_an_earlier_step_counts_where_it_runs(two_steps, shifted):
    late = shifted(two_steps, {10: (80, 80)})  # the collective of step 0 now runs 110–140, into step 1
    first, second = breakdown(late)
    assert first.breakdown == (26 * US, 21 * US, 9 * US, 84 * US)
    assert second.breakdown == (10 * US, 21 * US, 9 * US, 5 * US)


def test_idle_by_cause_by_hand(two_steps):
    first, second = breakdown(measured(two_steps))
    assert first.idle == Idle(14 * US + 20 * US, 0, 0, 0)  # before the first launch arrives, and with nothing queued
    assert second.idle == Idle(14 * US, 0, 0, 0)
    assert sum(first.idle) == first.breakdown.other_ns


def test_idle_for_a_wait_for_the_gap_and_without_a_cause(draw_graph):
    processors = [Processor(0, False, "t"), Processor(0, True, "stream 7", 0, 7), Processor(0, True, "stream 8", 0, 8)]
    tasks = [
        (0, Kind.LAUNCH, "l", 0, 1),
        (0, Kind.LAUNCH, "l", 1, 2),
        (0, Kind.LAUNCH, "l", 2, 3),
        (0, Kind.LAUNCH, "l", 3, 4),
        (1, Kind.KERNEL, "k1", 1, 10),
        (1, Kind.KERNEL, "k2", 13, 20),  # 3 µs after k1, nothing else to wait for: a gap
        (1, Kind.KERNEL, "k3", 90, 100),  # 70 µs after k2: unexplained
        (2, Kind.KERNEL, "m", 105, 110),  # waits for k3, plus a lag of 4 µs
    ]
    edges = [(i, 4 + i, Dependency.LAUNCH) for i in range(4)] + [(6, 7, Dependency.STREAM_WAIT)]
    graph = draw_graph(processors, tasks, edges, (Step(0, "s", 0, 200 * US),), lag={Dependency.STREAM_WAIT: 4})
    (step,) = breakdown(measured(graph))
    assert step.idle == Idle(1 * US, 3 * US, 5 * US, 70 * US)


def test_without_devices_operators_compute_and_collectives_communicate(draw_graph):
    threads = [Processor(0, False, "main"), Processor(0, False, "gloo")]
    tasks = [(0, Kind.OPERATOR, "mm", 0, 10), (0, Kind.HOST, "python", 10, 15), (1, Kind.COLLECTIVE, "gloo:all_reduce", 5, 20)]
    (step,) = breakdown(measured(draw_graph(threads, tasks, steps=(Step(0, "s", 0, 50 * US),))))
    assert step.breakdown == (5 * US, 5 * US, 10 * US, 0)
    assert step.idle is None


SPANS = st.tuples(st.integers(0, 50), st.integers(0, 30))


@given(st.lists(SPANS, max_size=12), st.lists(SPANS, max_size=12), st.lists(SPANS, min_size=1, max_size=5))
def test_the_parts_sum_to_the_step_and_match_a_count_of_moments(draw_graph, compute, communication, operators):
    processors = [Processor(0, False, "t"), Processor(0, True, "stream 7", 0, 7), Processor(0, True, "stream 8", 0, 8)]
    tasks = [(0, Kind.OPERATOR, "op", s, s + d) for s, d in sorted(operators)]
    tasks += [(1, Kind.KERNEL, "k", s, s + d) for s, d in compute] + [(2, Kind.COLLECTIVE, "c", s, s + d) for s, d in communication]
    graph = draw_graph(processors, tasks, steps=(Step(0, "s", 0, 500 * US),))
    (parts,) = four_way(measured(graph), members(graph))
    ends = [(t[3], t[4]) for t in tasks]
    step = set(range(min(s for s, _ in ends), max(e for _, e in ends)))
    a = {t for s, d in compute for t in range(s, s + d)} & step
    b = {t for s, d in communication for t in range(s, s + d)} & step
    if not compute and not communication:
        a = {t for s, d in operators for t in range(s, s + d)} & step
    assert [p // US for p in parts] == [len(a - b), len(a & b), len(b - a), len(step - a - b)]


def test_a_graph_of_two_ranks_keeps_them_apart(draw_graph):
    processors = [Processor(rank, True, "stream 7", 0, 7) for rank in (0, 1)]
    tasks = [(0, Kind.KERNEL, "k", 0, 10), (1, Kind.KERNEL, "k", 5, 25)]
    graph = draw_graph(processors, tasks, steps=tuple(Step(rank, "s", 0, 100 * US) for rank in (0, 1)))
    assert [s.breakdown.exposed_compute_ns for s in breakdown(measured(graph))] == [10 * US, 20 * US]


@pytest.mark.parametrize("kind", [Kind.MEMCPY, Kind.MEMSET])
def test_copies_are_compute(two_steps, kind):
    kinds = two_steps.kind.copy()
    kinds[8] = kind
    assert breakdown(measured(replace(two_steps, kind=kinds)))[0].breakdown.exposed_compute_ns == 16 * US
    assert np.array_equal(breakdown(measured(two_steps))[0].breakdown, (16 * US, 10 * US, 20 * US, 34 * US))


def test_steps_of_a_rank(two_steps):
    (found,) = variability(measured(two_steps), members(two_steps))
    assert (found.steps, found.min_ns, found.max_ns, found.mean_ns) == (2, 45_000, 80_000, 62_500)
    assert found.variation == pytest.approx(float(np.std([45, 80], ddof=1) / 62.5))


def test_one_step_does_not_vary(two_steps):
    graph = replace(two_steps, steps=two_steps.steps[:1])
    assert variability(measured(graph), members(graph))[0].variation is None
