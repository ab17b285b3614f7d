"""Files that are compressed with zstd, and what is said where the package that unpacks them is missing."""

import json
import sys
import tracemalloc
from importlib import import_module
from pathlib import Path

import pytest

from lumos.errors import TraceError
from lumos.trace import read
from lumos.trace.blocks import unpacked_blocks

EVENTS = [{"ph": "X", "cat": "cpu_op", "name": f"op{i}", "pid": 1, "tid": 1, "ts": i, "dur": 1} for i in range(500)]
TEXT = json.dumps({"distributedInfo": {"rank": 3, "world_size": 8}, "traceEvents": EVENTS}).encode()


@pytest.fixture
def zstandard():
    return pytest.importorskip("zstandard", reason="zstandard is not installed")


def test_a_trace_is_read_with_its_progress(zstandard, tmp_path: Path) -> None:
    path = tmp_path / "trace.json.zst"
    path.write_bytes(zstandard.compress(TEXT))
    seen: list[tuple[int, int]] = []
    job = read(tmp_path, progress=lambda done, total: seen.append((done, total)))
    assert job.ranks == (3,) and len(job.traces[0]) == 500
    assert seen[-1] == (path.stat().st_size,) * 2


def test_a_cut_off_file_is_named_and_repaired(zstandard, tmp_path: Path) -> None:
    path = tmp_path / "rank0.json.zst"
    compressor = zstandard.ZstdCompressor().compressobj()
    parts = [
        compressor.compress(TEXT[i : i + 5000]) + compressor.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK) for i in range(0, len(TEXT), 5000)
    ]
    path.write_bytes(b"".join(parts)[:-100])
    with pytest.raises(TraceError, match=r"rank0\.json\.zst: the zstd data ends at byte \d+ .*cut off.*--repair"):
        read(path)
    (trace,) = read(path, repair=True).traces
    assert 0 < len(trace) < 500 and "truncated" in {d.code for d in trace.diagnostics}


def test_damaged_data_is_named(zstandard, tmp_path: Path) -> None:
    path = tmp_path / "rank0.json.zst"
    packed = zstandard.ZstdCompressor(write_checksum=True).compress(TEXT)
    path.write_bytes(packed[:-1] + bytes([packed[-1] ^ 1]))
    with pytest.raises(TraceError, match=r"rank0\.json\.zst: the zstd data is damaged before byte \d+"):
        read(path)
    path.write_bytes(packed + b"more")
    with pytest.raises(TraceError, match="the zstd data is damaged"):
        read(path)


def test_a_file_that_unpacks_beyond_reason_is_refused_in_little_memory(zstandard, tmp_path: Path) -> None:
    path = tmp_path / "rank0.json.zst"
    path.write_bytes(zstandard.compress(b'{"traceEvents": [' + bytes(300 << 20)))
    tracemalloc.start()
    try:
        with pytest.raises(TraceError, match="unpacks to more than 250 times its size"):
            list(unpacked_blocks(path))
        assert tracemalloc.get_traced_memory()[1] < 200 << 20
    finally:
        tracemalloc.stop()


def test_without_the_package_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(import_module("lumos.trace.blocks"), "find_spec", lambda name: None)
    monkeypatch.setitem(sys.modules, "zstandard", None)
    path = tmp_path / "rank0.json.zst"
    path.write_bytes(b"\x28\xb5\x2f\xfd\x04\x58")
    message = r"rank0\.json\.zst: compressed with zstd; to read it as it is: pip install .*zstd\].*; or unpack it \(zstd -d FILE\)"
    with pytest.raises(TraceError, match=message):
        read(path)
    with pytest.raises(TraceError, match=rf"holds no trace \(.*{message}"):
        read(tmp_path)
