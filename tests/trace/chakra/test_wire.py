"""The Chakra codec: round trips, and comparison with protobuf where that is installed."""

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lumos.trace.chakra.attributes import ATTRIBUTE_KINDS
from lumos.trace.chakra.protobuf import WireError, varint
from lumos.trace.chakra.schema import Attribute, ChakraNode, IOInfo, Metadata
from lumos.trace.chakra.wire import decode_metadata, decode_node, encode_metadata, encode_node

_texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
_ids = st.integers(0, 2**64 - 1)


def _values(kind: str) -> st.SearchStrategy[Any]:
    if kind in ("double", "float"):
        return st.floats(allow_nan=False, width=64 if kind == "double" else 32)
    if kind in ("bool", "string", "bytes"):
        return {"bool": st.booleans(), "string": _texts, "bytes": st.binary(max_size=8)}[kind]
    bits = 32 if "32" in kind else 64
    unsigned = kind.startswith(("u", "fixed"))
    return st.integers(0, 2**bits - 1) if unsigned else st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


@st.composite
def _attributes(draw: st.DrawFn) -> Attribute:
    kind = draw(st.sampled_from(ATTRIBUTE_KINDS))
    doc = draw(_texts)
    if draw(st.booleans()):
        return Attribute(draw(_texts), f"{kind}_list", tuple(draw(st.lists(_values(kind), max_size=4))), doc)
    return Attribute(draw(_texts), kind, draw(_values(kind)), doc)


_io = st.none() | st.builds(IOInfo, _texts, _texts, _texts)
_nodes = st.builds(
    ChakraNode,
    id=_ids,
    name=_texts,
    type=st.integers(0, 7),
    ctrl_deps=st.lists(_ids, max_size=4).map(tuple),
    data_deps=st.lists(_ids, max_size=4).map(tuple),
    start_time_micros=_ids,
    duration_micros=_ids,
    inputs=_io,
    outputs=_io,
    attrs=st.lists(_attributes(), max_size=4).map(tuple),
)


@given(_nodes)
def test_a_node_survives_writing_and_reading(node: ChakraNode) -> None:
    assert decode_node(encode_node(node)) == node


@given(_texts.filter(bool), st.lists(_attributes(), max_size=4))
def test_metadata_survives(version: str, attrs: list[Attribute]) -> None:
    metadata = Metadata(version, tuple(attrs))
    assert decode_metadata(encode_metadata(metadata)) == metadata


def test_metadata_always_has_a_version() -> None:
    assert decode_metadata(encode_metadata(Metadata(version=""))).version == "0.0.4"


def test_fields_beyond_the_schema_are_kept() -> None:
    beyond = varint(77 << 3) + b"\x05" + varint(78 << 3 | 2) + b"\x02hi"
    node = decode_node(encode_node(ChakraNode(7, "a")) + beyond)
    assert node.id == 7
    assert encode_node(node).endswith(beyond)


def _reference() -> dict[str, Any]:
    pytest.importorskip("google.protobuf", reason="protobuf is not installed")
    path = Path(__file__).with_name("chakra_schema.py")
    spec = importlib.util.spec_from_file_location("chakra_schema", path)
    assert spec is not None and spec.loader is not None
    module = sys.modules.setdefault("chakra_schema", importlib.util.module_from_spec(spec))
    if not hasattr(module, "classes"):
        spec.loader.exec_module(module)
        module.classes = module.messages()  # type: ignore[attr-defined]
    return module.classes  # type: ignore[no-any-return]


@given(_nodes)
def test_protobuf_reads_what_is_written_and_the_other_way_round(node: ChakraNode) -> None:
    reference = _reference()["Node"]()
    reference.ParseFromString(encode_node(node))
    assert (reference.id, reference.name, tuple(reference.data_deps)) == (node.id, node.name, node.data_deps)
    assert len(reference.attr) == len(node.attrs)
    for theirs, ours in zip(reference.attr, node.attrs, strict=True):
        which = theirs.WhichOneof("value")
        assert which == (ours.kind if ours.kind.endswith("_list") else f"{ours.kind}_val")
        value = getattr(theirs, which)
        assert (tuple(value.values) if ours.kind.endswith("_list") else value) == ours.value
    assert decode_node(reference.SerializeToString()) == node


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\x08", "ends inside a varint"),
        (b"\x08" + b"\xff" * 11, "more than ten bytes"),
        (b"\x12\x09abc", "claims 9 bytes of the 3 left"),
        (b"\x0b", "wire type 3"),
        (b"\x12\x01\xff", "not UTF-8"),
        (b"\x0d\x00\x00\x00\x00", "field 1 of a node has wire type 5"),
    ],
)
def test_bytes_that_are_no_node_are_refused(data: bytes, reason: str) -> None:
    with pytest.raises(WireError, match=reason):
        decode_node(data)
