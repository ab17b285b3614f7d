"""Write a workload as `.et` files, one per rank, and a file of the communicators; or a set that was read as it was read.

Durations are whole microseconds in Chakra. The start and the end of every node are rounded, and the duration is their difference: the
rounded times satisfy every dependency, and the step is right to 1 us however many nodes it has. With `exact_ns` the nanoseconds are kept as
an operation count, which a simulator in roofline mode with a peak of 1 TFLOP/s turns into time: 1,000 operations are one nanosecond.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from lumos.characters import is_whole
from lumos.errors import UsageError
from lumos.graph.table import Kind
from lumos.output_files import check_only_own, new_folder
from lumos.trace.chakra.attributes import encode_once
from lumos.trace.chakra.et import FORMAT
from lumos.trace.chakra.json_form import dump
from lumos.trace.chakra.protobuf import frame, varint, varints
from lumos.trace.chakra.schema import Attribute, Metadata, NodeType
from lumos.trace.chakra.wire import encode_io, encode_metadata, encode_node, encoded_attribute_field
from lumos.trace.table import ABSENT, Int64, Origin

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from lumos.chakra.amounts import Details
    from lumos.chakra.workload import Workload
    from lumos.graph.table import Step
    from lumos.trace.table import Job, Trace

#: Operations per ns that a roofline of 1 TFLOP/s performs.
OPERATIONS_PER_NS = 1000

#: Chakra's timeline visualiser recognises node types by these words in the name.
PREFIX = {
    NodeType.MEM_LOAD: "MEM_LOAD_NODE_",
    NodeType.MEM_STORE: "MEM_STORE_NODE_",
    NodeType.COMP: "COMP_NODE_",
    NodeType.SEND: "COMM_SEND_NODE_",
    NodeType.RECV: "COMM_RECV_NODE_",
    NodeType.COLL: "COMM_COLL_NODE_",
}

#: The attributes that are written from the columns of a workload: of compute and of memory nodes, and of communication.
OF_WORK = frozenset({"is_cpu_op", "stream", "tid", "kind", "num_ops", "tensor_size", "release_ns", "start_ns", "duration_ns"})
OF_COMMUNICATION = OF_WORK - {"num_ops", "tensor_size"} | {
    *("comm_size", "comm_type", "comm_src", "comm_dst", "comm_tag", "pg_name", "collective"),
}

#: Name of the file of communicators.
GROUPS_FILE = "groups.json"


def file_name(rank: int, prefix: str = "job") -> str:
    """The name of one rank's file."""
    return f"{prefix}.{rank}.et"


def write_set(
    workload: Workload,
    folder: Path,
    *,
    exact_ns: bool = False,
    extra: Mapping[str, str] | None = None,
    origin: Origin | None = None,
) -> None:
    """Write `job.R.et` for every rank, groups.json and the `extra` files (name: text) to `folder`.

    Writes all files or none. LumosError where the folder cannot be written, UsageError where it holds another set.
    """
    check_only_own(folder, "*.et", map(file_name, range(len(workload.ranks))))
    with new_folder(folder) as draft:
        for rank, frames in enumerate(encode_ranks(workload, exact_ns, origin)):
            with (draft / file_name(rank)).open("wb") as file:
                file.writelines(frames)
        groups = {str(i): list(ranks) for i, ranks in enumerate(workload.groups, 1)}
        (draft / GROUPS_FILE).write_bytes(msgspec.json.encode(groups))
        for name, text in (extra or {}).items():
            (draft / name).write_text(text)


def write_again(job: Job, folder: Path, *, as_json: bool = False) -> None:
    """Write a file for every rank of a Chakra job, and its communicators. UsageError for another job, LumosError where it cannot."""
    if any(trace.metadata.get("format") != FORMAT for trace in job.traces):
        raise UsageError("only a Chakra set is written as it was read; `lumos chakra export` makes one of a job first")
    check_only_own(folder, "*.et", [file_name(trace.rank) for trace in job.traces])
    with new_folder(folder) as draft:
        for trace in job.traces:
            if as_json:
                (draft / f"job.{trace.rank}.json").write_text("\n".join(dump(_metadata_again(trace), trace.metadata["chakra"])) + "\n")
            else:
                messages = (encode_metadata(_metadata_again(trace)), *map(encode_node, trace.metadata["chakra"]))
                (draft / file_name(trace.rank)).write_bytes(b"".join(map(frame, messages)))
        groups = {g.name: list(g.ranks) for g in job.groups if is_whole(g.name) and g.ranks}
        (draft / GROUPS_FILE).write_bytes(msgspec.json.encode(groups))


