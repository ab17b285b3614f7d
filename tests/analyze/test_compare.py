from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from lumos.analyze.compare import compare_timelines
from lumos.analyze.steps import members, only_steps
from lumos.errors import GraphError
from lumos.graph.table import Collectives

US = 1000


def facts(task, kinds, nbytes, size):
    n = len(task)
    none = np.full(n, -1)
    return Collectives(
        task=np.array(task, np.int32),
        kind=np.arange(n, dtype=np.int32),
        nbytes=np.array(nbytes, np.int64),
        group=none.astype(np.int32),
        sequence=none.astype(np.int64),
        peer=none.astype(np.int32),
        kinds=kinds,
        groups=(),
        size=np.array(size, np.int32),
    )


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
    assert same.change == same.change_ns == 0 and same.before == same.after
    assert {row.status for row in (*same.operators, *same.kernels, *same.collectives)} == {"same"}


def test_two_steps_of_a_job_by_hand(two_steps, job):
    """Step 0 takes 80 µs, step 1 from 105 to 150. k1 and its all-reduce are gone, k2 is new."""
    two_steps = replace(two_steps, collectives=facts([10], ("all-reduce",), [1024], [2]))
    result = compare_timelines((job, two_steps), (job, two_steps), "ProfilerStep#0", "ProfilerStep#1")
    assert (result.before.step_ns, result.after.step_ns, result.change_ns) == (80 * US, 45 * US, -35 * US)
    assert result.change == pytest.approx(-35 / 80)
    assert result.before.breakdown == {
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
    assert result.before.steps == ("ProfilerStep#0",) and result.before.variation is None


def test_figures_are_means_over_steps(two_steps, job):
    """Both steps against the first alone: B is in one of two steps; the steps of 80 and 45 µs vary by 17.5 of 62.5."""
    result = compare_timelines((job, two_steps), (job, two_steps), None, "ProfilerStep#0")
    assert (result.before.rank_steps, result.before.step_ns) == (2, 62.5 * US)
    assert result.before.variation == pytest.approx(17.5 / 62.5)
    operators = {row.name: (row.before, row.after, row.cost_ns) for row in result.operators}
    assert operators["B"] == ((0.5, 0, 5 * US, None), (1, 0, 10 * US, None), 5 * US)


def test_waiting_in_a_rendezvous_is_told_apart(two_steps, job):
    alone = compare_timelines((job, two_steps), (job, two_steps)).collectives[0]
    assert alone.before.waiting_ns is None
    met = replace(two_steps, rendezvous_offset=np.array([0, 1]), rendezvous_task=np.array([10], np.int32))
    assert compare_timelines((job, met), (job, met)).collectives[0].before.waiting_ns == 0


def test_work_of_other_steps_is_no_rows_but_in_the_breakdown(two_steps, job, shifted):
    """k1 of step 0 (14–40) runs 101 µs later, at 115–141, which is in step 1 (105–150); for all but 4 µs of it k2 runs too."""
    late = shifted(two_steps, {8: (101, 101)})
    graph = replace(two_steps, measured_start=late.start, measured_end=late.end)
    result = compare_timelines((job, two_steps), (job, graph), "ProfilerStep#1", "ProfilerStep#1")
    assert (result.before.other_steps_ns, result.after.other_steps_ns) == (0, 4 * US)
    assert {row.status for row in result.kernels} == {"same"}
    assert result.after.breakdown["exposed_compute_ns"] == 35 * US


def test_a_step_that_is_not_there_is_named(two_steps, job):
    with pytest.raises(GraphError, match=r"hand\.json: there is no step 'ProfilerStep#7'; it has ProfilerStep#0, ProfilerStep#1"):
        compare_timelines((job, two_steps), (job, two_steps), "ProfilerStep#7")


def test_only_keeps_whole_steps(two_steps):
    owners = only_steps(members(two_steps), "ProfilerStep#1")
    assert [step.name for step in owners.steps] == ["ProfilerStep#1"]
    assert owners.tasks(0).tolist() == np.flatnonzero(owners.step == 0).tolist() == members(two_steps).tasks(1).tolist()
