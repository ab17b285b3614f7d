"""Write a workload as `.et` files, one per rank, and a file of the communicators; or a set that was read as it was read.

Durations are whole microseconds in Chakra. The errors of rounding each duration would add up. So the start and the end of
every node are rounded, and the duration is their difference. Rounding does not change the order of times, so the rounded
ones satisfy every dependency, and along the critical path the roundings cancel: the step is right to 1 us however many
nodes it has. With `exact_ns` the nanoseconds are kept as an operation count, which a simulator in roofline mode with a
peak of 1 TFLOP/s turns into time: 1,000 operations are one nanosecond.

Files appear only once all of them are complete.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING

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

    from lumos.chakra.work.amounts import Details
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
    more: Sequence[Mapping[int, bytes]] | None = None,
    origin: Origin | None = None,
) -> None:
    """Write `job.R.et` for every rank, groups.json and the `extra` files (name: text) to `folder`.

    more: for each rank what `encode_ranks` may add to its nodes. Writes all files or none. LumosError where the folder cannot be written,
    UsageError where it holds another set.
    """
    check_only_own(folder, "*.et", map(file_name, range(len(workload.ranks))))
    with new_folder(folder) as draft:
        for rank, frames in enumerate(encode_ranks(workload, exact_ns, more, origin)):
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


def encode_ranks(
    workload: Workload, exact_ns: bool = False, more: Sequence[Mapping[int, bytes]] | None = None, origin: Origin | None = None
) -> Iterator[Iterator[bytes]]:
    """The frames of each rank's file. more: for each rank encoded fields to add to nodes, by number (from 0). origin: of the job."""
    said = () if origin is None else (Attribute("lumos", "string", msgspec.json.encode(origin.said).decode()),)
    timed = (*_timed(workload), *said)
    for rank in range(len(workload.ranks)):
        yield _frames(workload, rank, timed, exact_ns, {} if more is None else more[rank])


def _frames(workload: Workload, rank: int, timed: Sequence[Attribute], exact_ns: bool, more: Mapping[int, bytes]) -> Iterator[bytes]:
    """The frames of one rank's file: its metadata, then its nodes, numbered from 1."""
    yield frame(encode_metadata(_metadata(workload, rank, timed, exact_ns)))
    low, high = (int(i) for i in workload.rank_offset[rank : rank + 2])
    here = slice(low, high)
    end = workload.start[here] + np.maximum(workload.duration[here], 0)
    start_us = _microseconds(workload.start[here])
    duration_us = np.where(workload.duration[here] == ABSENT, 0, _microseconds(end) - start_us)
    comm = _communication_fields(workload, rank, low, high)
    names, kinds = workload.names, [k.name.lower() for k in Kind]
    columns = zip(
        varints(np.arange(1, high - low + 1)),
        workload.type[here].tolist(),
        workload.name[here].tolist(),
        _dependency_fields(workload, low, high),
        _optional(b"\x30", start_us),
        _optional(b"\x38", duration_us),
        workload.on_cpu[here].tolist(),
        workload.queue[here].tolist(),
        workload.kind[here].tolist(),
        strict=True,
    )
    per_node = (_exact_fields(workload, here, exact_ns), None if exact_ns else _work_fields(workload, here), _detail_fields(workload, here))
    known = [fields for fields in per_node if fields is not None]
    for i, (number, kind, name, deps, start, duration, cpu, queue, task) in enumerate(columns):
        static = _name_field(kind, names[name]), deps, start, duration, _common_fields(cpu, queue, kinds[task]), comm.get(i, b"")
        message = b"".join((b"\x08", number, *static, *(fields[i] for fields in known), more.get(i, b"")))
        yield varint(len(message)) + message


def _dependency_fields(workload: Workload, low: int, high: int) -> list[bytes]:
    """Per node of the rank low:high the encoded numbers of the nodes that it depends on."""
    offsets = workload.dep_offset[low : high + 1] - workload.dep_offset[low]
    edges = varints(workload.dep[workload.dep_offset[low] : workload.dep_offset[high]] - (low - 1))
    joined = [b"".join(edges[a:b]) for a, b in pairwise(offsets.tolist())]
    return [b"\x2a" + varint(len(numbers)) + numbers if numbers else b"" for numbers in joined]


def _optional(key: bytes, values: Int64) -> list[bytes]:
    """Per value its encoded field; nothing for 0, the default."""
    return [key + data if data != b"\x00" else b"" for data in varints(values)]


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


