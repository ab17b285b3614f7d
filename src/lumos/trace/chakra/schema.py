"""Chakra's nodes, their attributes and the metadata of a file, as values."""

from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

#: Written into every metadata message. An empty message reads as the end of the file in Chakra's Python reader.
VERSION = "0.0.4"

Value = int | float | str | bytes | bool | tuple[int, ...] | tuple[float, ...] | tuple[str, ...] | tuple[bytes, ...] | tuple[bool, ...]


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
    STORAGE = 8
    BATCH = 9
    CHECKPOINT = 10


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

    version: str = VERSION
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
        attribute = self.attr(name)
        return None if attribute is None else attribute.value
