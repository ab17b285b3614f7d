"""Several windows of one run in one folder."""

import json
from collections.abc import Iterable
from pathlib import Path

import pytest

from lumos.errors import TraceError
from lumos.graph.build import build
from lumos.trace import read


def record(path: Path, steps: Iterable[int], rank: int | None = None, pid: int = 41) -> None:
    """Write a trace with marks of the given steps."""
    info = {} if rank is None else {"distributedInfo": {"rank": rank, "world_size": 2}}
    rows = [("cpu_op", "aten::mm", step) for step in steps] + [("user_annotation", f"ProfilerStep#{step}", step) for step in steps]
    events = [{"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": 1, "ts": 10 * step, "dur": 5} for cat, name, step in rows]
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({**info, "traceEvents": events}))


def test_tensorboards_folder_gives_the_newest_window_of_all_workers(tmp_path: Path) -> None:
    for rank, pid in enumerate((41, 42)):
        record(tmp_path / f"node-3_{pid}.17000000{rank}.pt.trace.json", range(8, 11), rank, pid)
        record(tmp_path / f"node-3_{pid}.17000009{rank}.pt.trace.json", range(18, 21), rank, pid)
    record(tmp_path / "node-3_41.170000190.pt.trace.json", range(28, 31), 0, 41)  # the other worker was stopped before it wrote
    job = read(tmp_path)
    assert [Path(trace.path).name for trace in job.traces] == [
        f"node-3_{pid}.17000009{rank}.pt.trace.json" for rank, pid in ((0, 41), (1, 42))
    ]
    (found,) = [d.message for d in job.diagnostics if d.code == "windows-left-out"]
    assert "5 files of 2 ranks" in found
    assert "3 windows (steps 8 to 10; steps 18 to 20; steps 28 to 30 of only 1 rank); steps 18 to 20 are read" in found


def test_a_window_in_which_the_training_ended_is_not_the_newest_complete_one(tmp_path: Path) -> None:
    record(tmp_path / "a.json", range(10, 13), 0)
    record(tmp_path / "b.json", range(20, 21), 0)
    job = read(tmp_path)
    assert job.traces[0].path.endswith("a.json")
    assert job.diagnostics[0] in build(job).diagnostics  # so that every verb says it


def test_a_step_without_a_mark_is_named(tmp_path: Path) -> None:
    record(tmp_path / "rank0.json", [10, 11, 13, 15])
    assert any("steps 10 to 15 lack 2 marks, the first that of step 12" in found.message for found in read(tmp_path).diagnostics)


@pytest.mark.parametrize("other", [{"steps": range(20, 22), "pid": 7}, {"steps": range(11, 13)}, {"steps": range(0)}])
def test_what_is_no_window_of_the_same_run_is_refused(tmp_path: Path, other: dict) -> None:
    record(tmp_path / "a.json", range(10, 12), 1)
    record(tmp_path / "b.json", rank=1, **other)
    with pytest.raises(TraceError, match=r"a\.json and .*b\.json are both of rank 1 .*name the one to read"):
        read(tmp_path)


def test_windows_that_no_two_ranks_share_are_refused_with_the_choice(tmp_path: Path) -> None:
    record(tmp_path / "a.json", range(10, 12), 0)
    record(tmp_path / "b.json", range(20, 22), 0)
    record(tmp_path / "c.json", range(30, 32), 1)
    with pytest.raises(
        TraceError, match=r"3 windows \(steps 10 to 11 of only 1 rank; .*none of which all ranks .*name one file of every rank"
    ):
        read(tmp_path)
