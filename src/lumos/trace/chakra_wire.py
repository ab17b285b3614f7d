"""Chakra's messages on the wire: protobuf's encoding of `GlobalMetadata` and `ChakraNode`, each preceded by its length as a varint.

A file is a plain concatenation of (varint length, message): first the metadata, then the nodes in any order, to the end
of the file. The wire form of schema "0.0.4" and "1.0.0" is the same; older files differ in that their metadata has
attributes but no version. There is a codec here, rather than protobuf's, for two things that are hard with protobuf's Python
objects: equal attributes are decoded only once, and fields that this schema does not know are unchanged after a read and a
write.

Limits: one message is at most `MAX_MESSAGE` bytes, so a damaged length cannot exhaust the machine's memory.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from enum import IntEnum
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from lumos.errors import LumosError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

#: The largest message that is read, bytes. Chakra's own converter writes nodes of some 100 kB at most.
MAX_MESSAGE = 64 << 20

#: Written into every metadata message. An empty message reads as the end of the file in Chakra's Python reader.
_VERSION = "0.0.4"

Value = int | float | str | bytes | bool | tuple[int, ...] | tuple[float, ...] | tuple[str, ...] | tuple[bytes, ...] | tuple[bool, ...]


class WireError(LumosError):
    """Bytes that are not a valid message. The text says what is wrong; the reader adds the file and the place."""


class NodeType(IntEnum):
    """Chakra's node types."""

    INVALID = 0
    METADATA = 1
    MEM_LOAD = 2
    MEM_STORE = 3
    COMP = 4
    SEND = 5
    RECV = 6
    COLL = 7


class CollectiveType(IntEnum):
    """Chakra's `CollectiveCommType`."""

    ALL_REDUCE = 0
    REDUCE = 1
    ALL_GATHER = 2
    GATHER = 3
    SCATTER = 4
    BROADCAST = 5
    ALL_TO_ALL = 6
    REDUCE_SCATTER = 7
    REDUCE_SCATTER_BLOCK = 8
    BARRIER = 9


class Attribute(NamedTuple):
    """A named value with its exact protobuf type: "int64", "bool", "string", … or one of these followed by "_list". The type is ""
    where the file names the attribute and gives it no value; its value is then ""."""

    name: str
    kind: str
    value: Value
    doc: str = ""


class IOInfo(NamedTuple):
    """Inputs or outputs of a node: texts in the form of Python lists."""

    values: str = ""
    shapes: str = ""
    types: str = ""


@dataclass(slots=True)
class Metadata:
    """The first message of a file. `unknown`: the bytes of fields that are not in the schema."""

    version: str = _VERSION
    attrs: tuple[Attribute, ...] = ()
    unknown: bytes = b""


@dataclass(slots=True)
class ChakraNode:
    """One node. Times are whole microseconds, as in the schema. `unknown`: the bytes of fields that are not in the schema."""

    id: int
    name: str = ""
    type: int = NodeType.COMP
    ctrl_deps: tuple[int, ...] = ()
    data_deps: tuple[int, ...] = ()
    start_time_micros: int = 0
    duration_micros: int = 0
    inputs: IOInfo | None = None
    outputs: IOInfo | None = None
    attrs: tuple[Attribute, ...] = ()
    unknown: bytes = field(default=b"", repr=False)

    def attr(self, name: str) -> Attribute | None:
        """The attribute of that name; of several the last one, as in protobuf's readers."""
        return next((a for a in reversed(self.attrs) if a.name == name), None)

    def value(self, name: str) -> Value | None:
        """The value of that attribute, None where there is none."""
        found = self.attr(name)
        return None if found is None else found.value


#: Attribute kinds by field number of the scalar; the list of the same kind has the next number.
_SCALARS = {
    3: "double", 5: "float", 7: "int32", 9: "int64", 11: "uint32", 13: "uint64", 15: "sint32", 17: "sint64",
    19: "fixed32", 21: "fixed64", 23: "sfixed32", 25: "sfixed64", 27: "bool", 29: "string", 31: "bytes",
}  # fmt: skip
#: The kinds that an attribute's value, or the items of a list, may have.
ATTRIBUTE_KINDS = tuple(_SCALARS.values())
_FIXED = {"double": "<d", "float": "<f", "fixed32": "<I", "fixed64": "<Q", "sfixed32": "<i", "sfixed64": "<q"}
_NUMBERS = {kind: number for number, kind in _SCALARS.items()} | {f"{kind}_list": number + 1 for number, kind in _SCALARS.items()}
_LIMITS = {"int32": 32, "uint32": 32, "sint32": 32}

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5


