"""`.et` files and their JSON forms as traces."""

import gzip
import json
from pathlib import Path

import pytest

import lumos
from lumos.errors import TraceError
from lumos.trace.chakra import json_form
from lumos.trace.chakra.et import sniff
from lumos.trace.chakra.protobuf import frame, varint
from lumos.trace.chakra.schema import Attribute, ChakraNode, IOInfo, Metadata
from lumos.trace.chakra.wire import encode_metadata, encode_node
from lumos.trace.table import Category

GPU, CPU = (Attribute("is_cpu_op", "bool", value) for value in (False, True))
NODES = [
    ChakraNode(1, "aten::mm", data_deps=(), start_time_micros=5, duration_micros=3, attrs=(CPU, Attribute("tid", "int64", 2))),
    ChakraNode(2, "COMP_NODE_gemm", ctrl_deps=(1,), start_time_micros=8, duration_micros=10, attrs=(GPU, Attribute("stream", "int64", 7))),
    ChakraNode(
        2**63 + 5, "late", type=7, data_deps=(2,), inputs=IOInfo("[1]", "[[]]", "['Int']"), attrs=(GPU, Attribute("x", "bytes", b"\xff"))
    ),
]
METADATA = Metadata(attrs=(Attribute("schema", "string", "1.0.1"),))


def data(nodes: list[ChakraNode] = NODES, metadata: Metadata = METADATA) -> bytes:
    return b"".join(map(frame, [encode_metadata(metadata), *map(encode_node, nodes)]))


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_a_file_is_a_trace(tmp_path: Path, pack: object) -> None:
    path = tmp_path / "job.3.et"
    path.write_bytes(pack(data()))  # type: ignore[operator]
    (trace,) = lumos.read(path).traces
    assert (trace.rank, trace.rank_source) == (3, "file name")
    assert [trace.strings[i] for i in trace.name] == ["aten::mm", "gemm", "late"]
    assert (trace.start.tolist(), trace.duration.tolist()) == ([5000, 8000, 0], [3000, 10000, 0])
    assert trace.category.tolist() == [Category.OPERATOR, Category.KERNEL, Category.KERNEL]
    assert [lane.tid for lane in trace.lanes] == ["thread 2", "stream 7", "stream 0"]
    assert trace.metadata["chakra"] == NODES
    assert trace.metadata["schema"] == "1.0.1"