def _metadata_again(trace: Trace) -> Metadata:
    return Metadata(str(trace.metadata["chakraVersion"]), trace.metadata["chakraAttributes"])


def encode_ranks(workload: Workload, exact_ns: bool = False, origin: Origin | None = None) -> Iterator[Iterator[bytes]]:
    """The frames of each rank's file. origin: of the job."""
    said = () if origin is None else (Attribute("lumos", "string", msgspec.json.encode(origin.said).decode()),)
    timed = (*_timed(workload), *said)
    for rank in range(len(workload.ranks)):
        yield _frames(workload, rank, timed, exact_ns)


def _frames(workload: Workload, rank: int, timed: Sequence[Attribute], exact_ns: bool) -> Iterator[bytes]:
    """The frames of one rank's file: its metadata, then its nodes, numbered from 1. Each field is encoded for all nodes at once."""
    yield frame(encode_metadata(_metadata(workload, rank, timed, exact_ns)))
    low, high = (int(i) for i in workload.rank_offset[rank : rank + 2])
    here = slice(low, high)
    start, duration, queue = (column[here] for column in (workload.start, workload.duration, workload.queue))
    types, cpu = workload.type[here], workload.on_cpu[here]
    start_us = _microseconds(start)
    duration_us = np.where(duration == ABSENT, 0, _microseconds(start + np.maximum(duration, 0)) - start_us)
    fields = [
        [b"\x08" + number for number in varints(np.arange(1, high - low + 1))],
        [_name_field(kind, workload.names[name]) for kind, name in zip(types.tolist(), workload.name[here].tolist(), strict=True)],
        _dependency_fields(workload, low, high),
        _optional(b"\x30", start_us),
        _optional(b"\x38", duration_us),
        _chosen([encoded_attribute_field(Attribute("is_cpu_op", "bool", value)) for value in (False, True)], cpu),
        _numbers("tid", "int64", np.where(cpu, queue, ABSENT)),
        _numbers("stream", "int64", np.where(cpu, ABSENT, queue)),
        _texts("kind", [kind.name.lower() for kind in Kind], workload.kind[here]),
        *_communication_fields(workload, rank, low, high),
        _numbers("release_ns", "int64", workload.release[here]),
        *_cost_fields(workload, here, exact_ns),
        [] if workload.detail is None else _chosen([_details(details) for details in workload.details], workload.detail[here]),
    ]
    for parts in zip(*filter(None, fields), strict=True):
        yield frame(b"".join(parts))


def _dependency_fields(workload: Workload, low: int, high: int) -> list[bytes]:
    """Per node of the rank low:high the encoded numbers of the nodes that it depends on."""
    offsets = workload.dep_offset[low : high + 1] - workload.dep_offset[low]
    edges = varints(workload.dep[workload.dep_offset[low] : workload.dep_offset[high]] - (low - 1))
    joined = [b"".join(edges[a:b]) for a, b in pairwise(offsets.tolist())]
    return [b"\x2a" + varint(len(numbers)) + numbers if numbers else b"" for numbers in joined]


def _optional(key: bytes, values: Int64) -> list[bytes]:
    """Per value its encoded field; nothing for 0, the default."""
    return [key + data if data != b"\x00" else b"" for data in varints(values)]


def _numbers(name: str, kind: str, values: Int64) -> list[bytes]:
    """Per value an attribute; nothing where it is ABSENT."""
    if (values < 0).all():
        return [b""] * len(values)
    head = encode_once(Attribute(name, kind, 0))[:-1]
    encoded = zip((values >= 0).tolist(), varints(np.maximum(values, 0)), strict=True)
    return [b"\x52" + varint(len(head) + len(data)) + head + data if known else b"" for known, data in encoded]


def _texts(name: str, table: Sequence[str], index: NDArray[Any]) -> list[bytes]:
    """Per node an attribute with the text at its place in the table; nothing where the place is ABSENT."""
    return _chosen([encoded_attribute_field(Attribute(name, "string", text)) for text in table], index)


def _chosen(encoded: list[bytes], index: NDArray[Any]) -> list[bytes]:
    """Per node the entry at its place; nothing where the place is ABSENT, which is -1."""
    table = [*encoded, b""]
    return [table[i] for i in index.tolist()]


def _microseconds(ns: Int64) -> Int64:
    rounded: Int64 = (np.maximum(ns, 0) + 500) // 1000
    return rounded


