"""Protobuf's encoding: varints, the fields of a message, and messages that follow one another in a file, each behind its length.

Limits: one message is at most `MAX_MESSAGE` bytes, so a damaged length cannot exhaust the machine's memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lumos.errors import LumosError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


#: The largest message that is read, bytes. Chakra's own converter writes nodes of some 100 kB at most.
MAX_MESSAGE = 64 << 20

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5


class WireError(LumosError):
    """Bytes that are not a valid message. The text says what is wrong; the reader adds the file and the place."""


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


def packed(data: bytes) -> tuple[int, ...]:
    """The varints of a packed list."""
    out = []
    at = 0
    while at < len(data):
        value, at = read_varint(data, at)
        out.append(value)
    return tuple(out)


def chunk(number: int, data: bytes) -> bytes:
    """A field of bytes: text, bytes or a message."""
    return varint(number << 3 | BYTES) + varint(len(data)) + data


def twos_complement(value: int, bits: int) -> int:
    """The unsigned integer as two's complement of so many bits."""
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


def decoded_text(value: int | bytes) -> str:
    """The value of a field of text. WireError where it is none."""
    try:
        return value.decode() if isinstance(value, bytes) else bad("text")
    except UnicodeDecodeError as error:
        raise WireError(f"a text that is not UTF-8 ({error.reason})") from None


def bad(wanted: str) -> str:
    """Refuse a number where the schema has something else."""
    raise WireError(f"a number where the schema has {wanted}")


def frame(message: bytes) -> bytes:
    """A message preceded by its length."""
    return varint(len(message)) + message


def framed_messages(blocks: Iterable[bytes]) -> Iterator[tuple[int, bytes]]:
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
