"""What stays unexplained in an operation-level job, and whether its steps are scored."""

import pytest

from lumos.analyze.replay import replay
from lumos.graph.build import build
from lumos.trace import read


@pytest.fixture
def replayed(operation_jobs, tmp_path):
    pytest.importorskip("pyarrow", reason="reading Parquet needs pyarrow")

    def run(rows):
        rows = [operation_jobs.Operation(*row) for row in rows]
        return replay(build(read(operation_jobs.write_table(tmp_path / "trace.parquet", rows))))

    return run


def rows(gap, step, passes=30):
    """Two ranks with `passes` forwards of 10 ms in a row; rank 0 pauses for `gap` ms before the last."""
    return [
        (rank, 0, rank, step, "forward-compute", k, at, at + 10)
        for rank in (0, 1)
        for k in range(passes)
        for at in (10 * k + (gap if rank == 0 and k == passes - 1 else 0),)
    ]


def test_time_that_no_cause_covers_is_unexplained_and_shows_in_the_error(replayed):
    """A pause of 20 of 320 ms on rank 0 and none on rank 1: 3.125 % of the job's step, which the replay leaves out."""
    result = replayed([*rows(0, 0), *rows(0, 1), *rows(20, 2), *rows(0, 3)])
    first, second = result.steps[1], result.steps[2]
    assert (first.unexplained_idle, first.scored, first.error) == (0, True, 0)
    assert second.unexplained_idle == pytest.approx(20 / 320 / 2) and second.error == pytest.approx(-20 / 320)
    assert second.scored
    assert result.mean_abs_error == pytest.approx(20 / 320 / 3 / 2)


def test_operations_are_counted_over_all_ranks(replayed):
    """Two ranks of 30 operations are 60, enough; two of 20 are not."""
    assert all(s.scored for s in replayed(rows(0, 0)).steps)
    few = replayed(rows(0, 0, passes=20)).steps
    assert [s.unscored_reason for s in few] == ["40 operations over all ranks, fewer than 50"] * 2


@pytest.mark.parametrize(("busy", "delay"), [(70, 0), (45, 15), (40, 20)])
def test_time_without_a_cause_is_unexplained_only_as_far_as_it_delays(replayed, busy, delay):
    """Rank 0 pauses from 10 to 30 before its second forward and waits for rank 1 from 40 on; rank 1 works until 70, 45 or 40, and both
    reduce for 2 ms. Rank 0 could have been 30, 5 or 0 ms later, so that 0, 15 or 20 ms of its pause delay the step."""
    step = replayed(
        [
            (0, 0, 0, 0, "forward-compute", 0, 0, 10),
            (0, 0, 0, 0, "forward-compute", 1, 30, 40),
            (0, 0, 0, 0, "grads-reduce-scatter", 0, 40, busy + 2),
            (1, 0, 1, 0, "forward-compute", 0, 0, busy - 10),
            (1, 0, 1, 0, "forward-compute", 1, busy - 10, busy),
            (1, 0, 1, 0, "grads-reduce-scatter", 0, busy, busy + 2),
        ]
    ).steps[0]
    assert step.unexplained_idle == pytest.approx(delay / (busy + 2) / 2)
