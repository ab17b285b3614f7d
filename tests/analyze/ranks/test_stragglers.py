"""What slow ranks cost, on jobs whose ideal can be computed by hand; times in ms."""

import pytest

from lumos.analyze.ranks.stragglers import stragglers
from lumos.errors import GraphError, UsageError
from lumos.graph.build import build
from lumos.trace import read

MS = 1_000_000


@pytest.fixture
def found(operation_jobs, tmp_path):
    """The stragglers of a table of (rank, stage, dp, step, name, sequence, start, end)."""
    pytest.importorskip("pyarrow", reason="reading Parquet needs pyarrow")

    def run(rows, ideal="peer-median"):
        rows = [operation_jobs.Operation(*row) for row in rows]
        job = read(operation_jobs.write_table(tmp_path / "trace.parquet", rows))
        return stragglers(build(job), job, ideal)

    return run


def data_parallel(forward, step=0):
    """Ranks of one stage: a forward each, then gradients for 2 ms once the last is there."""
    last = max(forward)
    return [
        row
        for rank, time in enumerate(forward)
        for row in (
            (rank, 0, rank, step, "forward-compute", 0, 0, time),
            (rank, 0, rank, step, "grads-reduce-scatter", 0, time, last + 2),
        )
    ]


def test_one_slow_rank_of_three(found):
    """Forwards of 10, 10 and 13: the median is 10, the ideal step 12 of 15; only rank 2 costs, all 3 ms."""
    result = found(data_parallel((10, 10, 13)))
    assert (result.measured_step_ns, result.replayed_step_ns, result.ideal_step_ns) == (15 * MS, 15 * MS, 12 * MS)
    assert result.slowdown == pytest.approx(15 / 12) and result.slowdown_without_launch_delay is None
    assert [(r.rank, r.stage, r.work_ns, r.ideal_work_ns, r.worth_ns) for r in result.by_rank] == [
        (0, 0, 10 * MS, 10 * MS, 0),
        (1, 0, 10 * MS, 10 * MS, 0),
        (2, 0, 13 * MS, 10 * MS, 3 * MS),
    ]
    assert [r.slowdown for r in result.by_rank] == [1, 1, pytest.approx(15 / 12)]
    by_class = [(c.name, c.worth_ns) for c in result.by_class]
    assert by_class == [("forward-compute", 3 * MS), ("grads-reduce-scatter", 0)]


def two_stages():
    """Stage 1's forward takes 30, stage 0's 10; a transfer takes 1."""
    return [
        (0, 0, 0, 0, "forward-compute", 0, 0, 10),
        (0, 0, 0, 0, "forward-send", 0, 10, 11),
        (1, 1, 0, 0, "forward-recv", 0, 0, 11),
        (1, 1, 0, 0, "forward-compute", 0, 11, 41),
    ]


def test_a_stage_that_holds_more_of_the_model_is_no_straggler_among_its_peers(found):
    result = found(two_stages())
    assert result.slowdown == 1 and [s.worth_ns for s in result.by_stage] == [0, 0]


def test_the_pooled_mean_holds_stages_against_each_other(found):
    """Both forwards take the mean, 20: still 41. Stage 1 alone at 20 saves 10; stage 0 alone at 20 costs 10."""
    result = found(two_stages(), "pooled-mean")
    assert result.ideal_step_ns == 41 * MS
    assert [(s.stage, s.worth_ns, s.slowdown) for s in result.by_stage] == [
        (1, 10 * MS, pytest.approx(51 / 41)),
        (0, -10 * MS, pytest.approx(31 / 41)),
    ]


def test_launch_delays_are_a_class_of_their_own(found):
    """The forward starts 3 ms after the parameters are there. The pooled mean launches without delay: 14 of 17."""
    rows = [
        row
        for rank in (0, 1)
        for row in (
            (rank, 0, rank, 0, "params-all-gather", 0, 0, 4),
            (rank, 0, rank, 0, "forward-compute", 0, 7, 17),
        )
    ]
    kept, dropped = found(rows), found(rows, "pooled-mean")
    assert (kept.ideal_step_ns, kept.slowdown, kept.slowdown_without_launch_delay) == (17 * MS, 1, pytest.approx(14 / 17))
    assert (dropped.ideal_step_ns, dropped.slowdown_without_launch_delay) == (14 * MS, 1)
    assert dropped.slowdown == pytest.approx(17 / 14)
    assert {c.name: c.worth_ns for c in dropped.by_class}["launch delay"] == 3 * MS
    assert [r.work_ns for r in dropped.by_rank] == [10 * MS, 10 * MS]


def test_periods_count_where_there_are_any(cpu_ahead):
    """Kernels take 30 on rank 0 and 40 on rank 1, and in the ideal job 35 on both: what the loop takes is 40, and would be 35. The first
    step has no period."""
    result = stragglers(cpu_ahead((30, 30, 30, 30), (40, 40, 40, 40)))
    assert (result.step_time_ns, result.latency_ns, result.basis) == (40_000, 110_000, "period")
    assert (result.steps, result.measured_step_ns, result.ideal_step_ns) == (3, 40_000, 35_000)
    assert result.slowdown == pytest.approx(40 / 35)
    assert [(r.rank, r.work_ns, r.worth_ns) for r in result.by_rank] == [(0, 40_000, 0), (1, 50_000, 5_000)]


def test_a_slow_exchange_is_one_cause_of_all_ranks(found):
    """Three steps after the first with transfers of 2, 2 and 8: the last takes 6 longer than ideal on both ranks, and is worth 2 a step."""
    rows = [row for step in range(4) for row in data_parallel((10, 10), step)]
    rows = [(*row[:-1], 18) if row[3] == 3 and row[4] == "grads-reduce-scatter" else row for row in rows]
    (cause,) = found(rows).findings
    assert (cause.cause, cause.name, cause.where.step) == ("slow-exchange", "grads-reduce-scatter", "ProfilerStep#3")
    assert (cause.excess_ns, cause.worth_ns, cause.where.start_ns) == (4 * MS, 2 * MS, 10 * MS)


def test_one_rank_has_no_peers(found):
    with pytest.raises(GraphError, match="rank 0 alone has no peers"):
        found(data_parallel((10,)))


def test_an_unknown_ideal(found):
    with pytest.raises(UsageError, match="valid are peer-median, pooled-mean"):
        found(data_parallel((10, 12)), "fastest")
