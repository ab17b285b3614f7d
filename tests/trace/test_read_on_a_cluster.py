"""Files read by the workers of a Ray cluster give the job that this machine reads."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from lumos.errors import TraceError, UsageError
from lumos.trace import read

RANKS = 12


def write(folder: Path) -> Path:
    for rank in range(RANKS):
        events = [
            {"ph": "X", "cat": "cpu_op", "name": f"op{i % 7}", "pid": 1, "tid": 1, "ts": 10 * i + rank, "dur": 5} for i in range(2000)
        ]
        info = {"rank": rank, "world_size": RANKS}
        (folder / f"rank{rank}.json.gz").write_bytes(gzip.compress(json.dumps({"distributedInfo": info, "traceEvents": events}).encode()))
    (folder / "notes.txt").write_text("measured on a Friday")
    return folder


def same(one, other) -> bool:
    columns = ("start", "duration", "name", "category", "lane", "correlation")
    return (
        one.ranks == other.ranks
        and one.diagnostics == other.diagnostics
        and all(
            a.path == b.path and all(np.array_equal(getattr(a, c), getattr(b, c)) for c in columns)
            for a, b in zip(one.traces, other.traces, strict=True)
        )
    )


def test_an_unknown_engine_is_refused(tmp_path):
    with pytest.raises(UsageError, match="local, ray"):
        read(tmp_path, engine="dask")


@pytest.mark.filterwarnings("ignore")
def test_the_workers_of_a_cluster_read_the_same(tmp_path):
    pytest.importorskip("ray", reason="Ray is not installed (extra `distributed`)")
    folder, done = write(tmp_path), list[int]()
    assert same(read(folder, engine="ray", progress=lambda read_bytes, _: done.append(read_bytes)), read(folder))
    assert len(done) == RANKS and done[-1] == sum(f.stat().st_size for f in folder.glob("*.gz"))
    (folder / "rank3.json.gz").write_bytes(b"{")
    with pytest.raises(TraceError, match=r"rank3\.json\.gz"):
        read(folder / "rank3.json.gz", folder / "rank4.json.gz", engine="ray")
