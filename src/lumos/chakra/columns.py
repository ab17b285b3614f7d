"""Many messages at once: each of their fields is a column of byte strings, and the columns are interleaved.

A job of a thousand ranks has millions of nodes; one after the other, each number of each node would be encoded by itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.graph.lists import offsets, places
from lumos.trace.chakra.attributes import encode_attribute
from lumos.trace.chakra.protobuf import BYTES, varint
from lumos.trace.chakra.schema import Attribute
from lumos.trace.chakra.wire import encoded_attribute_field

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from lumos.trace.table import Int64


class ByteStrings(NamedTuple):
    """size: int64[n], how many bytes each string has. flat: uint8, one string after the other."""

    size: Int64
    flat: NDArray[np.uint8]


def strings(listed: Sequence[bytes]) -> ByteStrings:
    """The given strings."""
    return ByteStrings(np.array([*map(len, listed)], np.int64), np.frombuffer(b"".join(listed), np.uint8))


def chosen(table: ByteStrings, index: NDArray[np.integer]) -> ByteStrings:
    """The string at each place of the table; nothing where the place is ABSENT, which is -1."""
    begin = offsets(table.size)
    size = np.append(table.size, 0)[index]
    return ByteStrings(size, table.flat[places(begin[index], size)])


def varints(values: Int64) -> ByteStrings:
    """Each value as a varint; nothing where it is negative."""
    size = sum((values >> bits > 0).astype(np.int64) for bits in range(7, 63, 7)) + (values >= 0)
    digit = np.arange(size.max(initial=1))
    out = (values[:, None] >> 7 * digit & 127 | 128).astype(np.uint8)
    out[np.arange(len(values)), size - 1] &= 127
    return ByteStrings(size, out[digit < size[:, None]])


def headed(head: Callable[[int], bytes], these: ByteStrings) -> tuple[ByteStrings, ByteStrings]:
    """What stands before each string, by its size, and the strings; nothing before an empty one."""
    sizes, which = np.unique(these.size, return_inverse=True)
    return chosen(strings([head(size) if size else b"" for size in sizes.tolist()]), which), these


def interleaved(columns: Sequence[ByteStrings]) -> ByteStrings:
    """The first strings of all columns as one, and so on."""
    sizes = np.stack([column.size for column in columns])
    size = sizes.sum(axis=0)
    begins = offsets(size)[:-1] + np.cumsum(sizes, axis=0) - sizes
    out = np.empty(size.sum(), np.uint8)
    for column, begin in zip(columns, begins, strict=True):
        out[places(begin, column.size)] = column.flat
    return ByteStrings(size, out)


def field(number: int, values: Int64) -> tuple[ByteStrings, ByteStrings]:
    """A field of a number; left out where it is 0, as in protobuf."""
    return headed(lambda _: varint(number << 3), varints(np.where(values == 0, -1, values)))


def number_lists(number: int, values: Int64, offset: Int64) -> tuple[ByteStrings, ByteStrings]:
    """A field of lists of numbers: those of the i-th one are values[offset[i] : offset[i + 1]]."""
    numbers = varints(values)
    size = np.diff(offsets(numbers.size)[offset])
    return headed(lambda length: varint(number << 3 | BYTES) + varint(length), ByteStrings(size, numbers.flat))


def numbers(name: str, values: Int64, kind: str = "int64") -> tuple[ByteStrings, ByteStrings]:
    """An attribute of each node; none where the value is negative, which is unknown."""
    before = encode_attribute(Attribute(name, kind, 0))[:-1]  # all but the varint of 0
    return headed(lambda length: varint(10 << 3 | BYTES) + varint(len(before) + length) + before, varints(values))


def words(name: str, table: Sequence[str | bool], index: NDArray[np.integer]) -> tuple[ByteStrings]:
    """An attribute of each node with the entry at its place in the table; none where the place is ABSENT."""
    kind = "bool" if any(isinstance(entry, bool) for entry in table) else "string"
    return (chosen(strings([encoded_attribute_field(Attribute(name, kind, entry)) for entry in table]), index),)