def varint(value: int) -> bytes:
    """An unsigned integer below 2^64 as a varint."""
    if value < 128:
        return bytes((value,))
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """The varint at `at`, and the position after it."""
    value = shift = 0
    try:
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            if byte < 128:
                return value & 0xFFFFFFFFFFFFFFFF, at
            shift += 7
            if shift > 63:
                raise WireError("a varint of more than ten bytes")
    except IndexError:
        raise WireError("the message ends inside a varint") from None


def fields(data: bytes) -> Iterator[tuple[int, int, int | bytes, bytes]]:
    """(field number, wire type, value, all its bytes) of every field of a message."""
    at, size = 0, len(data)
    while at < size:
        begin = at
        key, at = read_varint(data, at)
        number, wire = key >> 3, key & 7
        value: int | bytes
        if wire == VARINT:
            value, at = read_varint(data, at)
        else:
            if wire == BYTES:
                length, at = read_varint(data, at)
            elif wire in (FIXED64, FIXED32):
                length = 8 if wire == FIXED64 else 4
            else:
                raise WireError(f"field {number} has wire type {wire}, which protobuf 3 does not use")
            if length > size - at:
                raise WireError(f"field {number} claims {length} bytes of the {size - at} left")
            value = data[at : at + length]
            at += length
        if number == 0:
            raise WireError("a field number of 0")
        yield number, wire, value, data[begin:at]


def _signed(value: int, bits: int) -> int:
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


def _number(kind: str, raw: int) -> int | bool:
    """The value of a varint field of that kind."""
    if kind == "bool":
        return raw != 0
    if kind in ("int32", "int64"):
        return _signed(raw, 32 if kind == "int32" else 64)
    if kind in ("sint32", "sint64"):
        return (raw >> 1) ^ -(raw & 1)
    return raw & 0xFFFFFFFF if kind == "uint32" else raw


def _raw(kind: str, value: int) -> int:
    """A value as the unsigned integer of its varint. Raises WireError where the value does not fit the kind."""
    bits = _LIMITS.get(kind, 64)
    low, high = (0, 1 << bits) if kind.startswith("u") else (-(1 << (bits - 1)), 1 << (bits - 1))
    if kind != "bool" and not low <= value < high:
        raise WireError(f"{value} does not fit {kind}")
    if kind.startswith("sint"):
        return (value << 1 ^ value >> 63) & 0xFFFFFFFFFFFFFFFF
    return value & 0xFFFFFFFFFFFFFFFF


def _text(value: int | bytes) -> str:
    try:
        return value.decode() if isinstance(value, bytes) else _bad("text")
    except UnicodeDecodeError as error:
        raise WireError(f"a text that is not UTF-8 ({error.reason})") from None


def _bad(wanted: str) -> str:
    raise WireError(f"a number where the schema has {wanted}")


@lru_cache(1 << 16)
def decode_attribute(data: bytes) -> Attribute:
    """One attribute. Where several values of the oneof are present, the last wins, as in protobuf."""
    name, doc, kind = "", "", ""
    value: Value = ""
    for number, wire, raw, _ in fields(data):
        if number == 1:
            name = _text(raw)
        elif number == 2:
            doc = _text(raw)
        elif number in _SCALARS:
            kind = _SCALARS[number]
            value = _scalar(kind, wire, raw)
        elif number - 1 in _SCALARS and isinstance(raw, bytes):
            kind = f"{_SCALARS[number - 1]}_list"
            value = _list(_SCALARS[number - 1], raw)
        else:
            raise WireError(f"attribute {name!r} has a value of unknown type (field {number})")
    return Attribute(name, kind, value, doc)


def _scalar(kind: str, wire: int, raw: int | bytes) -> Value:
    expected = BYTES if kind in ("string", "bytes") else _wire(kind)
    if wire != expected:
        raise WireError(f"a {kind} attribute with wire type {wire}")
    if isinstance(raw, int):
        return _number(kind, raw)
    if kind == "string":
        return _text(raw)
    value: Value = raw if kind == "bytes" else struct.unpack(_FIXED[kind], raw)[0]
    return value


