import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from lumos.errors import TraceError
from lumos.trace import Category, Trace, kineto, read
from lumos.trace import kineto_schema as schema

DRAWN = Path(__file__).parent.parent / "data" / "two-streams.json"
BASE = 10**18


def trace_of(folder: Path, document: Any, name: str = "rank0.json", **options: Any) -> Trace:
    path = folder / name
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return read(path, **options).traces[0]


def event(**fields: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": "cpu_op", "name": "op", "pid": 1, "tid": 1, "ts": 1, "dur": 1, **fields}


def codes(trace: Trace) -> set[str]:
    return {d.code for d in trace.diagnostics}


def test_a_drawn_trace_row_by_row() -> None:
    trace = read(DRAWN).traces[0]
    assert [Category(c).name for c in trace.category] == [
        *["OTHER"] * 3,
        *["OPERATOR", "RUNTIME", "LAUNCH_FLOW_START", "KERNEL", "LAUNCH_FLOW_END", "KERNEL", "SYNC", "MEMORY", "INSTANT", "OVERHEAD"],
    ]
    assert (trace.start - BASE).tolist() == [
        *[0, 0, 0, 100_001, 105_000, 105_000, 112_000, 112_000, 142_001, 143_000, 101_000, 200_000, 90_000]
    ]
    assert trace.duration.tolist() == [0, 0, 0, 20_500, 5_250, 0, 30_000, 0, 8_000, 1_000, 0, 0, 3_000]
    assert trace.correlation.tolist() == [-1, -1, -1, -1, 5, 5, 5, 5, 6, -1, -1, -1, -1]
    assert trace.external_id.tolist() == [-1, -1, -1, 1, 1, -1, 1, -1, -1, -1, -1, -1, -1]
    assert trace.args["stream"].rows.tolist() == [6, 8, 9]
    assert trace.args["stream"].values.tolist() == [7, 20, 7]
    assert trace.strings[int(trace.args["Input Dims"].values[0])] == "[[8,1024],[1024,8]]"
    assert trace.args["blocks per SM"].values.tolist() == [1.5]
    lane = trace.lanes[trace.lane[3]]
    assert (lane.pid, lane.tid, lane.process_name, lane.thread_name) == ("10", "10", "python", "thread 10 (main)")
    assert trace.lanes[trace.lane[6]].thread_name == "stream 7"
    assert (trace.rank, trace.rank_source, trace.world_size) == (1, "distributedInfo", 2)
    assert trace.metadata["deviceProperties"][0]["numSms"] == 4
    assert trace.diagnostics == ()


def test_groups_come_from_the_configuration() -> None:
    (group,) = read(DRAWN).groups
    assert (group.name, group.ranks, group.description) == ("0", (0, 1), "default_pg")


def test_groups_come_from_arguments_where_nothing_configures_them(tmp_path: Path) -> None:
    args = {"Process Group Name": "7", "Process Group Ranks": "[4, 5]", "Process Group Description": "tp"}
    short = {"Process Group Name": "9", "Process Group Ranks": "[0, 1, ...]"}
    path = tmp_path / "rank4.json"
    path.write_text(json.dumps([event(args=args), event(args=args), event(args=short)]))
    assert [(g.name, g.ranks, g.description) for g in read(path).groups] == [("7", (4, 5), "tp"), ("9", (), "")]


@pytest.mark.parametrize(
    ("phase", "cat", "category"),
    [
        ("X", "Operator", Category.OPERATOR),
        ("X", "Runtime", Category.RUNTIME),
        ("X", "Memset", Category.MEMSET),
        ("X", "cuda_driver", Category.RUNTIME),
        ("X", "xpu_runtime", Category.RUNTIME),
        ("X", "mtia_ccp_events", Category.KERNEL),
        ("X", "gpu_user_annotation", Category.GPU_ANNOTATION),
        ("X", "cuda_event", Category.EVENT_RECORD),
        ("s", "async_cpu_to_gpu", Category.LAUNCH_FLOW_START),
        ("f", "async", Category.LAUNCH_FLOW_END),
        ("s", "forward_backward", Category.BACKWARD_FLOW_START),
        ("f", "fwdbwd", Category.BACKWARD_FLOW_END),
        ("C", "", Category.COUNTER),
        ("M", "", Category.OTHER),
        ("X", "made_up", None),
    ],
)
def test_categories_of_three_generations_and_several_vendors(phase: str, cat: str, category: Category | None) -> None:
    assert schema.category(phase, cat) is category


def test_an_unknown_category_is_device_work_where_every_row_names_a_stream(tmp_path: Path) -> None:
    rows = [event(cat="npu_work", args={"stream": 3}), event(cat="npu_work", args={"stream": 4}), event(cat="npu_note")]
    trace = trace_of(tmp_path, rows)
    assert trace.category.tolist() == [Category.KERNEL, Category.KERNEL, Category.OTHER]
    assert codes(trace) == {"unknown-category"}


def test_missing_and_negative_durations_are_kept_as_zero_and_said(tmp_path: Path) -> None:
    trace = trace_of(tmp_path, [{"ph": "X", "ts": 1}, event(dur=-3), event(ts=None), 5])
    assert trace.duration.tolist() == [0, 0, 1000]
    assert {"missing-duration", "negative-duration", "missing-start", "not-an-event"} <= codes(trace)


def test_ids_beyond_32_bits_are_kept_and_beyond_64_said(tmp_path: Path) -> None:
    trace = trace_of(tmp_path, [event(args={"correlation": 2**40 + 1}), event(args={"correlation": 2**64}), event(args={"stream": 2**70})])
    assert trace.correlation.tolist() == [2**40 + 1, -1, -1]
    assert codes(trace) == {"id-too-large", "argument-too-large"}


@pytest.mark.parametrize(
    ("name", "rank", "source"),
    [
        ("rank3.json", 3, "file name"),
        ("trace-rank-12.json", 12, "file name"),
        ("worker_5.pt.trace.json", 5, "file name"),
        ("job_3.json", 3, "file name"),
        ("host_4711.1623143089861.pt.trace.json", 0, "assumed"),
        ("trace.json", 0, "assumed"),
    ],
)
def test_rank_from_the_file_name(tmp_path: Path, name: str, rank: int, source: str) -> None:
    trace = trace_of(tmp_path, [event()], name)
    assert (trace.rank, trace.rank_source) == (rank, source)
    assert ("rank-assumed" in codes(trace)) == (source == "assumed")


def test_rank_is_found_behind_the_events(tmp_path: Path) -> None:
    trace = trace_of(tmp_path, {"traceEvents": [event()], "distributedInfo": {"rank": 6, "world_size": 8}, "baseTimeNanoseconds": 5})
    assert (trace.rank, trace.world_size, trace.start.tolist()) == (6, 8, [1005])


NOT_QUITE_JSON = {
    "raw control characters": '[{"ph":"X","cat":"cpu_op","name":"a\x01b\x02","ts":1,"dur":1}]',
    "bare quotes": '[{"ph":"X","cat":"cpu_op","name":"f("x", 1)","ts":1,"dur":1}]',
    "lone backslashes": '[{"ph":"X","cat":"cpu_op","name":"C:\\Windows\\","ts":1,"dur":1}]',
    "trailing commas": '[{"ph":"X","cat":"cpu_op","name":"a","ts":1,"dur":1,},]',
    "values that are no numbers": '[{"ph":"X","cat":"cpu_op","name":"a","ts":1,"dur":1,"args":{"blocks per SM":inf}}]',
}


@pytest.mark.parametrize("what", NOT_QUITE_JSON)
def test_what_is_not_quite_json_is_an_error_and_under_repair_a_diagnostic(tmp_path: Path, what: str) -> None:
    with pytest.raises(TraceError, match=r"rank0\.json: not valid JSON at byte \d+ \(line 1\): .*--repair"):
        trace_of(tmp_path, NOT_QUITE_JSON[what])
    trace = trace_of(tmp_path, NOT_QUITE_JSON[what], repair=True)
    assert len(trace) == 1
    assert trace.start.tolist() == [1000]
    (found,) = trace.diagnostics
    assert found.code == "repaired"
    assert what in found.message


def test_bytes_that_are_not_utf8(tmp_path: Path) -> None:
    path = tmp_path / "rank0.json"
    path.write_bytes(b'[{"ph":"X","name":"a\xffb","ts":1,"dur":1}]')
    with pytest.raises(TraceError, match="not UTF-8"):
        read(path)
    trace = read(path, repair=True).traces[0]
    assert trace.strings[int(trace.name[0])] == "a\ufffdb"


def test_json_that_ends_early(tmp_path: Path) -> None:
    text = json.dumps({"traceEvents": [event(), event()]})[:-20]
    with pytest.raises(TraceError, match=rf"ends at byte {len(text)} \(line 1\).*--repair"):
        trace_of(tmp_path, text)
    trace = trace_of(tmp_path, text, repair=True)
    assert len(trace) == 1
    assert codes(trace) == {"truncated"}


def test_gzip_that_ends_early(tmp_path: Path) -> None:
    rows = [event(ts=i * 7919 % 10007, name=f"op{i * 31 % 997}") for i in range(5000)]
    packed = gzip.compress(json.dumps(rows).encode())
    path = tmp_path / "rank0.json.gz"
    path.write_bytes(packed[: len(packed) // 2])
    with pytest.raises(TraceError, match=rf"gzip data ends at byte {len(packed) // 2} .*--repair"):
        read(path)
    trace = read(path, repair=True).traces[0]
    assert 0 < len(trace) < 5000
    assert codes(trace) == {"truncated"}


def test_damaged_gzip(tmp_path: Path) -> None:
    packed = bytearray(gzip.compress(json.dumps([event(name=f"op{i}") for i in range(2000)]).encode()))
    packed[len(packed) // 2 :] = bytes(b ^ 0x5A for b in packed[len(packed) // 2 :])
    path = tmp_path / "rank0.json.gz"
    path.write_bytes(packed)
    with pytest.raises(TraceError, match="gzip data"):
        read(path)


def test_gzip_of_several_members(tmp_path: Path) -> None:
    text = json.dumps([event(), event()]).encode()
    path = tmp_path / "rank0.json"  # the name does not decide
    path.write_bytes(gzip.compress(text[:30]) + gzip.compress(text[30:]) + b"\0" * 100)
    assert len(read(path).traces[0]) == 2


@pytest.mark.parametrize("filler", [b" " * 1000, b"{}," * 300, b'{"ph":"X"},' * 100])
def test_a_gzip_bomb_is_refused(tmp_path: Path, filler: bytes) -> None:
    path = tmp_path / "rank0.json.gz"
    with gzip.open(path, "wb") as file:
        file.write(b"[")
        for _ in range((96 << 20) // (len(filler) * 100)):
            file.write(filler * 100)
    with pytest.raises(TraceError, match="refused"):
        read(path)


def test_deep_nesting_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"256 levels.*give the profiler's file"):
        trace_of(tmp_path, '[{"ph":"X","args":{"Input Dims":' + "[" * 10_000 + "]" * 10_000 + "}}]", repair=True)


@pytest.mark.parametrize(
    ("header", "events", "code", "words"),
    [
        ({"distributedInfo": {"rank": 1 << 50, "world_size": 4}}, [{}], "distributed-info-unreadable", f"rank as {1 << 50}"),
        ({"distributedInfo": {"rank": 0, "world_size": -3}}, [{}], "distributed-info-unreadable", "world_size as -3"),
        ({"distributedInfo": {"rank": 4, "world_size": 4}}, [{}], "rank-beyond-world", "rank 4 of 4"),
        ({}, [], "no-work", "no operator, call or device work"),
        ({}, [{"ph": "M", "name": "process_name", "args": {"name": "python"}}], "no-work", "no operator"),
        ({}, [{}, {}, {"ts": 1.7e15}], "far-start", "1 rows start more than a day"),
        ({}, [{"cat": "kernel", "args": {"stream": 1 << 40}}], "stream-implausible", f"the first is {1 << 40}"),
    ],
)
def test_what_no_profiler_writes_is_said(tmp_path, header, events, code, words):
    plain = {"ph": "X", "cat": "cpu_op", "name": "op", "pid": 1, "tid": 1, "ts": 1, "dur": 1}
    path = tmp_path / "rank0.json"
    path.write_text(json.dumps({**header, "traceEvents": [{**plain, **event} for event in events]}))
    (found,) = [d for d in kineto.read(path).diagnostics if d.code == code]
    assert words in found.message and str(path) in found.message
