"""Chakra nodes as JSON, in two forms: protobuf's JSON form, one object after the other, as Chakra's jsonizer writes it; and the
older form for hand-written files, one object with `workload_graph`, a list of nodes with Id, Name, NodeType, data_deps and
runtime (us)."""

from __future__ import annotations

import base64
import json
import re
from typing import TYPE_CHECKING, Any

from lumos.errors import TraceError
from lumos.trace.blocks import unpacked_blocks
from lumos.trace.chakra.attributes import ATTRIBUTE_KINDS
from lumos.trace.chakra.et import check_lengths, trace_of
from lumos.trace.chakra.schema import Attribute, ChakraNode, IOInfo, Metadata, NodeType

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from lumos.trace.table import Trace

_TYPES = {
    f"COMM_{kind.name}_NODE" if kind in (NodeType.SEND, NodeType.RECV, NodeType.COLL) else f"{kind.name}_NODE": kind for kind in NodeType
}


def sniff(head: bytes) -> bool:
    """Whether a file that starts with `head` is one of the two forms."""
    return re.match(rb'\s*\{\s*(\}\s*\{|"(version|attr)"\s*:|"workload_graph"\s*:)', head) is not None


def read(path: Path, *, progress: Callable[[int], None] | None = None) -> Trace:
    """Read one rank's nodes from JSON. Raises TraceError: unreadable, neither of the two forms, a field of a wrong type, no nodes."""
    try:
        text = b"".join(unpacked_blocks(path, progress)).decode()
    except UnicodeDecodeError as error:
        raise TraceError(f"{path}: not UTF-8 at byte {error.start}; write it again") from None
    metadata, nodes = parse_json(text, str(path))
    return trace_of(path, metadata, nodes)


def parse_json(text: str, source: str = "the text") -> tuple[Metadata, list[ChakraNode]]:
    """Metadata and nodes of either form. Raises TraceError that names the object that is wrong."""
    objects = list(_objects(text, source))
    number = 0
    try:
        if objects and "workload_graph" in objects[0]:
            listed = objects[0]["workload_graph"]
            return Metadata(), [_hand_node(entry) for number, entry in enumerate(listed, 1)]
        metadata = Metadata(str(objects[0].get("version", "")), _attributes(objects[0]))
        return metadata, [_node(entry) for number, entry in enumerate(objects[1:], 1)]
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError, IndexError) as error:
        raise TraceError(f"{source}: node {number + 1} is not as Chakra writes it ({error!r}); write it again") from None


def _objects(text: str, source: str) -> Iterator[dict[str, Any]]:
    decoder = json.JSONDecoder()
    at = count = 0
    while at < len(text):
        space = re.compile(r"\s*").match(text, at)
        at = space.end() if space else at
        if at == len(text):
            return
        try:
            value, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError) as error:
            raise TraceError(f"{source}: not valid JSON at character {at} ({error}); write it again") from None
        if not isinstance(value, dict):
            raise TraceError(f"{source}: holds something else than objects before character {at}; write it again")
        check_lengths(source, count, at)
        count += 1
        yield value


def _hand_node(entry: Mapping[str, Any]) -> ChakraNode:
    attrs = [Attribute("is_cpu_op", "bool", bool(entry.get("is_cpu_op", True)))]
    attrs += (Attribute(name, "int64", _integer(entry[name], signed=True)) for name in _NUMBERS if entry.get(name) is not None)
    if entry.get("pg_name") is not None:
        attrs.append(Attribute("pg_name", "string", str(entry["pg_name"])))
    attrs += _more(entry)
    return ChakraNode(
        id=_integer(entry["Id"]),
        name=str(entry.get("Name", "")),
        type=_integer(entry.get("NodeType", NodeType.COMP), bits=32),
        ctrl_deps=tuple(_integer(i) for i in entry.get("ctrlDeps", entry.get("ctrl_deps", ()))),
        data_deps=tuple(_integer(i) for i in entry.get("data_deps", ())),
        duration_micros=_integer(entry.get("runtime", 0)),
        attrs=tuple(attrs),
    )


