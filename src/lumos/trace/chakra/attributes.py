"""Attributes of Chakra's nodes on the wire. Equal attributes are decoded and encoded only once, because most nodes share theirs."""

import struct
from functools import lru_cache
from typing import Any

from lumos.trace.chakra.protobuf import (
    BYTES,
    FIXED32,
    FIXED64,
    VARINT,
    WireError,
    bad,
    chunk,
    decoded_text,
    fields,
    packed,
    twos_complement,
    varint,
)
from lumos.trace.chakra.schema import Attribute, Value

#: Attribute kinds by field number of the scalar; the list of the same kind has the next number.
_SCALARS = {
    3: "double", 5: "float", 7: "int32", 9: "int64", 11: "uint32", 13: "uint64", 15: "sint32", 17: "sint64",
    19: "fixed32", 21: "fixed64", 23: "sfixed32", 25: "sfixed64", 27: "bool", 29: "string", 31: "bytes",
}  # fmt: skip
#: The kinds that an attribute's value, or the items of a list, may have.
ATTRIBUTE_KINDS = tuple(_SCALARS.values())
_FIXED = {"double": "<d", "float": "<f", "fixed32": "<I", "fixed64": "<Q", "sfixed32": "<i", "sfixed64": "<q"}
_NUMBERS = {kind: number for number, kind in _SCALARS.items()} | {f"{kind}_list": number + 1 for number, kind in _SCALARS.items()}


def _number(kind: str, raw: int) -> int | bool:
    """The value of a varint field of that kind."""
    if kind == "bool":
        return raw != 0
    if kind.startswith("sint"):
        return (raw >> 1) ^ -(raw & 1)
    bits = 32 if kind.endswith("32") else 64
    return twos_complement(raw, bits) if kind.startswith("int") else raw & (1 << bits) - 1


def _raw(kind: str, value: int) -> int:
    """A value as the unsigned integer of its varint. Raises WireError where the value does not fit the kind."""
    bits = 32 if kind.endswith("32") else 64
    low, high = (0, 1 << bits) if kind.startswith("u") else (-(1 << (bits - 1)), 1 << (bits - 1))
    if kind != "bool" and not low <= value < high:
        raise WireError(f"{value} does not fit {kind}")
    return (value << 1 ^ value >> 63 if kind.startswith("sint") else value) & 0xFFFFFFFFFFFFFFFF


@lru_cache(1 << 16)
def decode_attribute(data: bytes) -> Attribute:
    """One attribute. Where several values of the oneof are present, the last wins, as in protobuf."""
    name, doc, kind = "", "", ""
    value: Value = ""
    for number, wire, raw, _ in fields(data):
        if number == 1:
            name = decoded_text(raw)
        elif number == 2:
            doc = decoded_text(raw)
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
    if wire != _wire(kind):
        raise WireError(f"a {kind} attribute with wire type {wire}")
    if isinstance(raw, int):
        return _number(kind, raw)
    if kind == "string":
        return decoded_text(raw)
    value: Value = raw if kind == "bytes" else struct.unpack(_FIXED[kind], raw)[0]
    return value


def _wire(kind: str) -> int:
    if kind in _FIXED:
        return FIXED64 if struct.calcsize(_FIXED[kind]) == 8 else FIXED32
    return BYTES if kind in ("string", "bytes") else VARINT


def _list(kind: str, raw: bytes) -> Value:
    """The values of a list message: field 1, repeated, which may be packed where the kind allows it."""
    out: list[Value] = []
    for number, wire, value, _ in fields(raw):
        if number != 1:
            continue
        if isinstance(value, int) or wire != BYTES or _wire(kind) == BYTES:
            out.append(_scalar(kind, wire, value))
        elif kind not in _FIXED:
            out += (_number(kind, v) for v in packed(value))
        elif len(value) % struct.calcsize(_FIXED[kind]):
            raise WireError(f"a packed list of {kind} of {len(value)} bytes")
        else:
            out += (v for (v,) in struct.iter_unpack(_FIXED[kind], value))
    return tuple(out)  # type: ignore[return-value]


def encode_attribute(attribute: Attribute) -> bytes:
    """One attribute's message. WireError where the value does not fit."""
    name, kind, value, doc = attribute
    out = chunk(1, name.encode()) + (chunk(2, doc.encode()) if doc else b"")
    if not kind:
        return out
    number = _NUMBERS.get(kind)
    if number is None:
        raise WireError(f"attribute {name!r} has the unknown kind {kind!r}")
    if not kind.endswith("_list"):
        return out + _element(kind, number, value)
    element = kind.removesuffix("_list")
    values = value if isinstance(value, tuple) else bad(f"a list for {name!r}")
    if _wire(element) == BYTES:
        return out + chunk(number, b"".join(_element(element, 1, v) for v in values))
    packed_values = b"".join(_packed(element, v) for v in values)
    return out + chunk(number, chunk(1, packed_values) if values else b"")


def _packed(kind: str, value: Any) -> bytes:
    return struct.pack(_FIXED[kind], value) if kind in _FIXED else varint(_raw(kind, int(value)))


def _element(kind: str, number: int, value: Any) -> bytes:
    try:
        if _wire(kind) == BYTES:
            return chunk(number, value.encode() if kind == "string" else value)
        return varint(number << 3 | _wire(kind)) + _packed(kind, value)
    except (AttributeError, TypeError, ValueError, struct.error) as error:
        raise WireError(f"{value!r} is no {kind} ({error})") from None
