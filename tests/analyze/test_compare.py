from dataclasses import replace

import pytest
from tests.drawn_graph import drawn_collectives

from lumos.analyze.compare import compare_timelines

US = 1000


def facts(task, kinds, nbytes, size):
    return drawn_collectives([(*row, -1, -1, -1) for row in zip(task, kinds, nbytes, strict=True)], size=size)


@pytest.fixture
def job(record):
    """Rows for the eleven tasks of `two_steps`, so that operators can be found by their launches."""
    from lumos.trace.table import Category, Job

    def row(category, name, lane, start, end):
        return category, name, lane, start * US, (end - start) * US

    rows = [
        row(Category.OPERATOR, "A", 0, 0, 14),
        row(Category.RUNTIME, "launch", 0, 10, 12),
        row(Category.RUNTIME, "launch", 0, 12, 14),
        row(Category.OTHER, "between", 0, 14, 70),
        row(Category.OPERATOR, "B", 0, 70, 80),
        row(Category.OTHER, "between", 0, 80, 105),
        row(Category.OPERATOR, "C", 0, 105, 118),
        row(Category.RUNTIME, "launch", 0, 115, 117),
        row(Category.KERNEL, "k1", 1, 14, 40),
        row(Category.KERNEL, "k2", 1, 119, 150),
        row(Category.KERNEL, "nccl", 1, 30, 60),
    ]
    return Job((record(*rows),))


def rows_of(changes):
    return {row.name: (row.status, row.before and row.before[:2], row.after and row.after[:2], row.cost_ns) for row in changes}


def test_a_job_and_itself(two_steps, job):
    same = compare_timelines((job, two_steps), (job, two_steps))
    assert same.change == same.change_ns == 0 and same.a == same.b
    assert {row.status for row in (*same.operators, *same.kernels, *same.collectives)} == {"same"}


def test_two_steps_of_a_job_by_hand(two_steps, job):
    """Step 0 takes 80 µs, from 0 on; step 1, complete at 150, takes 70. k1 and its all-reduce are gone, k2 is new."""
    two_steps = replace(two_steps, collectives=facts([10], ("all-reduce",), [1024], [2]))
    result = compare_timelines((job, two_steps), (job, two_steps), "ProfilerStep#0", "ProfilerStep#1")
    assert (result.a.step_time_ns, result.b.step_time_ns, result.change_ns) == (80 * US, 70 * US, -10 * US)
    assert (result.a.latency_ns, result.b.latency_ns) == (80 * US, 45 * US)
    assert result.change == pytest.approx(-10 / 80)
    assert result.b.breakdown == {
        "exposed_compute_ns": 31 * US,
        "overlapped_ns": 0,
        "exposed_communication_ns": 0,
        "other_ns": 39 * US,
    }
    assert result.a.breakdown == {
        "exposed_compute_ns": 16 * US,
        "overlapped_ns": 10 * US,
        "exposed_communication_ns": 20 * US,
        "other_ns": 34 * US,
    }
    assert rows_of(result.kernels) == {
        "k2": ("appeared", None, (1, 31 * US), 31 * US),
        "k1": ("vanished", (1, 26 * US), None, -26 * US),
    }
    assert [row.name for row in result.kernels] == ["k2", "k1"]
    assert rows_of(result.collectives) == {"all-reduce 1,024 B, 2 ranks": ("vanished", (1, 30 * US), None, -30 * US)}
    operators = {row.name: (row.status, row.before, row.after) for row in result.operators}
    assert operators["A"] == ("vanished", (1, 56 * US, 10 * US, None), None)
    assert operators["C"] == ("appeared", None, (1, 31 * US, 10 * US, None))
    assert result.a.steps == ("ProfilerStep#0",) and result.a.variation is None


def test_a_period_and_a_latency_are_said_to_be_unlike(two_steps, job):
    unlike = compare_timelines((job, two_steps), (job, two_steps), "ProfilerStep#0", "ProfilerStep#1")
    assert (unlike.a.basis, unlike.b.basis) == ("latency", "period")
    assert [d.code for d in unlike.diagnostics] == ["basis-differs"]
    assert not compare_timelines((job, two_steps), (job, two_steps)).diagnostics


@pytest.fixture
def not_adjoining(two_steps):
    """The same job where the recording lacks a step in between, so that its steps are known by their latencies of 80 and 45."""
    first, second = two_steps.steps
    return replace(two_steps, steps=(first, replace(second, name="ProfilerStep#2")))


def test_figures_are_means_over_steps(not_adjoining, job, shifted):
    """Both steps against the first alone, with k2 25 µs longer, so that the steps take 80 and 70: B is in one of two steps, and the steps
    vary by 5 of 75. The time of A's step is their mean."""
    longer = shifted(not_adjoining, {9: (0, 25)})
    graph = replace(not_adjoining, measured_end=longer.end)
    result = compare_timelines((job, graph), (job, graph), None, "ProfilerStep#0")
    assert (result.a.rank_steps, result.a.step_time_ns, result.a.basis) == (2, 75 * US, "latency")
    assert result.a.variation == pytest.approx(5 / 75)
    operators = {row.name: (row.before, row.after, row.cost_ns) for row in result.operators}
    assert operators["B"] == ((0.5, 0, 5 * US, None), (1, 0, 10 * US, None), 5 * US)


def test_work_of_other_steps_is_no_rows_but_in_the_breakdown(not_adjoining, job, shifted):
    """k1 of step 0 (14–40) runs 101 µs later, at 115–141, which is in step 2 (105–150); for all but 4 µs of it k2 runs too."""
    late = shifted(not_adjoining, {8: (101, 101)})
    graph = replace(not_adjoining, measured_start=late.start, measured_end=late.end)
    result = compare_timelines((job, not_adjoining), (job, graph), "ProfilerStep#2", "ProfilerStep#2")
    assert (result.a.other_steps_ns, result.b.other_steps_ns) == (0, 4 * US)
    assert {row.status for row in result.kernels} == {"same"}
    assert result.b.breakdown["exposed_compute_ns"] == 35 * US