_NUMBERS = ("tensor_size", "num_ops", "comm_type", "comm_size", "comm_tag", "comm_src", "comm_dst", "comm_priority")


def _node(entry: Mapping[str, Any]) -> ChakraNode:
    kind = entry.get("type", "INVALID_NODE")
    return ChakraNode(
        id=_integer(entry.get("id", 0)),
        name=str(entry.get("name", "")),
        type=_TYPES[kind] if isinstance(kind, str) else _integer(kind, bits=32),
        ctrl_deps=tuple(_integer(i) for i in _either(entry, "ctrlDeps", "ctrl_deps")),
        data_deps=tuple(_integer(i) for i in _either(entry, "dataDeps", "data_deps")),
        start_time_micros=_integer(_either(entry, "startTimeMicros", "start_time_micros") or 0),
        duration_micros=_integer(_either(entry, "durationMicros", "duration_micros") or 0),
        inputs=_io(entry.get("inputs")),
        outputs=_io(entry.get("outputs")),
        attrs=(*_attributes(entry), *_more(entry)),
    )


_FIELDS = {*("id", "name", "type", "ctrlDeps", "ctrl_deps", "dataDeps", "data_deps", "startTimeMicros", "start_time_micros")}
_FIELDS |= {*("durationMicros", "duration_micros", "inputs", "outputs", "attr")}
_FIELDS |= {*("Id", "Name", "NodeType", "runtime", "is_cpu_op", "pg_name"), *_NUMBERS}


def _more(entry: Mapping[str, Any]) -> Iterator[Attribute]:
    """What a node says beside the fields that are read, such as those of a newer schema: attributes, so that nothing is lost. Values that
    are neither numbers nor texts are written as JSON."""
    for name, value in entry.items():
        if name not in _FIELDS:
            kind = {bool: "bool", int: "int64", str: "string"}.get(type(value), "string")
            said = _integer(value, signed=True) if kind == "int64" else value if isinstance(value, bool | str) else json.dumps(value)
            yield Attribute(name, kind, said)


def _either(entry: Mapping[str, Any], one: str, other: str) -> Any:
    return entry.get(one, entry.get(other, ()))


def _io(entry: Mapping[str, str] | None) -> IOInfo | None:
    if entry is None:
        return None
    texts = [entry.get(key, "") for key in IOInfo._fields]
    if not all(isinstance(text, str) for text in texts):
        raise TypeError(f"inputs and outputs are texts, not {texts!r}")
    return IOInfo(*texts)


def _attributes(entry: Mapping[str, Any]) -> tuple[Attribute, ...]:
    return tuple(_attribute(a) for a in entry.get("attr", ()))


def _attribute(entry: Mapping[str, Any]) -> Attribute:
    doc = str(entry.get("docString", entry.get("doc_string", "")))
    for kind in ATTRIBUTE_KINDS:
        for form in (f"{kind}Val", f"{kind}_val"):
            if form in entry:
                return Attribute(str(entry.get("name", "")), kind, _value(kind, entry[form]), doc)
        for form in (f"{kind}List", f"{kind}_list"):
            if form in entry:
                values = tuple(_value(kind, v) for v in entry[form].get("values", ()))
                return Attribute(str(entry.get("name", "")), f"{kind}_list", values, doc)
    return Attribute(str(entry.get("name", "")), "", "", doc)


def _value(kind: str, value: Any) -> Any:
    if kind in ("double", "float"):
        return float(value)
    if kind == "bytes":
        return base64.b64decode(value, validate=True)
    if kind in ("bool", "string"):
        if not isinstance(value, bool if kind == "bool" else str):
            raise TypeError(f"{kind}Val is {value!r}")
        return value
    return _integer(value, signed=not kind.startswith(("uint", "fixed")), bits=32 if kind.endswith("32") else 64)


def _integer(value: Any, signed: bool = False, bits: int = 64) -> int:
    """The whole number that a value is, or contains as text. Raises ValueError where it does not fit the bits of its field."""
    number = int(value)
    least, most = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    if not least <= number <= most:
        raise ValueError(f"{number} is not from {least} to {most}")
    return number
