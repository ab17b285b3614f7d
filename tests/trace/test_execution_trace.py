"""Execution traces of every schema, read by their fields."""

import json
from pathlib import Path
from typing import Any

import pytest

from lumos.errors import TraceError
from lumos.trace.execution_trace import read


def flat(id: int, name: str, parent: int, **more: Any) -> dict[str, Any]:
    """A node in the form of schema 1.0.1."""
    lists = {f"{side}{what}": [] for side in ("input", "output") for what in ("s", "_shapes", "_types")}
    return {"name": name, "id": id, "rf_id": id, "parent": parent, "seq_id": -1, "tid": 1, **lists, **more}


def nested(id: int, name: str, parent: int, inputs: dict[str, Any] | None = None, **attrs: Any) -> dict[str, Any]:
    """A node in the form of the later schemas."""
    none = {"values": [], "shapes": [], "types": []}
    listed = [{"name": k, "type": "int64", "value": v} for k, v in {"rf_id": id, "tid": 1, **attrs}.items()]
    return {"id": id, "name": name, "ctrl_deps": parent, "inputs": inputs or none, "outputs": none, "attrs": listed}


def write(path: Path, nodes: list[dict[str, Any]], schema: str = "1.0.1", **header: Any) -> Path:
    path.write_text(json.dumps({"schema": schema, "pid": 7, "nodes": nodes, **header}))
    return path


ROOT = "[pytorch|profiler|execution_trace|process]"


def test_the_flat_schema(tmp_path: Path) -> None:
    tensor = [[5, 6, 0, 16, 4, "cuda:0"]]
    mm = flat(3, "aten::mm", 2, inputs=tensor, input_shapes=[[4, 4]], input_types=["Tensor(float)"], seq_id=9, tid=2, op_schema="mm()")
    trace = read(write(tmp_path / "et.json", [mm, flat(2, "aten::linear", 1), flat(1, ROOT, 1)]))
    assert [trace.strings[i] for i in trace.name] == [ROOT, "aten::linear", "aten::mm"]
    assert trace.parent.tolist() == [-1, 0, 1]  # children are written before their parents
    assert (trace.rf_id[2], trace.sequence[2], trace.thread[2]) == (3, 9, 2)
    assert trace.inputs[2] == ('[[5, 6, 0, 16, 4, "cuda:0"]]', "[[4, 4]]", '["Tensor(float)"]')
    assert trace.attrs[2]["op_schema"] == "mm()"
    assert trace.is_pseudo().tolist() == [True, False, False]
    assert trace.diagnostics == ()


@pytest.mark.parametrize("schema", ["1.0.2-chakra.0.0.4", "1.0.3-chakra.0.0.4", "1.1.0-chakra.0.0.4", "1.1.1-chakra.0.0.4"])
def test_the_later_schemas(tmp_path: Path, schema: str) -> None:
    io = {"values": [[5, 6, 0, 16, 4, "cpu"]], "shapes": [[16]], "types": ["Tensor(float)"]}
    nodes = [nested(1, ROOT, 1), nested(2, "aten::relu", 1, io, seq_id=4, kernel_file="k.py")]
    trace = read(write(tmp_path / "et.json", nodes, schema))
    assert trace.sequence.tolist() == [-1, 4]
    assert trace.attrs[1]["kernel_file"] == "k.py"
    assert trace.inputs[1] == ('[[5, 6, 0, 16, 4, "cpu"]]', "[[16]]", '["Tensor(float)"]')
    assert trace.diagnostics == ()


def test_an_unknown_schema_is_parsed_and_flagged(tmp_path: Path) -> None:
    trace = read(write(tmp_path / "et.json", [nested(1, ROOT, 1)], "2.0.0-new"))
    assert [d.code for d in trace.diagnostics] == ["execution-trace-schema"]


def test_missing_parents_and_cut_lists_are_reported(tmp_path: Path) -> None:
    long = {"values": [list(range(4096))], "shapes": [[]], "types": [""]}
    trace = read(write(tmp_path / "et.json", [nested(1, ROOT, 1), nested(3, "a", 99), nested(4, "b", 1, long)], "1.1.0-"))
    assert [d.code for d in trace.diagnostics] == ["parents-missing", "lists-cut"]
    assert trace.parent.tolist() == [-1, -1, 0]


def test_process_groups(tmp_path: Path) -> None:
    text = json.dumps([{"pg_name": "0", "pg_desc": "all", "ranks": [], "group_size": 4}, {"pg_name": "7", "ranks": [1, 3]}])
    init = nested(2, "## process_group:init ##", 1, {"values": [text], "shapes": [[]], "types": ["String"]})
    trace = read(write(tmp_path / "et.json", [nested(1, ROOT, 1), init], "1.1.0-"))
    assert [(g.name, g.ranks, g.description) for g in trace.groups] == [("0", (0, 1, 2, 3), "all"), ("7", (1, 3), "")]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "cut-off one"),
        ('{"traceEvents": []}', "a profiler's file, no execution trace"),
        ('{"schema": "1.0.1", "nodes": []}', "no nodes"),
        ('{"schema": "1.0.1", "nodes": [{"id": 1, "name": "a"}, {"id": 1, "name": "b"}]}', "repeat an id"),
        ('{"schema": "1.0.1", "nodes": [{"id": 1, "name": "a", "parent": 2}, {"id": 2, "name": "b", "parent": 1}]}', "calls itself"),
        (json.dumps({"schema": "1.0.1", "nodes": [{"id": i, "name": "a", "parent": i - 1} for i in range(999)]}), "in each other at node"),
        ('{"schema": "1.0.1", "nodes": [{"id": "1", "name": "a"}]}', "not a PyTorch execution trace"),
    ],
)
def test_what_is_no_execution_trace_is_an_error_that_says_so(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "et.json"
    path.write_text(text)
    with pytest.raises(TraceError, match=reason) as error:
        read(path)
    assert str(path) in str(error.value)


@pytest.mark.parametrize("key", ["inputs", "input_shapes", "output_types"])
@pytest.mark.parametrize("value", [-1, "x", None])
def test_inputs_that_are_no_lists_are_refused(tmp_path: Path, key: str, value: object) -> None:
    path = write(tmp_path / "et.json", [flat(1, ROOT, 1), flat(2, "aten::mm", 1, **{key: value})])
    with pytest.raises(TraceError, match=r"et\.json: node 2: inputs, outputs, their shapes and types must be lists"):
        read(path)


def test_a_group_of_more_ranks_than_any_job_is_left_out(tmp_path: Path) -> None:
    for size, ranks in ((2, (0, 1)), (10**12, None)):
        listed = json.dumps([{"pg_name": "0", "ranks": [], "group_size": size}])
        trace = read(write(tmp_path / "et.json", [flat(1, ROOT, 1), flat(2, "## process_group:init ##", 1, inputs=[listed])]))
        assert [group.ranks for group in trace.groups] == ([ranks] if ranks else [])
        assert [d.code for d in trace.diagnostics] == ([] if ranks else ["groups-unreadable"])
