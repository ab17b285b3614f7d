"""What a loop takes in the long run, on jobs drawn by hand (µs)."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lumos.analyze.loop.steady import altered, steady
from lumos.analyze.loop.steps import members
from lumos.graph.table import Dependency, Kind, Processor, Step
from lumos.vocabulary import Basis

US = 1000
D = Dependency
THREAD = Processor(0, False, "thread 1")
STREAM, SECOND = Processor(0, True, "stream 7", 0, 7), Processor(0, True, "stream 8", 0, 8)


def found(owners, **changes):
    """The loop of a job: (its step in µs, whether it settled)."""
    loop = steady(owners, **changes)
    return loop.step_time_ns / US, loop.settled


@pytest.fixture
def ahead(draw_loop):
    """Two launches of 10 and then two kernels of 30 a step: the device needs 60, the CPU 20. Few launches may be outstanding."""

    def job(depth=0):
        tasks = [(0, Kind.LAUNCH, "launch", 10)] * 2 + [(1, Kind.KERNEL, "k", 30)] * 2
        return draw_loop([THREAD, STREAM], tasks, [(0, 2, D.LAUNCH), (1, 3, D.LAUNCH)], depth=depth)

    return job


def test_the_device_sets_the_pace_however_far_the_cpu_runs_ahead(ahead):
    assert found(ahead()) == (60, True)


def test_faster_kernels_leave_the_time_of_the_cpu(ahead):
    owners = ahead(20)
    faster = replace(owners, graph=replace(owners.graph, duration=np.where(owners.graph.on_device, 5 * US, owners.graph.duration)))
    assert altered(steady(owners), faster).step_time_ns == 20 * US


def test_a_full_queue_can_set_the_pace(draw_loop):
    """Four launches of 1 with kernels of 10, two of which may be outstanding, then 50 of CPU work and a wait for the device.

    The third launch begins when the first kernel ends, at 11, the fourth when the second does, at 21; the CPU work lasts from 22 to 72,
    long after the device is done, at 41.
    """
    tasks = [(0, Kind.LAUNCH, "launch", 1)] * 4 + [(0, Kind.OPERATOR, "sort", 50), (0, Kind.RETURN, "sync", 0)]
    tasks += [(1, Kind.KERNEL, "k", 10)] * 4
    launched = [(i, 6 + i, D.LAUNCH) for i in range(4)]
    assert found(draw_loop([THREAD, STREAM], tasks, launched, waits=[(5, 1)], depth=2)) == (72, True)
    assert found(draw_loop([THREAD, STREAM], tasks, launched, waits=[(5, 1)])) == (54, True)


@given(st.lists(st.tuples(st.integers(1, 90), st.integers(0, 90)), min_size=2, max_size=5), st.integers(1, 20))
def test_ranks_that_all_wait_for_one_take_what_that_one_takes(draw_loop, work, transfer):
    """Each rank works before and after it meets all others; they leave together, so the one with most work sets the pace of all."""
    processors = [Processor(rank, False, "thread 1") for rank in range(len(work))]
    tasks = [(r, Kind.OPERATOR, "before", before) for r, (before, _) in enumerate(work)]
    tasks += [(r, Kind.COLLECTIVE, "all_reduce", transfer) for r in range(len(work))]
    tasks += [(r, Kind.OPERATOR, "after", after) for r, (_, after) in enumerate(work)]
    loop = steady(draw_loop(processors, tasks, meets=[range(len(work), 2 * len(work))]))
    assert loop.step_time_ns / US == max(map(sum, work)) + transfer


def circle(draw_loop, threads):
    """Threads that each wait for what the next one handed over in the step before. The first takes 10 + 8 to work and to hand over,
    the others 5 + 5. Each hand-over begins a chain that goes around the threads; the one that is at the first thread is late by 8."""
    processors = [Processor(0, False, f"thread {i}") for i in range(2 * threads)]
    tasks = [(2 * i + part, Kind.OPERATOR, f"{i} {part}", ((5, 5), (10, 8))[i == 0][part]) for i in range(threads) for part in (0, 1)]
    edges = [(2 * i, 2 * i + 1, D.HAND_OFF) for i in range(threads)]
    across = [(2 * i + 1, 2 * ((i - 1) % threads), D.HAND_OFF, 1) for i in range(threads)]
    return draw_loop(processors, tasks, edges, across=across)


@pytest.mark.parametrize(("threads", "mean"), [(1, 18), (2, 14), (4, 12)])
def test_a_job_that_alternates_settles_over_its_cycle(draw_loop, threads, mean):
    """Once around takes 18 at the first thread and 10 at each other one."""
    time, settled = found(circle(draw_loop, threads))
    assert settled
    assert time == pytest.approx(mean)


@pytest.mark.parametrize("threads", [3, 5])
def test_a_job_that_does_not_settle_says_so(draw_loop, threads):
    """Around three threads the periods are 18, 10, 10, and so on: not any four in a row take as long as the four before. The answer is the
    mean over the later half of many, within 1 % of the true one."""
    loop = steady(circle(draw_loop, threads))
    assert not loop.settled
    assert loop.step_time_ns == pytest.approx((18 + 10 * (threads - 1)) / threads * US, rel=0.01)
    (finding,) = loop.findings("the job")
    assert finding.code == "step-not-settled"
    assert steady(circle(draw_loop, 4)).findings("the job") == ()


def unequal(draw_graph, lengths):
    """One thread whose steps work so long (µs), marked one after the other."""
    starts = np.concatenate(([0], np.cumsum(lengths))).tolist()
    tasks = [(0, Kind.OPERATOR, "work", start, start + length) for start, length in zip(starts, lengths, strict=False)]
    marks = [Step(0, f"ProfilerStep#{i}", a * US, b * US) for i, (a, b) in enumerate(pairwise(starts))]
    return members(draw_graph([THREAD], tasks, [], marks))


def test_the_loop_is_all_steps_that_count_in_their_order(draw_graph):
    """The first step only shows when the second begins; the others take 20, 80 and 20, and so does every pass."""
    owners = unequal(draw_graph, [50, 20, 80, 20])
    loop = steady(owners)
    assert loop.loop.steps == 3
    assert loop.step_time_ns == 40 * US
    twice = replace(owners, graph=replace(owners.graph, duration=owners.graph.duration * 2))
    assert altered(loop, twice).step_time_ns == 80 * US


def test_a_slower_thread_that_is_not_yet_the_last_comes_to_set_the_pace(draw_loop):
    """Work of 10 is handed along ten threads, so that a step is complete 100 after it began, and every 10 another one. Beside it a
    thread takes 12. It is behind from step 45 on: 12 × 45 = 540 are as much as 100 + 10 × 44."""
    processors = [Processor(0, False, f"thread {i}") for i in range(11)]
    tasks = [(i, Kind.OPERATOR, f"work {i}", 10) for i in range(10)] + [(10, Kind.OPERATOR, "slow", 12)]
    chain = [(i, i + 1, D.HAND_OFF) for i in range(9)]
    assert found(draw_loop(processors, tasks, chain)) == (12, True)


def test_a_recording_without_periods_is_not_repeated(draw_loop):
    """One step: launch 10, kernel 30, with nothing to follow; repeated, the device takes 30."""
    tasks = [(0, Kind.LAUNCH, "launch", 10), (1, Kind.KERNEL, "k", 30)]
    owners = draw_loop([THREAD, STREAM], tasks, [(0, 1, D.LAUNCH)], steps=1)
    loop = steady(owners)
    assert (loop.basis, loop.step_time_ns, loop.cycle) == (Basis.LATENCY, 40 * US, ("ProfilerStep#0",))
    assert found(owners, repeat=True) == (30, True)
