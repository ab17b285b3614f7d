"""Chakra `.et` files (protobuf, plain or gzip), read as a stream of nodes or as a `Trace`.

The Trace has what every reader returns (names, times, rows on lanes), so that the files can be inspected. The nodes
themselves are in `Trace.metadata["chakra"]`. `lumos.chakra.build` builds the graph from them, because a Chakra file states
the dependencies itself.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from lumos.diagnostics import Diagnostic
from lumos.errors import TraceError
from lumos.trace.blocks import unpacked_blocks
from lumos.trace.chakra.companions import Companion, companions
from lumos.trace.chakra.protobuf import WireError, framed_messages, read_varint
from lumos.trace.chakra.schema import ChakraNode, Metadata, NodeType
from lumos.trace.chakra.wire import decode_metadata, decode_node
from lumos.trace.table import ABSENT, Category, Column, Lane, Trace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

#: The value of `Trace.metadata["format"]` for these traces, by which `graph.build` finds their builder.
FORMAT = "chakra"

_RANK = re.compile(r"\.(\d{1,7})\.(?:et|json)(?:\.gz)?$")
_PREFIX = re.compile(r"^(?:COMP|COMM_SEND|COMM_RECV|COMM_COLL|MEM_LOAD|MEM_STORE|METADATA)_NODE_(?=.)")
#: The versions of the schema whose fields are known.
KNOWN_VERSIONS = ("0.0.4", "1.0.0")

_CATEGORIES: dict[int, Category] = {
    **dict.fromkeys((NodeType.METADATA, NodeType.INVALID), Category.ANNOTATION),
    **dict.fromkeys((NodeType.MEM_LOAD, NodeType.MEM_STORE), Category.MEMCPY),
}
#: The attributes that are read as numbers, and the bound of their size: sums of two fit an int64.
_NUMBERS = {"num_ops", "tensor_size", "comm_size", "comm_type", "comm_tag", "comm_src", "comm_dst"}
_NUMBERS |= {"stream", "tid", "start_ns", "duration_ns", "release_ns"}
_LARGEST = 1 << 62

#: A file of more than _MANY_NODES nodes that are shorter than this on average is refused: with an id, a type, a name and a dependency a
#: node takes more, and the nodes would take hundreds of times the memory of the file.
_MIN_NODE_BYTES = 16
_MANY_NODES = 1 << 20


def sniff(head: bytes) -> bool:
    """Whether a file whose unpacked content starts with `head` is a `.et` file: its first frame is a metadata message."""
    try:
        length, at = read_varint(head, 0)
        if length == 0:
            length, at = read_varint(head, 1)
            return head[at : at + 1] == b"\x08" and length > 1
        if head[at : at + 1] not in (b"\n", b"\x12") or at + length > len(head):
            return False
        metadata = decode_metadata(head[at : at + length])
    except WireError:
        return False
    return (metadata.version.isprintable() and not metadata.unknown) and bool(metadata.version or metadata.attrs)


def stream(path: Path, progress: Callable[[int], None] | None = None) -> tuple[Metadata, Iterator[ChakraNode]]:
    """A file's metadata, and an iterator over its nodes. Raises TraceError with the file, the byte and what is wrong there."""
    source = _frames(path, progress)
    first = next(source, None)
    if first is None:
        raise TraceError(f"{path}: the file is empty; write it again")
    try:
        metadata = decode_metadata(first[1])
    except WireError as error:
        raise TraceError(f"{path}: at byte 0: {error}; not a Chakra .et file, or a damaged one") from None
    return metadata, _nodes(path, source)


def _frames(path: Path, progress: Callable[[int], None] | None) -> Iterator[tuple[int, bytes]]:
    try:
        yield from framed_messages(unpacked_blocks(path, progress))
    except WireError as error:
        raise TraceError(f"{path}: {error}; write or copy it again") from None


def _nodes(path: Path, source: Iterator[tuple[int, bytes]]) -> Iterator[ChakraNode]:
    for count, (offset, message) in enumerate(source):
        if not message:
            raise TraceError(f"{path}: node {count + 1} at byte {offset} is empty, without an id or a type; write it again")
        check_lengths(str(path), count, offset)
        try:
            yield decode_node(message)
        except WireError as error:
            raise TraceError(f"{path}: node {count + 1} at byte {offset}: {error}; write it again") from None


def check_lengths(source: str, nodes: int, size: int) -> None:
    """Raise TraceError where so many nodes in `size` bytes (or characters) are shorter than any tool writes them."""
    if nodes > _MANY_NODES and size < _MIN_NODE_BYTES * nodes:
        raise TraceError(f"{source}: {nodes:,} nodes in {size:,} bytes: no tool writes nodes this short; refused")


def read(path: Path, *, progress: Callable[[int], None] | None = None) -> Trace:
    """Read one rank's file. A damaged file is refused even under --repair, because a graph without its last nodes is useless.

    Raises TraceError: unreadable, truncated, malformed or empty file, no nodes.
    """
    metadata, source = stream(path, progress)
    return trace_of(path, metadata, list(source))


