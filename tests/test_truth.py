"""Programs of known times: the machine takes what the docstrings of `validation.truth` work out, and Lumos says so too."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from validation.machine import QUEUE, run
from validation.machine_trace import write_trace
from validation.program import (
    Collective,
    InTurn,
    Kernel,
    LaunchGraph,
    Operator,
    Poll,
    Program,
    Rank,
    Record,
    Synchronise,
    SynchroniseEvent,
    Wait,
    without_synchronising,
)
from validation.programs_by_hand import BY_HAND, Case
from validation.programs_drawn import drawn
from validation.truth import CASES, answered, section, truths

import lumos
from lumos.analyze.loop.noise import Z80, step_spread
from lumos.trace import read
from lumos.vocabulary import Grade

K = Kernel("k", 10)

#: Programs of every kind that take little time, to ask of a recording without the optional rows. `validation.truth` asks of all.
QUICK = (
    "host-bound", "limiter", "optimizer on the CPU", "two threads", "prefetch", "two streams", "three branches", "loss read twice",
    "graphs", "autograd", "phases", "loader thread", "copies from a thread", "unequal queues", "fully sharded", "straggling host",
    "two stages", "two by two", "stages in groups", "straggling CPU rank",
)  # fmt: skip
CASE = {case.name: case for case in CASES}


@pytest.mark.parametrize("case", BY_HAND, ids=[case.name for case in BY_HAND])
def test_the_machine_takes_what_was_worked_out_by_hand(case):
    assert truths(case) == pytest.approx([case.by_hand_ms, *(change.by_hand_ms for change in case.changes)], abs=1e-9)


@pytest.mark.parametrize("name", QUICK)
def test_lumos_answers_what_the_machine_takes(name, tmp_path):
    lines = answered(CASE[name], tmp_path, optional=False)
    program = CASE[name].program()
    assert len(lines) == 1 + len(CASE[name].changes) + (without_synchronising(program) != program)
    assert [line for line in lines if not line.right] == []


@pytest.mark.parametrize("name", ["device-bound, CPU ahead", "two streams", "four stages"])
def test_lumos_answers_from_the_optional_rows(name, tmp_path):
    assert [line for line in answered(CASE[name], tmp_path) if not line.right] == []


def test_a_call_that_finds_the_device_idle_would_wait_as_its_like_do(tmp_path):
    """Memory is freed at the end of each step; in every second one a value is read just before."""
    assert [line for line in answered(drawn(48050645, 21)[20], tmp_path) if not line.right] == []


def test_a_loader_that_is_slow_every_third_step_sets_the_pace(tmp_path):
    """The end of the recording cuts its last batch. While it makes one, the device is alone at work, and sets no pace."""
    lines = answered(drawn(20261130, 17)[16], tmp_path)
    assert [line for line in lines if not line.right or (line.change != "–" and line.grade is not Grade.SOUND)] == []


def test_a_changed_job_whose_launches_wait_is_written_so_that_it_can_be_changed_again(tmp_path):
    program = CASE["queue-bound"].program()
    job = read(*write_trace(run(program, CASE["queue-bound"].warm_up + 3), tmp_path / "recorded", 3))
    lumos.export(lumos.whatif(job, scale={"*": 0.5}), kineto=tmp_path / "changed")
    again = lumos.whatif(tmp_path / "changed", scale={"*": 2.0})
    assert again.outcome.step_time_s == pytest.approx(lumos.replay(lumos.build(job)).step_time_ns * 1e-9, rel=0.005)
    assert again.trust.grade is Grade.LIMITED and lumos.read(tmp_path / "changed").origin is not None


def test_what_a_recording_cannot_tell_is_said(tmp_path):
    lines = answered(CASE["graphs joined inside"], tmp_path / "graphs")
    assert all(line.grade is Grade.LIMITED and "inside a graph is not recorded" in line.reason for line in lines if line.change != "–")


def test_the_pace_of_a_loader_that_sets_the_steps_is_open(tmp_path):
    """Its work is not recorded: the waits for its batches stay, and the interval holds what the loop takes without them."""
    lines = [line for line in answered(CASE["slow loader process"], tmp_path, optional=False) if line.change != "–"]
    assert all(line.held and (line.right or line.warned) for line in lines)
    assert all(line.interval[0] <= line.truth <= line.interval[1] for line in lines)


@pytest.mark.parametrize(
    ("name", "change", "why"),
    [("launch-bound", "*elementwise*", "no kernel of the recording ever waited"), ("loader process", "*gemm*", "kept up")],
)
def test_what_only_a_change_brings_to_bear_is_said_and_held_by_the_interval(name, change, why, tmp_path):
    lines = answered(CASE[name], tmp_path)
    wrong = [line for line in lines if not line.right]
    assert [(line.change.split("`")[1], line.grade, line.warned) for line in wrong] == [(change, Grade.LIMITED, True)]
    assert why in wrong[0].reason


def test_the_programs_and_their_changes_are_many_and_different():
    assert len({case.name for case in CASES}) == len(CASES) >= 60
    assert sum(len(case.changes) for case in CASES) >= 300 and sum(case.cycle > 1 for case in CASES) >= 30
    assert drawn(2, 1)[0].changes == drawn(2, 1)[0].changes != drawn(3, 1)[0].changes


def test_the_section_counts_what_was_not_answered(tmp_path):
    right = answered(CASE["phases"], tmp_path)
    refused = [replace(line, program="other", lumos=None, reason="no reason") for line in right[1:]]
    text = section([*right, *refused])
    assert "| answered | ≥ 92% | 50.0% of 8 |" in text
    assert "- other: no reason" in text


# ---- the machine itself, on programs of a few actions ----


def one(*actions, steps=1):
    return run(Program((Rank((actions,)),)), steps).ranks[0]


def times(work):
    return [(w.start, w.end) for w in work]


def test_a_kernel_waits_for_its_launch_for_the_one_before_and_for_other_streams():
    rank = one(Operator("a", 3, K, 2), Operator("b", 0, K, 2), Wait(8, 7), Operator("c", 0, Kernel("c", 4, 8), 2))
    # The first launch returns at 5 µs, its kernel starts 5 µs later; the second follows after a gap of 2 µs; stream 8 waits for that one.
    assert times(rank.work) == [(10_000, 20_000), (22_000, 32_000), (32_000, 36_000)]


def test_a_program_without_synchronisations_waits_for_events_alone():
    synchronises = (Operator("aten::_local_scalar_dense", 5, K, 8, blocking=True), Synchronise(7), SynchroniseEvent("e"))
    program = Program((Rank(((Operator("aten::mm", 5), InTurn((synchronises, ())), Synchronise(None, "hipFree")),)),))
    left = (Operator("aten::mm", 5), InTurn(((SynchroniseEvent("e"),), ())), Synchronise(None, "hipFree"))
    assert without_synchronising(program) == Program((Rank((left,)),))


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


def test_an_event_is_polled_until_its_work_has_ended():
    """The kernel ends at 107 µs. The CPU asks at 3, 54 and 105 µs in vain, each time for 1 µs, and goes on after 50 more and the fourth."""
    rank = one(InTurn(((Operator("a", 0, Kernel("k", 100), 2), Record("e"), Poll("e", 50)), ())), steps=2)
    assert [row.start for row in rank.rows if row.name == "cudaEventQuery"] == [3_000, 54_000, 105_000, 156_000]
    assert rank.marks == [(0, 157_000), (157_000, 157_000)]


def test_a_graph_follows_its_stream_and_what_comes_next_follows_the_graph():
    side = Kernel("side", 50, 9)
    rank = one(Operator("a", 0, Kernel("k", 100), 2), LaunchGraph((K, side, K), 3), Operator("b", 0, K, 2))
    # The first kernel ends at 107 µs. The side branch needs until 157, the other until 109 + 10 + 2 + 10 = 131.
    assert times(rank.work) == [(7_000, 107_000), (109_000, 119_000), (107_000, 157_000), (121_000, 131_000), (157_000, 167_000)]


def test_a_kernel_of_a_graph_may_follow_one_of_another_branch():
    rank = one(LaunchGraph((K, Kernel("side", 50, 9, behind=7), K), 3))
    assert times(rank.work) == [(8_000, 18_000), (18_000, 68_000), (20_000, 30_000)]


def test_a_recording_without_the_optional_rows_names_no_event_and_no_number(tmp_path):
    layer = (Operator("a", 0, K, 2), Wait(20, 7), Operator("b", 0, Kernel("nccl", 10, 20, (Collective(),)), 2))
    ran = run(Program((Rank((layer,)),) * 2), 1)
    with_them, without = (read(*write_trace(ran, tmp_path / str(optional), 1, optional=optional)).traces[0] for optional in (True, False))
    assert len(with_them) == len(without) + 1
    assert "Seq" in with_them.args and "Seq" not in without.args


def test_what_calls_behind_dropped_waits_may_wait_for_is_in_the_interval(tmp_path):
    """A step asks whether the one before is done, after a synchronisation that makes it so: without that, it asks until it is."""
    work = (Operator("aten::stack", 900), *(Operator("aten::mm", 5, Kernel("gemm", 100), 6),) * 20)
    rank = Rank(((Poll("step", 20), *work, Synchronise(), *work, Record("step"), Synchronise()),))
    lines = answered(Case("asks", lambda: Program((rank,)), ()), tmp_path)
    line = next(line for line in lines if line.change == "no synchronisation")
    assert not line.right and line.warned


def test_steps_of_two_lengths_that_do_not_come_round_tell_their_mean_less_surely():
    two, one = ([SimpleNamespace(length_ns=ms * 1_000_000) for ms in lengths] for lengths in ((4, 9, 4, 4, 9), (4, 4, 4, 4, 4)))
    owners = SimpleNamespace(kinds=(0,) * 5, counted=range(5), cycle=0)
    assert step_spread(SimpleNamespace(counted=one, owners=owners)) == 0
    assert step_spread(SimpleNamespace(counted=two, owners=owners)) == pytest.approx(Z80 * (30 / 4) ** 0.5 / 5**0.5 / 6)


def test_events_are_awaited_in_turn_only_where_that_explains_the_calls(tmp_path):
    assert [line for line in answered(drawn(990017, 15)[14], tmp_path, optional=False) if not line.right] == []
