"""The record of an emulated process, on disk."""

from __future__ import annotations

import msgspec
import pytest

from lumos.emulation import record
from lumos.errors import LumosError
from lumos.vocabulary import CollectiveKind


def a_process(**changes):
    tensor = record.Tensor((2, 3), "bfloat16", (3, 1), 7, "cuda")
    mm = record.Operator(name="aten::mm", thread=0, begin=1, end=2, inputs=[tensor, [tensor, None], 1.5, "cuda:0"], leaf=True)
    exchange = record.Exchange(
        kind=CollectiveKind.ALL_REDUCE, name="allreduce", group="0", sequence=0, thread=0, begin=3, end=4, dtype="float32",
        input_elements=6, output_elements=6,
    )  # fmt: skip
    call = record.DeviceCall(kind=record.CallKind.STREAM_WAITS_EXCHANGE, thread=0, position=5, exchange=0)
    fields = {
        "rank": 1, "world": 2, "accelerator": "h100", "torch": "2.13", "threads": ["main"], "operators": [mm], "calls": [call],
        "exchanges": [exchange], "marks": [record.Mark("ProfilerStep#1", 0, 0, 9)], "allocations": [record.Allocation(0, 12, 7)],
    }  # fmt: skip
    return record.Process(**(fields | changes))


def test_other_files_are_refused_by_name(tmp_path):
    path = tmp_path / "rank1.record"
    record.write_record(a_process(), path)
    assert record.read(path) == a_process()
    for content, said in ((b"no msgpack", r"rank1\.record: not a record"), (msgspec.msgpack.encode({"rank": 1}), "world")):
        path.write_bytes(content)
        with pytest.raises(LumosError, match=said):
            record.read(path)
