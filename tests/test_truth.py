"""Programs of known times: the machine takes what the docstrings of `validation.truth` work out, and Lumos says so too."""

from __future__ import annotations

import pytest
from validation.machine import QUEUE, run
from validation.machine_trace import write_trace
from validation.program import Give, Kernel, Operator, Pause, Program, Rank, Synchronise, Take, Wait, scaled
from validation.truth import CASES, REACH, answered, device_bound, truth_ms

from lumos.analyze.steps import members, step_times
from lumos.graph.build import build
from lumos.simulate import measured
from lumos.trace import read

K = Kernel("k", 10)


@pytest.fixture(scope="module")
def lines(tmp_path_factory):
    """What Lumos answers for each program, by its name."""
    found = {}

    def of(case):
        if case.name not in found:
            found[case.name] = answered(case, tmp_path_factory.mktemp("truth"))
        return found[case.name]

    return of


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_the_machine_takes_what_was_worked_out_by_hand(case):
    program = case.program()
    assert truth_ms(case, program) == pytest.approx(case.period_ms, abs=1e-9)
    for glob, factor, expected in case.changes:
        assert truth_ms(case, scaled(program, glob, factor)) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_lumos_answers_what_the_machine_takes(case, lines):
    wrong = [line for line in lines(case) if abs(line.error) > REACH]
    assert not wrong


def test_all_changes_but_one_move_the_step_by_far_more_than_the_error_to_reach():
    moves = [abs(by_hand / case.period_ms - 1) for case in CASES for _, _, by_hand in case.changes]
    assert sorted(move > 3 * REACH for move in moves) == [False] + [True] * (len(moves) - 1)


def test_latencies_instead_of_periods_would_be_off_by_more_than_a_factor_of_two(tmp_path):
    graph = build(read(*write_trace(run(device_bound(), 48), tmp_path, 8)))
    headline = step_times(measured(graph), members(graph)).headline
    assert headline.step_time_ns == 18_600_000
    assert headline.latency_ns > 2 * headline.step_time_ns


# ---- the machine itself, on programs of a few actions ----


def one(*actions, steps=1):
    return run(Program((Rank((actions,)),)), steps).ranks[0]


def times(work):
    return [(w.start, w.end) for w in work]


def test_a_kernel_waits_for_its_launch_for_the_one_before_and_for_other_streams():
    rank = one(Operator("a", 3, K, 2), Operator("b", 0, K, 2), Wait(8, 7), Operator("c", 0, Kernel("c", 4, 8), 2))
    # The first launch returns at 5 µs, its kernel starts 5 µs later; the second follows after a gap of 2 µs; stream 8 waits for that one.
    assert times(rank.work) == [(10_000, 20_000), (22_000, 32_000), (32_000, 36_000)]


def test_a_synchronisation_returns_after_the_work_it_waits_for():
    rank = one(Operator("a", 3, K, 2), Synchronise(), Operator("b", 1))
    assert [(row.name, row.start) for row in rank.rows][-1] == ("b", 20_000 + 8_000)


def test_a_full_queue_holds_the_launch_back():
    rank = one(*[Operator("a", 0, Kernel("k", 98), 1)] * (QUEUE + 2))
    calls = [row for row in rank.rows if row.category == "cuda_runtime"]
    # The first kernel starts at 6 µs and ends at 104; another ends every 100 µs.
    assert calls[QUEUE - 1].duration == 1_000
    assert calls[QUEUE].start == 1_000 * QUEUE
    ended = [work.end for work in rank.work]
    outstanding = sum(end > 1_000 * QUEUE for end in ended[:QUEUE])
    assert outstanding == QUEUE - 10  # kernels that end at 104, 204, ... 1004 µs have left
    late = one(*[Operator("a", 0, Kernel("k", 2_000), 1)] * (QUEUE + 2))
    held = [row for row in late.rows if row.category == "cuda_runtime"][QUEUE]
    assert (held.start, held.start + held.duration) == (1_000 * QUEUE, 6_000 + 2_000_000 + 1_000)


def test_a_transfer_begins_when_the_last_rank_arrives():
    def rank(us):
        return Rank(((Operator("c10d::allreduce_", us, Kernel("nccl", 10, 20, transfer=True), 5),),))

    ranks = run(Program((rank(5), rank(85))), 1).ranks
    assert [times(r.work) for r in ranks] == [[(15_000, 105_000)], [(95_000, 105_000)]]


def test_threads_hand_work_to_each_other():
    main = (Operator("a", 10), Give("go"), Take("done"), Operator("b", 5))
    other = (Take("go"), Pause(20), Give("done"))
    rank = run(Program((Rank((main, other)),)), 2).ranks[0]
    assert [(row.name, row.start) for row in rank.rows] == [("a", 0), ("b", 30_000), ("a", 35_000), ("b", 65_000)]
    assert rank.marks == [(0, 35_000), (35_000, 70_000)]


def test_threads_that_wait_for_ever_are_an_error():
    with pytest.raises(RuntimeError, match="never comes"):
        one(Take("nothing"))