def _timed(workload: Workload) -> tuple[Attribute, ...]:
    """What says of a set that a duration of 0 us means a short one, not an unknown one."""
    facts = (
        ("communication_timed", workload.duration[workload.communication.node]),
        ("compute_timed", workload.duration[workload.type == NodeType.COMP]),
    )
    return tuple(Attribute(name, "bool", True) for name, duration in facts if (duration > 0).any())


def _metadata(workload: Workload, rank: int, timed: Sequence[Attribute], exact_ns: bool) -> Metadata:
    steps = [
        (step.name, step.start, step.end) if exact_ns else _rounded_mark(step)
        for step in workload.steps
        if step.rank == workload.ranks[rank]
    ]
    attrs = [Attribute("producer", "string", "lumos"), Attribute("rank", "int64", int(workload.ranks[rank]))]
    attrs.append(Attribute("world_size", "int64", len(workload.ranks)))
    attrs += timed
    if steps:
        attrs.append(Attribute("steps", "string", msgspec.json.encode(steps).decode()))
        attrs += [Attribute("steps_alone", "bool", True)] if workload.steps_alone else []
    timers = tuple(sorted(queue for place, queue in workload.timers if place == rank))
    if timers:
        attrs.append(Attribute("timers", "int64_list", timers))
    if exact_ns:
        attrs.append(Attribute("exact_ns", "bool", True))
    return Metadata(attrs=tuple(attrs))


def _rounded_mark(step: Step) -> tuple[str, int, int]:
    """The name, begin and end of a step, ns, with the first and the last start in it rounded as those of the nodes are."""
    first, last = (1000 * _microseconds(np.array([step.start, step.end - 1]))).tolist()
    return step.name, first, last + 1


@lru_cache(1 << 16)
def _name_field(kind: int, name: str) -> bytes:
    text = (PREFIX[NodeType(kind)] + name).encode("utf-8", "replace")
    return b"\x12" + varint(len(text)) + text + b"\x18" + varint(kind)


def _communication_fields(workload: Workload, rank: int, low: int, high: int) -> Iterator[list[bytes]]:
    """The attributes of communication, per node of a rank."""
    facts = workload.communication
    rows = slice(*np.searchsorted(facts.node, (low, high)).tolist())
    node, types = facts.node[rows] - low, workload.type[facts.node[rows]]

    def column(values: NDArray[Any], of: NodeType | None = None) -> Int64:
        out = np.full(high - low, ABSENT, np.int64)
        out[node] = values if of is None else np.where(types == of, values, ABSENT)
        return out

    yield _numbers("comm_size", "int64", column(facts.size[rows]))
    yield _numbers("comm_type", "int64", column(facts.type[rows], NodeType.COLL))
    yield _texts("pg_name", [str(number) for number in range(1, len(workload.groups) + 1)], column(facts.group[rows], NodeType.COLL))
    own = np.full(len(node), rank)
    for name, source in (("comm_src", NodeType.SEND), ("comm_dst", NodeType.RECV)):
        yield _numbers(name, "int64", column(np.where(types == NodeType.COLL, ABSENT, np.where(types == source, own, facts.peer[rows]))))
    yield _numbers("comm_tag", "int64", column(np.where(types == NodeType.COLL, ABSENT, facts.tag[rows])))
    yield _texts("collective", facts.kinds, column(facts.kind[rows]))


def _cost_fields(workload: Workload, here: slice, exact_ns: bool) -> Iterator[list[bytes]]:
    """Per node its operations and bytes, or its exact times in their place.

    Of each there is one at least: in roofline mode a simulator divides the one by the other, and need not accept a node without any.
    """
    types, duration = workload.type[here], workload.duration[here]
    operations, moved = workload.operations[here], workload.bytes[here]
    known = ((operations != ABSENT) | (moved != ABSENT)) & ~np.isin(types, (NodeType.SEND, NodeType.RECV, NodeType.COLL))
    if exact_ns:
        known = types == NodeType.COMP
        operations, moved = OPERATIONS_PER_NS * duration, np.ones(len(types), np.int64)
        yield _numbers("start_ns", "int64", np.maximum(workload.start[here], 0))
        yield _numbers("duration_ns", "int64", np.where(known, ABSENT, np.maximum(duration, 0)))
    yield _numbers("num_ops", "int64", np.where(known, np.maximum(operations, 1), ABSENT))
    yield _numbers("tensor_size", "uint64", np.where(known, np.maximum(moved, 1), ABSENT))


@lru_cache(1 << 14)
def _details(details: Details) -> bytes:
    parts = ((8, details.inputs), (9, details.outputs))
    tensors = b"".join(encode_io(number, io) for number, io in parts if io is not None)
    return tensors + b"".join(map(encoded_attribute_field, details.attrs)) + details.unknown
