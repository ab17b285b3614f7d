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


#: The fields of a node, by their number: single numbers, lists of numbers, and tensors.
_NUMBERS = {1: "id", 3: "type", 6: "start_time_micros", 7: "duration_micros"}
_LISTS = {4: "ctrl_deps", 5: "data_deps"}
_TENSORS = {8: "inputs", 9: "outputs"}


def decode_node(data: bytes) -> ChakraNode:
    """One node."""
    node = ChakraNode(0, type=NodeType.INVALID)
    attrs: list[Attribute] = []
    for number, wire, value, raw in fields(data):
        if number in _NUMBERS and wire == VARINT:
            setattr(node, _NUMBERS[number], value)
        elif number in _LISTS and wire in (VARINT, BYTES):
            more = (value,) if isinstance(value, int) else packed(value)
            setattr(node, _LISTS[number], getattr(node, _LISTS[number]) + more)
        elif number > 10:
            node.unknown += raw
        elif wire != BYTES or isinstance(value, int) or number in _NUMBERS:
            raise WireError(f"field {number} of a node has wire type {wire}")
        elif number == 2:
            node.name = decoded_text(value)
        elif number == 10:
            attrs.append(decode_attribute(value))
        else:
            setattr(node, _TENSORS[number], _decode_io(value))
    node.type = twos_complement(node.type, 32)
    node.attrs = tuple(attrs)
    return node


@lru_cache(1 << 12)
def _decode_io(data: bytes) -> IOInfo:
    parts = {number: decoded_text(value) for number, _, value, _ in fields(data) if number in (1, 2, 3)}
    return IOInfo(*(parts.get(number, "") for number in (1, 2, 3)))


def encode_node(node: ChakraNode) -> bytes:
    """One node's message. Fields at their default are left out, as in protobuf. Raises WireError: a value out of range."""
    out = [_encoded_number(1, node.id, "id")]
    if node.name:
        out.append(chunk(2, node.name.encode()))
    if node.type:
        out += (b"\x18", varint(node.type & 0xFFFFFFFFFFFFFFFF))
    for number, name in _LISTS.items():
        if ids := getattr(node, name):
            out.append(chunk(number, b"".join(varint(_unsigned(i, "a dependency")) for i in ids)))
    out += (_encoded_number(6, node.start_time_micros, "a time"), _encoded_number(7, node.duration_micros, "a time"))
    for number, name in _TENSORS.items():
        if (io := getattr(node, name)) is not None:
            out.append(chunk(number, b"".join(chunk(i, part.encode()) for i, part in enumerate(io, 1) if part)))
    out += (encoded_attribute_field(a) for a in node.attrs)
    out.append(node.unknown)
    return b"".join(out)


def _encoded_number(number: int, value: int, what: str) -> bytes:
    return varint(number << 3) + varint(_unsigned(value, what)) if value else b""


@lru_cache(1 << 16)
def encoded_attribute_field(attribute: Attribute) -> bytes:
    """An attribute as field 10 of a node."""
    return chunk(10, encode_attribute(attribute))


def _unsigned(value: int, what: str) -> int:
    if not 0 <= value < 1 << 64:
        raise WireError(f"{what} of {value} does not fit uint64")
    return value
