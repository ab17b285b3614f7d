"""Chakra's messages on the wire: protobuf's encoding of `GlobalMetadata` and `ChakraNode`.

A file is a plain concatenation of (varint length, message): first the metadata, then the nodes in any order, to the end
of the file. The wire form of schema "0.0.4" and "1.0.0" is the same; older files differ in that their metadata has
attributes but no version. There is a codec here, rather than protobuf's, for two things that are hard with protobuf's Python
objects: equal attributes are decoded only once, and fields that this schema does not know are unchanged after a read and a
write.
"""

from functools import lru_cache

from lumos.trace.chakra.attributes import decode_attribute, encode_attribute
from lumos.trace.chakra.protobuf import BYTES, VARINT, WireError, chunk, decoded_text, fields, packed, twos_complement, varint
from lumos.trace.chakra.schema import VERSION, Attribute, ChakraNode, IOInfo, Metadata, NodeType


def decode_metadata(data: bytes) -> Metadata:
    """The first message. Raises WireError where it is a node, because the file then lacks its metadata."""
    out = Metadata(version="")
    for number, wire, value, raw in fields(data):
        if number == 1 and wire == VARINT:
            raise WireError("the first message is a node: the file lacks its metadata")
        if number == 1:
            out.version = decoded_text(value)
        elif number == 2 and isinstance(value, bytes):
            out.attrs += (decode_attribute(value),)
        else:
            out.unknown += raw
    return out


def encode_metadata(metadata: Metadata) -> bytes:
    """The first message; its version is always set."""
    attrs = b"".join(chunk(2, encode_attribute(a)) for a in metadata.attrs)
    return chunk(1, (metadata.version or VERSION).encode()) + attrs + metadata.unknown


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
                node.type = twos_complement(value, 32)
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
                node.name = decoded_text(value)
            elif number == 4:
                node.ctrl_deps += packed(value)
            elif number == 5:
                node.data_deps += packed(value)
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
            parts[number] = decoded_text(value)
    return IOInfo(parts[1], parts[2], parts[3])


def encode_node(node: ChakraNode) -> bytes:
    """One node's message. Fields at their default are left out, as in protobuf. Raises WireError: a value out of range."""
    out = [b"\x08", varint(_unsigned(node.id, "id"))] if node.id else []
    if node.name:
        out.append(chunk(2, node.name.encode()))
    if node.type:
        out += (b"\x18", varint(node.type & 0xFFFFFFFFFFFFFFFF))
    for number, ids in ((4, node.ctrl_deps), (5, node.data_deps)):
        if ids:
            out.append(chunk(number, b"".join(varint(_unsigned(i, "a dependency")) for i in ids)))
    for number, time in ((6, node.start_time_micros), (7, node.duration_micros)):
        if time:
            out += (varint(number << 3), varint(_unsigned(time, "a time")))
    for number, io in ((8, node.inputs), (9, node.outputs)):
        if io is not None:
            out.append(chunk(number, b"".join(chunk(i, part.encode()) for i, part in enumerate(io, 1) if part)))
    out += (encoded_attribute_field(a) for a in node.attrs)
    out.append(node.unknown)
    return b"".join(out)


@lru_cache(1 << 16)
def encoded_attribute_field(attribute: Attribute) -> bytes:
    """An attribute as field 10 of a node."""
    return chunk(10, encode_attribute(attribute))


def _unsigned(value: int, what: str) -> int:
    if not 0 <= value < 1 << 64:
        raise WireError(f"{what} of {value} does not fit uint64")
    return value
