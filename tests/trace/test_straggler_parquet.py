"""Operation tables: what a row becomes, and a clear message for each thing that can be wrong."""

import sys

import pytest

from lumos.errors import TraceError
from lumos.trace import read
from lumos.trace.operations import recorded_plan
from lumos.trace.table import Category

pyarrow = pytest.importorskip("pyarrow", reason="reading Parquet needs pyarrow")


@pytest.fixture
def table(operation_jobs, tmp_path):
    def write(operations=None, **replaced):
        return operation_jobs.write_table(tmp_path / "trace.parquet", operations or operation_jobs.pipeline(), **replaced)

    return write


def test_rows_become_operations_on_lanes_with_their_place(table):
    job = read(table())
    assert job.ranks == (0, 1)
    trace = job.traces[0]
    rows = trace.category == Category.OPERATOR
    found = [
        (trace.strings[trace.name[i]], trace.lanes[trace.lane[i]].tid, int(trace.start[i]), int(trace.duration[i]))
        for i in rows.nonzero()[0][:4]
    ]
    assert found == [
        ("forward-compute", "compute", 0, 10_000_000),
        ("forward-send", "pp-send", 10_000_000, 1_000_000),
        ("forward-compute", "compute", 11_000_000, 10_000_000),
        ("forward-send", "pp-send", 21_000_000, 21_000_000),
    ]
    assert trace.dense("microbatch")[rows][:4].tolist() == [0, -1, 1, -1]
    assert trace.dense("sequence")[rows][:4].tolist() == [0, 0, 1, 1]
    assert (recorded_plan(trace).stages, recorded_plan(trace).dp, trace.world_size) == (2, 1, 2)


def test_steps_are_marked_and_laid_end_to_end(table, operation_jobs):
    """Rank 0's step takes 93 ms from its origin; step 7 starts 1 ns after its end."""
    trace = read(table(operation_jobs.pipeline(steps=(3, 7)))).traces[0]
    marks = trace.category == Category.ANNOTATION
    assert [trace.strings[i] for i in trace.name[marks]] == ["ProfilerStep#3", "ProfilerStep#7"]
    assert trace.start[marks].tolist() == [0, 93_000_001] and trace.duration[marks].tolist() == [93_000_000] * 2


def test_the_table_wins_over_what_was_derived_from_it(table, tmp_path):
    table()
    (tmp_path / "meta.yaml").write_text("trial_name: t\npp_size: 2\n")
    (tmp_path / "timeline.json").write_text('{"traceEvents": []}')
    job = read(tmp_path)
    assert job.ranks == (0, 1)
    assert [(d.code, "timeline.json" in d.message) for d in job.diagnostics] == [("file-left-out", True)]


def test_a_missing_rank_is_named(table, operation_jobs):
    """Stage 0 of dp rank 1 has no rows, though stage 1 has."""
    both = [o._replace(rank=o.stage * 2 + dp, dp=dp) for dp in (0, 1) for o in operation_jobs.pipeline() if (o.stage, dp) != (0, 1)]
    found = read(table(both)).traces[0].diagnostics
    assert [d.code for d in found] == ["rank-missing"] and "stage 0 dp rank 1: 1 of 4 ranks" in found[0].message


def test_the_meta_file_knows_of_a_last_stage_that_is_missing(table, tmp_path):
    (tmp_path / "meta.yaml").write_text("trial_name: t\ndp_size: 1\npp_size: 3\n")
    trace = read(table()).traces[0]
    assert recorded_plan(trace).stages == 3 and "stage 2 dp rank 0: 1 of 3 ranks" in trace.diagnostics[0].message
    (tmp_path / "meta.yaml").write_text("trial_name: t\npp_size: 1\n")
    with pytest.raises(TraceError, match="has pp_size 1, the table needs 2; give the meta file of this job"):
        read(table())


@pytest.mark.parametrize("keep", [0.3, 0.99])
def test_a_truncated_table(table, keep):
    path = table()
    path.write_bytes(path.read_bytes()[: int(keep * path.stat().st_size)])
    with pytest.raises(TraceError, match=r"trace\.parquet: not a complete Parquet file .*copy or record it again"):
        read(path)


def column(values, kind):
    return pyarrow.array(values, kind)


@pytest.mark.parametrize(
    ("replaced", "message"),
    [
        ({"seq_id": None}, "without the column seq_id"),
        ({"optype": None, "mc": None}, "without the columns optype, mc"),
        ({"duration": column([-1.0] + [0.0] * 15, pyarrow.float32())}, "row 0: duration is -1.0 s"),
        ({"start_ts": column([0.0] * 15 + [float("nan")], pyarrow.float32())}, "row 15: start_ts is nan"),
        ({"start_ts": column([0] * 16, pyarrow.int64())}, "column start_ts holds int64, not seconds as floats"),
        ({"rank": column(["a"] * 16, pyarrow.string())}, "column rank holds object, not integers"),
        ({"step": column([None] + [0] * 15, pyarrow.int64())}, "column step has 1 empty entries"),
        ({"stage": column([-1] * 16, pyarrow.int8())}, "row 0: stage is -1"),
        ({"stage": column([0] * 16, pyarrow.int8())}, "ranks 0 and 1 are both at stage 0, dp rank 0"),
        ({"rank": column([0] * 16, pyarrow.int8())}, "rank 0 is at stage, dp rank .* a rank has one place"),
        ({"optype": column(["forward"] * 16, pyarrow.string())}, "row 0: unknown operation 'forward'"),
    ],
)
def test_wrong_columns(table, replaced, message):
    with pytest.raises(TraceError, match=rf"trace\.parquet: .*{message}"):
        read(table(**replaced))


def test_a_table_without_rows(tmp_path, operation_jobs):
    path = operation_jobs.write_table(tmp_path / "trace.parquet", operation_jobs.pipeline())
    from pyarrow import parquet

    parquet.write_table(parquet.read_table(path).slice(0, 0), path)
    with pytest.raises(TraceError, match="the table has no rows"):
        read(path)


def test_an_operation_table_and_a_profiler_trace_do_not_mix(table, tmp_path):
    profiler = tmp_path / "rank5.json"
    profiler.write_text('{"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "a", "pid": 1, "tid": 1, "ts": 0, "dur": 1}]}')
    with pytest.raises(TraceError, match="one job cannot mix them"):
        read(table(), profiler)


def test_without_pyarrow_the_error_says_what_to_install(table, monkeypatch):
    path = table()
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(TraceError, match=r"pip install .*\[arrow\]'"):
        read(path)
