import gzip
import json
import os
from importlib import import_module
from pathlib import Path

import pytest

from lumos.errors import TraceError
from lumos.trace import read
from lumos.trace.read import readable

EVENTS = [{"ph": "X", "cat": "cpu_op", "name": "op", "pid": 1, "tid": 1, "ts": 1, "dur": 1}]
EXECUTION_TRACE = {"schema": "1.1.1", "pid": 1, "time": "", "start_ts": 0, "nodes": [{"id": 1}]}


def write(path: Path, rank: int | None) -> Path:
    info = {} if rank is None else {"distributedInfo": {"rank": rank, "world_size": 2}}
    path.write_bytes(gzip.compress(json.dumps({**info, "traceEvents": EVENTS}).encode()))
    return path


def test_a_folder_is_a_job_with_one_file_per_rank(tmp_path: Path) -> None:
    write(tmp_path / "a.json.gz", 1)
    write(tmp_path / "b.json.gz", 0)
    (tmp_path / "et.json").write_text(json.dumps(EXECUTION_TRACE))
    (tmp_path / "notes.txt").write_text("measured on a Friday")
    (tmp_path / "other.json").write_text('{"loss": 3}')
    (tmp_path / "DONE").write_text("")
    job = read(tmp_path)
    assert job.ranks == (0, 1)
    found = {(d.code, Path(d.message.split(":")[0]).name) for d in job.diagnostics}
    assert found == {
        ("execution-trace-set-aside", "et.json"),
        ("file-left-out", "notes.txt"),
        ("file-left-out", "other.json"),
        ("file-left-out", "DONE"),
    }


def test_several_files_and_progress(tmp_path: Path) -> None:
    paths = [write(tmp_path / "a.json.gz", 1), write(tmp_path / "b.json.gz", 0)]
    seen: list[tuple[int, int]] = []
    assert read(*paths, progress=lambda done, total: seen.append((done, total))).ranks == (0, 1)
    total = sum(p.stat().st_size for p in paths)
    assert seen[-1] == (total, total)
    assert seen == sorted(seen)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the file is empty"),
        (gzip.compress(b"", mtime=0), "not a profiler trace"),
        (b"hello", "not a profiler trace"),
        (b"\x89PNG\r\n\x1a\n\0\0\0", "not a profiler trace"),
        (b"\x08\x07\x12\x03abc", "not a profiler trace"),
        (b'{"a": 1}', "JSON without traceEvents.*'a'"),
        (b"{ hello", r"not valid JSON at byte 2 \(line 1\)"),
        (json.dumps(EXECUTION_TRACE).encode(), "PyTorch execution trace"),
    ],
)
def test_what_is_no_trace_is_a_clear_error(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(content)
    with pytest.raises(TraceError, match=rf"trace\.json: .*{message}"):
        read(path)


def test_a_file_that_says_it_is_empty_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that a system makes up say so, and some of them give a reader nothing for ever."""
    (tmp_path / "kmsg").touch()
    monkeypatch.setattr(import_module("lumos.trace.read"), "head", None)
    with pytest.raises(TraceError, match="kmsg: no reader knows its content"):
        read(tmp_path)


def test_a_folder_of_folders_is_the_job_of_all(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("measured on a Friday")
    for rank in range(4):
        (tmp_path / f"rank{rank}").mkdir()
        write(tmp_path / f"rank{rank}" / "trace.json.gz", rank)
    assert read(tmp_path).ranks == (0, 1, 2, 3)
    assert {path.parent.name for path in readable([tmp_path])} == {f"rank{rank}" for rank in range(4)}
    write(tmp_path / "rank7.json.gz", 7)
    assert read(tmp_path).ranks == (7,)


def test_folders_are_not_searched_further_down(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    write(tmp_path / "a" / "b" / "rank0.json.gz", 0)
    with pytest.raises(TraceError, match=r"only 1 folder, a, without a file; name the folders further down"):
        read(tmp_path)
    assert read(tmp_path / "a").ranks == (0,)


def test_an_absent_path(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"absent\.json: cannot be read \(No such file.*check the path"):
        read(tmp_path / "absent.json")


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read everything")
def test_a_folder_without_permission(tmp_path: Path) -> None:
    folder = tmp_path / "closed"
    folder.mkdir()
    folder.chmod(0)
    try:
        with pytest.raises(TraceError, match="cannot be listed"):
            read(folder)
    finally:
        folder.chmod(0o700)


@pytest.mark.parametrize(("rank", "remedy"), [(0, "correct the rank in distributedInfo"), (None, r"in its file name \(rank0\.json\)")])
def test_two_files_of_one_rank_are_refused_with_what_tells_them_apart(tmp_path: Path, rank: int | None, remedy: str) -> None:
    paths = [write(tmp_path / name, rank) for name in ("a.json.gz", "b.json.gz")]
    with pytest.raises(TraceError, match=rf"a\.json\.gz and .*b\.json\.gz are both of rank 0.*name the one.*{remedy}") as refused:
        read(*paths)
    assert ("in its file name" in str(refused.value)) == (rank is None)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_a_pipe_is_refused_instead_of_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "rank0.json")
    with pytest.raises(TraceError, match=r"rank0\.json: a pipe or a device, not a file"):
        read(tmp_path / "rank0.json")


@pytest.mark.parametrize("repair", [False, True])
def test_valid_json_without_a_list_of_events_is_not_for_repair(tmp_path: Path, repair: bool) -> None:
    path = tmp_path / "rank0.json"
    path.write_text('{"traceEvents":5}')
    with pytest.raises(TraceError, match="traceEvents is not an array") as refused:
        read(path, repair=repair)
    assert "--repair" not in str(refused.value) and "not valid JSON" not in str(refused.value)


def test_no_path() -> None:
    with pytest.raises(TraceError, match="no trace given"):
        read()


def test_a_file_with_more_lanes_than_any_job_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(import_module("lumos.trace.read"), "LANES_READ", 2)  # the name leads to the function
    path = tmp_path / "rank0.json"
    for lanes in (2, 3):
        path.write_text(json.dumps({"traceEvents": [{**EVENTS[0], "tid": i} for i in range(lanes)]}))
        if lanes == 2:
            assert len(read(path).traces[0].lanes) == 2
    with pytest.raises(TraceError, match=r"rank0\.json: rows on 3 threads and streams, more than the 2"):
        read(path)