def trace_of(path: Path, metadata: Metadata, nodes: list[ChakraNode], rank: int | None = None) -> Trace:
    """The nodes of one rank, whatever form of file they come from, as a Trace. Rows are nodes in file order. rank: where the name of the
    file does not say it. Raises TraceError where there are no nodes."""
    if not nodes:
        raise TraceError(f"{path}: holds no nodes; write it again")
    diagnostics: list[Diagnostic] = []
    attrs = {a.name: a.value for a in metadata.attrs}
    rank, source = _rank(path, diagnostics) if rank is None else (rank, "content")
    if metadata.version and metadata.version not in KNOWN_VERSIONS:
        diagnostics.append(Diagnostic("chakra-version", f"{path}: unknown Chakra version {metadata.version!r}; read by its fields"))
    names: dict[str, int] = {}
    lanes: dict[tuple[bool, int], int] = {}
    rows = [_row(path, node) for node in nodes]
    device, queues = np.flatnonzero([not r.on_cpu for r in rows]).astype(np.int32), np.array([r.queue for r in rows], np.int64)
    return Trace(
        path=str(path),
        rank=rank,
        rank_source=source,
        world_size=None,
        name=np.array([names.setdefault(r.name, len(names)) for r in rows], np.int32),
        lane=np.array([lanes.setdefault((r.on_cpu, r.queue), len(lanes)) for r in rows], np.int32),
        strings=tuple(names),
        start=np.array([r.start for r in rows], np.int64),
        duration=np.array([r.duration for r in rows], np.int64),
        category=np.array([r.category for r in rows], np.uint8),
        correlation=np.full(len(rows), ABSENT, np.int64),
        external_id=np.array([min(node.id, (1 << 63) - 1) for node in nodes], np.int64),
        args={"stream": Column(device, queues[device], "int")} if len(device) else {},
        lanes=tuple(Lane(str(rank), f"{'thread' if cpu else 'stream'} {number}") for cpu, number in lanes),
        metadata={
            "format": FORMAT,
            "chakra": nodes,
            "chakraVersion": metadata.version,
            "chakraAttributes": metadata.attrs,
            **attrs,
            **_groups(path, diagnostics),
        },
        diagnostics=tuple(diagnostics),
    )


class _Row(NamedTuple):
    """What a node contributes to the columns of a Trace; its times in ns where the file has them. queue: its thread on a CPU, else its
    stream."""

    name: str
    on_cpu: bool
    queue: int
    start: int
    duration: int
    category: Category


def _row(path: Path, node: ChakraNode) -> _Row:
    def wrong(what: str) -> TraceError:
        return TraceError(f"{path}: node {node.id}: {what}; write the set again")

    values = {a.name: a for a in node.attrs if a.kind}
    for attribute in values.values():
        if isinstance(attribute.value, int) and not -_LARGEST < attribute.value < _LARGEST and attribute.name in _NUMBERS:
            raise wrong(f"{attribute.name} = {attribute.value} is beyond 62 bits")

    def integer(name: str, default: int, kind: str = "an integer") -> int:
        stated = values.get(name)
        if stated is None:
            return default
        if not isinstance(stated.value, int):
            raise wrong(f"{name} is a {stated.kind}, not {kind}")
        return int(stated.value)

    on_cpu = bool(integer("is_cpu_op", 0, "a bool"))
    if max(node.start_time_micros, node.duration_micros) > _LARGEST // 1000:
        raise wrong("a time of more than 146 years")
    thread = integer("tid", 0)
    return _Row(
        _PREFIX.sub("", node.name),
        on_cpu,
        thread if on_cpu else integer("stream", thread),
        integer("start_ns", node.start_time_micros * 1000),
        integer("duration_ns", node.duration_micros * 1000),
        _CATEGORIES.get(node.type, Category.OPERATOR if on_cpu else Category.KERNEL),
    )


def _rank(path: Path, diagnostics: list[Diagnostic]) -> tuple[int, str]:
    match = _RANK.search(path.name)
    if match:
        return int(match.group(1)), "file name"
    diagnostics.append(Diagnostic("rank-assumed", f"{path}: the file name gives no rank (NAME.RANK.et); taken as rank 0"))
    return 0, "assumed"


def _groups(path: Path, diagnostics: list[Diagnostic]) -> dict[str, Any]:
    """The communicators listed in the file's folder, in the form of the metadata that profilers write."""
    file = companions(path.parent).get(Companion.GROUPS)
    if file is None:
        return {}
    try:
        groups = msgspec.json.decode(file.read_bytes(), type=dict[str, list[int]])
    except (msgspec.MsgspecError, UnicodeDecodeError, OSError) as error:
        diagnostics.append(Diagnostic("groups-unreadable", f"{file}: no object of rank lists by group ({error}); left out"))
        return {}
    config = [{"pg_name": key, "pg_desc": "", "ranks": ranks} for key, ranks in groups.items()]
    return {"distributedInfo": {"pg_config": config}}
