"""Programs of known times: the machine takes what the docstrings of `validation.truth` work out, and Lumos says so too."""

from types import SimpleNamespace

import pytest
from validation.machine import run
from validation.machine_trace import write_trace
from validation.program import (
    Kernel,
    Operator,
    Poll,
    Program,
    Rank,
    Record,
    Synchronise,
    without_synchronising,
)
from validation.programs_by_hand import BY_HAND, Case
from validation.programs_drawn import drawn
from validation.truth import CASES, answered, truths

import lumos
from lumos.analyze.loop.noise import Z80, step_spread
from lumos.trace import read
from lumos.vocabulary import Grade

#: Programs of every kind that take little time, to ask of a recording without the optional rows. `validation.truth` asks of all.
QUICK = (
    "host-bound", "loader-bound", "limiter", "optimizer on the CPU", "two threads", "prefetch", "two streams", "three branches",
    "loss read twice", "graphs", "autograd", "phases", "loader thread", "copies from a thread", "unequal queues", "fully sharded",
    "straggling host", "two stages", "two by two", "stages in groups", "straggling CPU rank",
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


# ---- the machine itself, on programs of a few actions ----


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