@lru_cache(1 << 12)
def _common_fields(cpu: bool, queue: int, kind: str) -> bytes:
    """The attributes that every node has: where it runs and of which kind it is. Simulators read only `is_cpu_op`."""
    attrs = [Attribute("is_cpu_op", "bool", cpu)]
    if queue != ABSENT:
        attrs.append(Attribute("tid" if cpu else "stream", "int64", queue))
    attrs.append(Attribute("kind", "string", kind))
    return b"".join(map(encoded_attribute_field, attrs))


def _communication_fields(workload: Workload, rank: int, low: int, high: int) -> dict[int, bytes]:
    """The attributes of a rank's communication nodes, by position in the rank."""
    facts = workload.communication
    here = slice(*np.searchsorted(facts.node, (low, high)).tolist())
    columns = (facts.node - low, workload.type[facts.node], facts.type, facts.size, facts.group, facts.peer, facts.tag, facts.kind)
    rows = zip(*(column[here].tolist() for column in columns), strict=True)
    return {place: _communication(rank, kind, *row, facts.kinds[label]) for place, kind, *row, label in rows}


@lru_cache(1 << 14)
def _communication(rank: int, node_type: int, comm_type: int, size: int, group: int, peer: int, tag: int, kind: str) -> bytes:
    attrs = [Attribute("comm_size", "int64", size)]
    if node_type == NodeType.COLL:
        attrs += (Attribute("comm_type", "int64", comm_type), Attribute("pg_name", "string", str(group + 1)))
    else:
        source, target = (rank, peer) if node_type == NodeType.SEND else (peer, rank)
        attrs += (Attribute("comm_src", "int64", source), Attribute("comm_dst", "int64", target), Attribute("comm_tag", "int64", tag))
    attrs.append(Attribute("collective", "string", kind))
    return b"".join(map(encoded_attribute_field, attrs))


def _exact_fields(workload: Workload, here: slice, exact_ns: bool) -> list[bytes] | None:
    """Per node the encoded release and exact times; None where no node has any."""
    release, duration, start, types = (column[here] for column in (workload.release, workload.duration, workload.start, workload.type))
    if not exact_ns and (release == ABSENT).all():
        return None
    out = []
    for i in range(len(duration)):
        attrs = []
        if release[i] != ABSENT:
            attrs.append(Attribute("release_ns", "int64", int(release[i])))
        if exact_ns:
            attrs.append(Attribute("start_ns", "int64", int(start[i])))
        if exact_ns and types[i] == NodeType.COMP:
            # At least one operation, because a simulator need not accept a node without any; 1 of 1,000 is still 0 ns.
            attrs.append(Attribute("num_ops", "int64", max(OPERATIONS_PER_NS * int(duration[i]), 1)))
            attrs.append(Attribute("tensor_size", "uint64", 1))
        elif exact_ns:
            attrs.append(Attribute("duration_ns", "int64", int(duration[i])))
        out.append(b"".join(b"\x52" + varint(len(m)) + m for m in map(encode_once, attrs)))
    return out


def _work_fields(workload: Workload, here: slice) -> list[bytes] | None:
    """Per node the encoded operations and bytes of compute; None where no node has any."""
    operations, moved, types = workload.operations[here], workload.bytes[here], workload.type[here]
    known = ((operations != ABSENT) | (moved != ABSENT)) & ~np.isin(types, (NodeType.SEND, NodeType.RECV, NodeType.COLL))
    if not known.any():
        return None
    out = [b""] * len(known)
    where = np.flatnonzero(known)
    for i, count, size in zip(where.tolist(), operations[where].tolist(), moved[where].tolist(), strict=True):
        out[i] = _work(count, size)
    return out


@lru_cache(1 << 14)
def _work(operations: int, moved: int) -> bytes:
    """Operations and bytes, of each one at least: in roofline mode a simulator divides the one by the other."""
    attrs = (Attribute("num_ops", "int64", max(operations, 1)), Attribute("tensor_size", "uint64", max(moved, 1)))
    return b"".join(map(encoded_attribute_field, attrs))


def _detail_fields(workload: Workload, here: slice) -> list[bytes] | None:
    """Per node its encoded details; None where no node has any."""
    if workload.detail is None:
        return None
    own = workload.detail[here]
    used = np.unique(own[own >= 0]).tolist()
    encoded = {i: _details(workload.details[i]) for i in used} | {ABSENT: b""}
    return [encoded[i] for i in own.tolist()]


@lru_cache(1 << 14)
def _details(details: Details) -> bytes:
    parts = ((8, details.inputs), (9, details.outputs))
    tensors = b"".join(encode_io(number, io) for number, io in parts if io is not None)
    return tensors + b"".join(map(encoded_attribute_field, details.attrs)) + details.unknown