def test_what_stands_in_a_metadata_message_decides() -> None:
    assert sniff(data())
    assert sniff(data(metadata=Metadata("1.0.0")))
    assert sniff(b"\x00" + frame(encode_node(NODES[0])))
    for other in (b"", b"{", b'{"traceEvents": []}', b"PAR1....", frame(encode_node(NODES[0])), b"\x05hello"):
        assert not sniff(other)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (data()[:-3], "cut off by the end"),
        (data() + varint(2 << 30) + b"x", "claims 2147483648 bytes"),
        (data([]), "holds no nodes"),
        (data() + frame(b"\x12\x01\xff"), "node 4 at byte .*not UTF-8"),
        (data([ChakraNode(1, "a", attrs=(Attribute("is_cpu_op", "string", "no"),))]), "is_cpu_op is a string"),
        (data([ChakraNode(1, "a", attrs=(Attribute("tid", "double", 1.5),))]), "tid is a double"),
        (data([ChakraNode(1, "a", duration_micros=2**63)]), "146 years"),
        (gzip.compress(data())[:-9], "cut off"),
    ],
)
def test_a_damaged_file_is_an_error_that_names_it(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "job.0.et"
    path.write_bytes(content)
    with pytest.raises(TraceError, match=reason) as error:
        lumos.read(path)
    assert str(path) in str(error.value)


def test_an_unknown_version_is_flagged(tmp_path: Path) -> None:
    path = tmp_path / "job.0.et"
    path.write_bytes(data(metadata=Metadata("9.9")))
    assert [d.code for d in lumos.read(path).traces[0].diagnostics] == ["chakra-version"]


def test_json_of_protobuf_reads_it_as_its_own(tmp_path: Path) -> None:
    """Chakra's jsonizer writes protobuf's JSON: 64-bit integers as text, enumerations by name."""
    text = '{"version": "0.0.4"}{\n "id": "4", "type": "COMM_COLL_NODE", "dataDeps": ["1"], "durationMicros": "9",'
    text += ' "attr": [{"name": "comm_size", "int64Val": "64"}, {"name": "involved_dim", "boolList": {"values": [true]}}, {"name": "b",'
    text += ' "docString": "of", "bytesVal": "AP8="}], "inputs": {"values": "[1]", "shapes": "[[2]]", "types": "[]"}}'
    metadata, (node,) = json_form.parse_json(text)
    assert metadata.version == "0.0.4"
    assert (node.id, node.type, node.data_deps, node.duration_micros) == (4, 7, (1,), 9)
    assert node.attrs[:2] == (Attribute("comm_size", "int64", 64), Attribute("involved_dim", "bool_list", (True,)))
    assert (node.attrs[2], node.inputs) == (Attribute("b", "bytes", b"\x00\xff", "of"), IOInfo("[1]", "[[2]]", "[]"))


def test_an_attribute_without_a_value_is_kept_in_both_forms(tmp_path: Path) -> None:
    """Some producers name an attribute and leave its value out: it counts as absent, and is written as it was read."""
    empty = ChakraNode(1, "k", attrs=(Attribute("num_ops", "", ""), Attribute("is_cpu_op", "", "")))
    text = '{"version": "0.0.4"} {"id": "1", "name": "k", "type": "COMP_NODE", "attr": [{"name": "num_ops"}, {"name": "is_cpu_op"}]}'
    (tmp_path / "a.0.json").write_text(text)
    (tmp_path / "b.1.et").write_bytes(frame(encode_metadata(METADATA)) + frame(encode_node(empty)))
    for path in tmp_path.iterdir():
        (trace,) = lumos.read(path).traces
        assert trace.metadata["chakra"] == [empty]
        assert trace.category.tolist() == [Category.KERNEL]


def test_the_hand_form(tmp_path: Path) -> None:
    path = tmp_path / "small.0.json"
    entry = {"Id": 2, "Name": "k", "NodeType": 4, "ctrlDeps": [1], "data_deps": [1], "runtime": 7, "is_cpu_op": False}
    path.write_text(json.dumps({"workload_graph": [{"Id": 1, "Name": "op", "NodeType": 4, "runtime": 3}, entry]}))
    (trace,) = lumos.read(path).traces
    assert trace.duration.tolist() == [3000, 7000]
    assert trace.category.tolist() == [Category.OPERATOR, Category.KERNEL]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"version": "0.0.4"}', "holds no nodes"),
        ('{"version": "0.0.4"} {"id": "x"}', "node 1 is not as Chakra writes it"),
        ('{"version": "0.0.4"} [1]', "something else than objects"),
        ('{"version": "0.0.4"} {"id": ', "not valid JSON"),
        ('{"workload_graph": [{"Name": "a"}]}', "node 1"),
    ],
)
def test_json_that_is_not_chakras_is_an_error(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "job.0.json"
    path.write_text(text)
    with pytest.raises(TraceError, match=reason):
        lumos.read(path)


def test_an_empty_node_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.0.et").write_bytes(data() + b"\x00" * 5)
    with pytest.raises(TraceError, match=r"a\.0\.et: node 4 at byte \d+ is empty"):
        lumos.read(tmp_path / "a.0.et")


def test_more_nodes_than_their_bytes_can_hold_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lumos.trace.chakra.et._MANY_NODES", 50)
    short = [ChakraNode(i + 1, type=4) for i in range(100)]  # five bytes each
    (tmp_path / "a.0.et").write_bytes(data(short[:50]))
    assert len(lumos.read(tmp_path / "a.0.et").traces[0]) == 50
    (tmp_path / "a.0.et").write_bytes(data(short))
    (tmp_path / "a.0.json").write_text("{}" + '{"id":1}' * 100)
    for name in ("a.0.et", "a.0.json"):
        with pytest.raises(TraceError, match=rf"{name}: 51 nodes in \d+ bytes: no tool writes nodes this short"):
            lumos.read(tmp_path / name)


@pytest.mark.parametrize(
    "change",
    [
        {"id": 2**64},
        {"id": 1e999},
        {"type": -1},
        {"dataDeps": [-1]},
        {"durationMicros": "-3"},
        {"inputs": {"values": [1]}},
        {"attr": [{"name": "stream", "int64Val": 2**63}]},
        {"attr": [{"name": "comm_tag", "int32Val": 2**31}]},
        {"attr": [{"name": "comm_size", "uint64Val": -1}]},
        {"attr": [{"name": "is_cpu_op", "boolVal": "yes"}]},
        {"attr": [{"name": "pg_name", "stringVal": []}]},
    ],
    ids=str,
)
def test_a_field_of_another_type_or_size_is_refused(change: dict[str, object]) -> None:
    good = {"id": "1", "type": "COMP_NODE", "attr": [{"name": "stream", "int64Val": str(-(2**63))}], "inputs": {"values": "[1]"}}
    assert json_form.parse_json('{"version": ""}' + json.dumps(good))[1][0].value("stream") == -(2**63)
    with pytest.raises(TraceError, match="the text: node 1 is not as Chakra writes it"):
        json_form.parse_json('{"version": ""}' + json.dumps({**good, **change}))


@pytest.mark.parametrize("name", ["num_ops", "comm_size", "stream", "start_ns"])
def test_a_number_beyond_62_bits_is_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / "a.0.et"
    for value in (2**62 - 1, 2**62):
        path.write_bytes(data([ChakraNode(1, "k", attrs=(GPU, Attribute(name, "uint64", value), Attribute("hash", "uint64", 2**64 - 1)))]))
        if value < 2**62:
            assert len(lumos.read(path).traces[0]) == 1
    with pytest.raises(TraceError, match=rf"a\.0\.et: node 1: {name} = 4611686018427387904 is beyond 62 bits"):
        lumos.read(path)