def _wire(kind: str) -> int:
    if kind in _FIXED:
        return FIXED64 if struct.calcsize(_FIXED[kind]) == 8 else FIXED32
    return VARINT


def _list(kind: str, raw: bytes) -> Value:
    """The values of a list message: field 1, repeated, which may be packed where the kind allows it."""
    out: list[Value] = []
    for number, wire, value, _ in fields(raw):
        if number != 1:
            continue
        if kind in ("string", "bytes") or wire != BYTES:
            out.append(_scalar(kind, wire, value))
        elif kind in _FIXED:
            size = struct.calcsize(_FIXED[kind])
            if len(value) % size:  # type: ignore[arg-type]
                raise WireError(f"a packed list of {kind} of {len(value)} bytes")  # type: ignore[arg-type]
            out += (v for (v,) in struct.iter_unpack(_FIXED[kind], value))  # type: ignore[arg-type]
        else:
            out += (_number(kind, v) for v in _packed(value))  # type: ignore[arg-type]
    return tuple(out)  # type: ignore[return-value]


def _packed(data: bytes) -> tuple[int, ...]:
    out = []
    at = 0
    while at < len(data):
        value, at = read_varint(data, at)
        out.append(value)
    return tuple(out)


def encode_once(attribute: Attribute) -> bytes:
    """One attribute's message, without a cache: for attributes that few nodes share. WireError where the value does not fit."""
    name, kind, value, doc = attribute
    out = _chunk(1, name.encode()) + (_chunk(2, doc.encode()) if doc else b"")
    if not kind:
        return out
    number = _NUMBERS.get(kind)
    if number is None:
        raise WireError(f"attribute {name!r} has the unknown kind {kind!r}")
    if not kind.endswith("_list"):
        return out + _element(kind, number, value)
    element = kind.removesuffix("_list")
    values = value if isinstance(value, tuple) else _bad(f"a list for {name!r}")
    if element in ("string", "bytes"):
        inner = b"".join(_element(element, 1, v) for v in values)
    elif element in _FIXED:
        inner = _chunk(1, b"".join(struct.pack(_FIXED[element], v) for v in values)) if values else b""
    else:
        inner = _chunk(1, b"".join(varint(_raw(element, int(v))) for v in values)) if values else b""
    return out + _chunk(number, inner)


#: The same with a cache, for attributes that many nodes share.
encode_attribute = lru_cache(1 << 16)(encode_once)


def _element(kind: str, number: int, value: object) -> bytes:
    try:
        if kind in ("string", "bytes"):
            return _chunk(number, value.encode() if kind == "string" else value)  # type: ignore[attr-defined,arg-type]
        if kind in _FIXED:
            return varint(number << 3 | _wire(kind)) + struct.pack(_FIXED[kind], value)
        return varint(number << 3) + varint(_raw(kind, int(value)))  # type: ignore[call-overload]
    except (AttributeError, TypeError, ValueError, struct.error) as error:
        raise WireError(f"{value!r} is no {kind} ({error})") from None


def _chunk(number: int, data: bytes) -> bytes:
    return varint(number << 3 | BYTES) + varint(len(data)) + data


def decode_metadata(data: bytes) -> Metadata:
    """The first message. Raises WireError where it is a node, because the file then lacks its metadata."""
    out = Metadata(version="")
    for number, wire, value, raw in fields(data):
        if number == 1 and wire == VARINT:
            raise WireError("the first message is a node: the file lacks its metadata")
        if number == 1:
            out.version = _text(value)
        elif number == 2 and isinstance(value, bytes):
            out.attrs += (decode_attribute(value),)
        else:
            out.unknown += raw
    return out


def encode_metadata(metadata: Metadata) -> bytes:
    """The first message; its version is always set."""
    attrs = b"".join(_chunk(2, encode_attribute(a)) for a in metadata.attrs)
    return _chunk(1, (metadata.version or _VERSION).encode()) + attrs + metadata.unknown


