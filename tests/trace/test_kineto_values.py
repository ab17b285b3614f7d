import json

import pytest

from lumos.trace import kineto
from lumos.trace.collectives import listed_numbers
from lumos.trace.kineto_rows import complete


@pytest.fixture
def read(tmp_path):
    """The trace of a file with one operator, and what its diagnostics say."""

    def from_parts(header=None, args=None):
        path = tmp_path / "rank0.json"
        row = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 0, "dur": 5, "args": args or {}}
        path.write_text(json.dumps({"distributedInfo": {"rank": 0}, **(header or {}), "traceEvents": [row]}))
        trace = kineto.read(path)
        return trace, [d.message for d in trace.diagnostics]

    return from_parts


@pytest.mark.parametrize("value", [True, None, 7, "H100", {"id": 0}])
def test_devices_that_are_no_list_are_left_out_and_named(read, value):
    trace, (message,) = read({"deviceProperties": value})
    assert "deviceProperties" not in trace.metadata
    assert "rank0.json: deviceProperties must be a list of objects" in message


def test_a_process_group_that_is_none_costs_that_group_alone(read):
    groups = [{"pg_name": "0", "ranks": [0, 1]}, 5, {"pg_name": "1", "ranks": [0, "x"]}]
    trace, messages = read({"distributedInfo": {"rank": 0, "pg_config": groups}})
    assert trace.metadata["distributedInfo"]["pg_config"] == [groups[0], {"pg_name": "1"}]
    assert "distributedInfo.pg_config[1] must be an object, not 5" in messages[0] and "pg_config[2].ranks" in messages[1]


def test_a_header_cannot_name_the_builder_of_its_graph(read):
    trace, (message,) = read({"format": "chakra", "chakra": []})[0], read({"format": "chakra"})[1]
    assert not {"format", "chakra"} & set(trace.metadata) and "format is set by Lumos' own readers" in message


@pytest.mark.parametrize(
    ("key", "good", "bad"),
    [
        ("Input Dims", "[[8,1024],[],[[2,2],[3]]]", "[[8,-1]]"),
        ("Input Dims", "[[]]", "7"),
        ("Input Dims", "[]", "[8]"),
        ("Input Dims", "[[281474976710655]]", "[[281474976710656]]"),  # 2^48
        ("Input Dims", "[[16777216,16777216]]", "[[4294967296,16777216]]"),  # 2^48 and 2^56 elements
        ("Input Dims", "[[[[[1]]]]]", "[[[[[[1]]]]]]"),
        ("Input type", '["float"]', "float"),
        ("Concrete Inputs", '["", "1"]', '{"0": 1}'),
        ("grid", "[8,1,1]", "[1180591620717411303424]"),
        ("Dst Rank", 3, 2**40),
        ("In msg nelems", 2**55, 2**56),
    ],
)
def test_an_argument_of_another_type_or_range_is_left_out_and_counted(read, key, good, bad):
    trace, messages = read(args={key: good})
    assert key in trace.args and messages == []
    trace, (message,) = read(args={key: bad})
    assert key not in trace.args and f"1 values of '{key}' are" in message


def test_texts_of_ranks_that_are_none_are_no_group():
    """Cut short, of another type, out of range, nested beyond what JSON readers follow, or with half of a character."""
    assert listed_numbers("[0, 1]") == listed_numbers([0, 1]) == (0, 1)
    for value in ("[0, 1, ...]", "[0, true]", [-1], [2**31], "[" * 100_000, '["\ud83d"]', "\ud83d", 5, None):
        assert listed_numbers(value) == ()


def test_a_name_with_half_a_surrogate_pair_is_written_as_it_was_read():
    row = complete("cpu_op", 'a "b" \ud83d', 1_500, 2_750, "")
    assert row.isascii()
    assert json.loads(row) == {
        "ph": "X", "cat": "cpu_op", "name": 'a "b" \ud83d', "pid": 4000, "tid": 4001, "ts": 1.5, "dur": 1.25, "args": {}
    }  # fmt: skip
