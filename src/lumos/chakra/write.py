"""Write a workload as `.et` files, one per rank, and a file of the communicators; or a set that was read as it was read.

Durations are whole microseconds in Chakra. The start and the end of every node are rounded, and the duration is their difference: the
rounded times satisfy every dependency, and the step is right to 1 us however many nodes it has. With `exact_ns` the nanoseconds are kept as
an operation count, which a simulator in roofline mode with a peak of 1 TFLOP/s turns into time: 1,000 operations are one nanosecond.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from lumos.chakra.workload import Details
from lumos.characters import is_whole
from lumos.errors import UsageError
from lumos.graph.table import Kind
from lumos.output_files import check_only_own, new_folder
from lumos.trace.chakra.et import FORMAT
from lumos.trace.chakra.protobuf import frame
from lumos.trace.chakra.schema import Attribute, ChakraNode, Metadata, NodeType
from lumos.trace.chakra.wire import encode_metadata, encode_node
from lumos.trace.table import ABSENT, Int64, Origin

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from lumos.chakra.workload import Workload
    from lumos.graph.table import Step
    from lumos.trace.table import Job

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
    said = () if origin is None else (Attribute("lumos", "string", msgspec.json.encode(origin.said).decode()),)
    timed = (*_timed(workload), *said)
    ranks = {r: (_metadata(workload, r, timed, exact_ns), rank_nodes(workload, r, exact_ns)) for r in range(len(workload.ranks))}
    groups = {str(i): list(ranks) for i, ranks in enumerate(workload.groups, 1)}
    _write(folder, ranks, groups, extra or {})


def write_again(job: Job, folder: Path) -> None:
    """Write a file for every rank of a Chakra job, and its communicators. UsageError for another job, LumosError where it cannot."""
    if any(trace.metadata.get("format") != FORMAT for trace in job.traces):
        raise UsageError("only a Chakra set is written as it was read; `lumos chakra export` makes one of a job first")
    said = [trace.metadata for trace in job.traces]
    ranks = {
        rank: (Metadata(str(one["chakraVersion"]), one["chakraAttributes"]), iter(one["chakra"]))
        for rank, one in zip(job.ranks, said, strict=True)
    }
    _write(folder, ranks, {g.name: list(g.ranks) for g in job.groups if is_whole(g.name) and g.ranks}, {})


def _write(
    folder: Path, ranks: Mapping[int, tuple[Metadata, Iterator[ChakraNode]]], groups: Mapping[str, list[int]], extra: Mapping[str, str]
) -> None:
    check_only_own(folder, "*.et", map(file_name, ranks))
    with new_folder(folder) as draft:
        for rank, (metadata, nodes) in ranks.items():
            with (draft / file_name(rank)).open("wb") as file:
                file.write(frame(encode_metadata(metadata)))
                file.writelines(frame(encode_node(node)) for node in nodes)
        (draft / GROUPS_FILE).write_bytes(msgspec.json.encode(groups))
        for name, text in extra.items():
            (draft / name).write_text(text)


def rank_nodes(workload: Workload, rank: int, exact_ns: bool = False) -> Iterator[ChakraNode]:
    """The nodes of the rank at a position, numbered from 1."""
    low, high = (int(i) for i in workload.rank_offset[rank : rank + 2])
    here = slice(low, high)
    start, duration, queue = (column[here] for column in (workload.start, workload.duration, workload.queue))
    cpu, begin = workload.on_cpu[here], _microseconds(start)
    lasts = np.where(duration == ABSENT, 0, _microseconds(start + np.maximum(duration, 0)) - begin)
    names = [name.encode("utf-8", "replace").decode() for name in workload.names]
    detail = np.full(high - low, ABSENT) if workload.detail is None else workload.detail[here]
    bounds = (workload.dep_offset[low : high + 1] - workload.dep_offset[low]).tolist()
    deps = (workload.dep[workload.dep_offset[low] : workload.dep_offset[high]] - (low - 1)).tolist()
    columns = (workload.type[here], workload.name[here], begin, lasts, detail)
    attributes = (
        _chosen([Attribute("is_cpu_op", "bool", value) for value in (False, True)], cpu),
        _numbers("tid", np.where(cpu, queue, ABSENT)),
        _numbers("stream", np.where(cpu, ABSENT, queue)),
        _texts("kind", [kind.name.lower() for kind in Kind], workload.kind[here]),
        *_communication(workload, rank, low, high),
        _numbers("release_ns", workload.release[here]),
        *_costs(workload, here, exact_ns),
    )
    details = (*workload.details, Details())  # ABSENT is the last
    rows = zip(pairwise(bounds), zip(*(column.tolist() for column in columns), strict=True), zip(*attributes, strict=True), strict=True)
    for number, ((first, last), (kind, name, begins, time, detailed), attrs) in enumerate(rows, 1):
        inputs, outputs, more, unknown = details[detailed]
        whole, awaited = (*filter(None, attrs), *more), tuple(deps[first:last])
        yield ChakraNode(number, PREFIX[kind] + names[name], kind, (), awaited, begins, time, inputs, outputs, whole, unknown)


def _numbers(name: str, values: Int64, kind: str = "int64") -> list[Attribute | None]:
    """Per value an attribute; None where it is ABSENT."""
    return [Attribute(name, kind, value) if value >= 0 else None for value in values.tolist()]


def _texts(name: str, table: Sequence[str], index: NDArray[Any]) -> list[Attribute | None]:
    """Per node an attribute with the text at its place in the table; None where the place is ABSENT."""
    return _chosen([Attribute(name, "string", text) for text in table], index)


def _chosen(attributes: list[Attribute], index: NDArray[Any]) -> list[Attribute | None]:
    """Per node the entry at its place; None where the place is ABSENT, which is -1."""
    table = [*attributes, None]
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


def _communication(workload: Workload, rank: int, low: int, high: int) -> Iterator[list[Attribute | None]]:
    """The attributes of communication, per node of a rank."""
    facts = workload.communication
    rows = slice(*np.searchsorted(facts.node, (low, high)).tolist())
    node, types = facts.node[rows] - low, workload.type[facts.node[rows]]

    def column(values: NDArray[Any], of: NodeType | None = None) -> Int64:
        out = np.full(high - low, ABSENT, np.int64)
        out[node] = values if of is None else np.where(types == of, values, ABSENT)
        return out

    yield _numbers("comm_size", column(facts.size[rows]))
    yield _numbers("comm_type", column(facts.type[rows], NodeType.COLL))
    yield _texts("pg_name", [str(number) for number in range(1, len(workload.groups) + 1)], column(facts.group[rows], NodeType.COLL))
    own = np.full(len(node), rank)
    for name, source in (("comm_src", NodeType.SEND), ("comm_dst", NodeType.RECV)):
        yield _numbers(name, column(np.where(types == NodeType.COLL, ABSENT, np.where(types == source, own, facts.peer[rows]))))
    yield _numbers("comm_tag", column(np.where(types == NodeType.COLL, ABSENT, facts.tag[rows])))
    yield _texts("collective", facts.kinds, column(facts.kind[rows]))


def _costs(workload: Workload, here: slice, exact_ns: bool) -> Iterator[list[Attribute | None]]:
    """Per node its operations and bytes, or its exact times in their place.

    Of each there is one at least: in roofline mode a simulator divides the one by the other, and need not accept a node without any.
    """
    types, duration = workload.type[here], workload.duration[here]
    operations, moved = workload.operations[here], workload.bytes[here]
    known = ((operations != ABSENT) | (moved != ABSENT)) & ~np.isin(types, (NodeType.SEND, NodeType.RECV, NodeType.COLL))
    if exact_ns:
        known = types == NodeType.COMP
        operations, moved = OPERATIONS_PER_NS * duration, np.ones(len(types), np.int64)
        yield _numbers("start_ns", np.maximum(workload.start[here], 0))
        yield _numbers("duration_ns", np.where(known, ABSENT, np.maximum(duration, 0)))
    yield _numbers("num_ops", np.where(known, np.maximum(operations, 1), ABSENT))
    yield _numbers("tensor_size", np.where(known, np.maximum(moved, 1), ABSENT), "uint64")