def decode_node(data: bytes) -> ChakraNode:
    """One node."""
    node = ChakraNode(0, type=NodeType.INVALID)
    attrs: list[Attribute] = []
    for number, wire, value, raw in fields(data):
        if wire == VARINT and number in (1, 3, 4, 5, 6, 7):
            assert isinstance(value, int)
            if number == 1:
                node.id = value
            elif number == 3:
                node.type = _signed(value, 32)
            elif number == 4:
                node.ctrl_deps += (value,)
            elif number == 5:
                node.data_deps += (value,)
            elif number == 6:
                node.start_time_micros = value
            else:
                node.duration_micros = value
        elif wire == BYTES and number in (2, 4, 5, 8, 9, 10):
            assert isinstance(value, bytes)
            if number == 10:
                attrs.append(decode_attribute(value))
            elif number == 2:
                node.name = _text(value)
            elif number == 4:
                node.ctrl_deps += _packed(value)
            elif number == 5:
                node.data_deps += _packed(value)
            elif number == 8:
                node.inputs = _decode_io(value)
            else:
                node.outputs = _decode_io(value)
        elif number <= 10:
            raise WireError(f"field {number} of a node has wire type {wire}")
        else:
            node.unknown += raw
    node.attrs = tuple(attrs)
    return node


@lru_cache(1 << 12)
def _decode_io(data: bytes) -> IOInfo:
    parts = {1: "", 2: "", 3: ""}
    for number, _, value, _raw in fields(data):
        if number in parts:
            parts[number] = _text(value)
    return IOInfo(parts[1], parts[2], parts[3])


def encode_node(node: ChakraNode) -> bytes:
    """One node's message. Fields at their default are left out, as in protobuf. Raises WireError: a value out of range."""
    out = [b"\x08", varint(_unsigned(node.id, "id"))] if node.id else []
    if node.name:
        out.append(_chunk(2, node.name.encode()))
    if node.type:
        out += (b"\x18", varint(node.type & 0xFFFFFFFFFFFFFFFF))
    for number, ids in ((4, node.ctrl_deps), (5, node.data_deps)):
        if ids:
            out.append(_chunk(number, b"".join(varint(_unsigned(i, "a dependency")) for i in ids)))
    for number, time in ((6, node.start_time_micros), (7, node.duration_micros)):
        if time:
            out += (varint(number << 3), varint(_unsigned(time, "a time")))
    out += (encode_io(number, io) for number, io in ((8, node.inputs), (9, node.outputs)) if io is not None)
    out += (encoded_attribute_field(a) for a in node.attrs)
    out.append(node.unknown)
    return b"".join(out)


def encode_io(number: int, io: IOInfo) -> bytes:
    """Inputs (field 8) or outputs (field 9) of a node."""
    return _chunk(number, b"".join(_chunk(i, text.encode()) for i, text in enumerate(io, 1) if text))


@lru_cache(1 << 16)
def encoded_attribute_field(attribute: Attribute) -> bytes:
    """An attribute as field 10 of a node."""
    return _chunk(10, encode_attribute(attribute))


def _unsigned(value: int, what: str) -> int:
    if not 0 <= value < 1 << 64:
        raise WireError(f"{what} of {value} does not fit uint64")
    return value


def frame(message: bytes) -> bytes:
    """A message preceded by its length."""
    return varint(len(message)) + message


def messages(blocks: Iterable[bytes]) -> Iterator[tuple[int, bytes]]:
    """(offset, message) of every frame in a stream of blocks. WireError where one is too large or cut off."""
    buffer = b""
    offset = at = 0  # offset: of buffer[0] in the file
    for block in blocks:
        buffer = buffer[at:] + block
        offset += at
        at = 0
        while True:
            length, body = _length(buffer, at)
            if length > MAX_MESSAGE:
                raise WireError(f"the message at byte {offset + at} claims {length} bytes; no node is larger than {MAX_MESSAGE}")
            if body == 0 or body + length > len(buffer):
                break
            yield offset + at, buffer[body : body + length]
            at = body + length
    if at < len(buffer):
        raise WireError(f"the message at byte {offset + at} is cut off by the end of the file")


def _length(buffer: bytes, at: int) -> tuple[int, int]:
    """Length and first byte of the message at `at`; (0, 0) where the length itself is not complete yet."""
    if at >= len(buffer):
        return 0, 0
    try:
        return read_varint(buffer, at)
    except WireError:
        if len(buffer) - at >= 10:
            raise
        return 0, 0
