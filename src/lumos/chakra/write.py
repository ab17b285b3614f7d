"""Write a workload as `.et` files, one per rank, and a file of the communicators; or a set that was read as it was read.

Durations are whole microseconds in Chakra. The start and the end of every node are rounded, and the duration is their difference: the
rounded times satisfy every dependency, and the step is right to 1 us however many nodes it has. With `exact_ns` the nanoseconds stand
beside them, in attributes that simulators pass over.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from lumos.chakra.columns import ByteStrings, chosen, field, headed, interleaved, number_lists, numbers, strings, words
from lumos.characters import is_whole
from lumos.errors import UsageError
from lumos.graph.lists import offsets
from lumos.graph.table import Kind
from lumos.output_files import check_only_own, new_folder
from lumos.trace.chakra.et import FORMAT
from lumos.trace.chakra.protobuf import frame, varint
from lumos.trace.chakra.schema import Attribute, ChakraNode, Metadata, NodeType
from lumos.trace.chakra.wire import encode_metadata, encode_node
from lumos.trace.table import ABSENT, Int64, Origin

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from lumos.chakra.workload import Workload
    from lumos.graph.table import Step
    from lumos.trace.table import Job

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

#: How many nodes are encoded together.
AT_ONCE = 1 << 14
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
    extra: Mapping[str, bytes] | None = None,
    origin: Origin | None = None,
) -> None:
    """Write `job.R.et` for every rank, groups.json and the `extra` files, by name, to `folder`.

    Writes all files or none. LumosError where the folder cannot be written, UsageError where it holds another set.
    """
    said = () if origin is None else (Attribute("lumos", "string", msgspec.json.encode(origin.said).decode()),)
    timed = (*_timed(workload), *said)
    metadata = {rank: _metadata(workload, rank, timed, exact_ns) for rank in range(len(workload.ranks))}
    groups = {str(i): list(ranks) for i, ranks in enumerate(workload.groups, 1)}
    _write(folder, metadata, node_frames(workload, exact_ns), groups, extra or {})


def write_again(job: Job, folder: Path) -> None:
    """Write a file for every rank of a Chakra job, and its communicators. UsageError for another job, LumosError where it cannot."""
    if any(trace.metadata.get("format") != FORMAT for trace in job.traces):
        raise UsageError("only a Chakra set is written as it was read; `lumos chakra export` makes one of a job first")
    said = {rank: trace.metadata for rank, trace in zip(job.ranks, job.traces, strict=True)}
    metadata = {rank: Metadata(str(one["chakraVersion"]), one["chakraAttributes"]) for rank, one in said.items()}
    frames = ((rank, b"".join(frame(encode_node(node)) for node in one["chakra"])) for rank, one in said.items())
    _write(folder, metadata, frames, {g.name: list(g.ranks) for g in job.groups if is_whole(g.name) and g.ranks}, {})


def idle_rank() -> bytes:
    """The file of a rank that does nothing for a microsecond."""
    idle = ChakraNode(1, PREFIX[NodeType.COMP] + "idle", duration_micros=1, attrs=(Attribute("is_cpu_op", "bool", True),))
    return frame(encode_metadata(Metadata())) + frame(encode_node(idle))


def _write(
    folder: Path,
    metadata: Mapping[int, Metadata],
    frames: Iterable[tuple[int, bytes]],
    groups: Mapping[str, list[int]],
    extra: Mapping[str, bytes],
) -> None:
    """metadata: of each rank's file. frames: what follows in the file of a rank, some at a time."""
    check_only_own(folder, "*.et", [*map(file_name, metadata), *extra])
    with new_folder(folder) as draft:
        for rank, first in metadata.items():
            (draft / file_name(rank)).write_bytes(frame(encode_metadata(first)))
        for rank, more in frames:
            with (draft / file_name(rank)).open("ab") as file:
                file.write(more)
        for name, content in {GROUPS_FILE: msgspec.json.encode(groups), **extra}.items():
            (draft / name).write_bytes(content)


def node_frames(workload: Workload, exact_ns: bool = False) -> Iterator[tuple[int, bytes]]:
    """The position of a rank and some of its nodes, each behind its length; in order. The nodes of a rank are numbered from 1."""
    names = [name.encode("utf-8", "replace").decode() for name in workload.names]
    heads = strings([encode_node(ChakraNode(0, prefix + name, kind)) for kind, prefix in PREFIX.items() for name in names])
    details = strings([encode_node(ChakraNode(0, "", 0, (), (), 0, 0, *of_node)) for of_node in workload.details])
    for low in range(0, len(workload), AT_ONCE):
        here = slice(low, min(low + AT_ONCE, len(workload)))
        head = (workload.type[here].astype(np.int64) - min(PREFIX)) * len(names) + workload.name[here]
        columns = [chosen(heads, head), *_fields(workload, here), *_attributes(workload, here, exact_ns)]
        if workload.detail is not None:
            columns.append(chosen(details, workload.detail[here]))
        frames = interleaved(headed(varint, interleaved(columns)))
        cuts = offsets(frames.size)[np.clip(workload.rank_offset, here.start, here.stop) - low]
        yield from ((rank, frames.flat[a:b].tobytes()) for rank, (a, b) in enumerate(pairwise(cuts.tolist())) if a < b)


def _fields(workload: Workload, here: slice) -> Iterator[ByteStrings]:
    """The numbers, dependencies, starts and durations of some nodes."""
    start, duration, bounds = workload.start[here], workload.duration[here], workload.dep_offset[here.start : here.stop + 1]
    number, begin = np.arange(here.start, here.stop), _microseconds(start)
    before = workload.rank_offset[np.searchsorted(workload.rank_offset, number, side="right") - 1] - 1  # nodes of other ranks, less one
    yield from field(1, number - before)
    yield from number_lists(5, workload.dep[bounds[0] : bounds[-1]] - np.repeat(before, np.diff(bounds)), bounds - bounds[0])
    yield from field(6, begin)
    yield from field(7, np.where(duration == ABSENT, 0, _microseconds(start + np.maximum(duration, 0)) - begin))


def _attributes(workload: Workload, here: slice, exact_ns: bool) -> Iterator[ByteStrings]:
    """The attributes of some nodes that columns of a workload hold."""
    cpu, queue = workload.on_cpu[here], workload.queue[here]
    yield from words("is_cpu_op", (False, True), cpu.astype(np.int64))
    yield from numbers("tid", np.where(cpu, queue, ABSENT))
    yield from numbers("stream", np.where(cpu, ABSENT, queue))
    yield from words("kind", [kind.name.lower() for kind in Kind], workload.kind[here])
    yield from _communication(workload, here)
    yield from numbers("release_ns", workload.release[here])
    yield from _costs(workload, here)
    if exact_ns:
        yield from numbers("start_ns", np.maximum(workload.start[here], 0))
        yield from numbers("duration_ns", np.maximum(workload.duration[here], 0))


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
    timers = tuple(sorted(queue for of_rank, queue in workload.timers if of_rank == rank))
    if timers:
        attrs.append(Attribute("timers", "int64_list", timers))
    return Metadata(attrs=tuple(attrs))


def _rounded_mark(step: Step) -> tuple[str, int, int]:
    """The name, begin and end of a step, ns, with the first and the last start in it rounded as those of the nodes are."""
    first, last = (1000 * _microseconds(np.array([step.start, step.end - 1]))).tolist()
    return step.name, first, last + 1


def _communication(workload: Workload, here: slice) -> Iterator[ByteStrings]:
    """The attributes of communication, for each of some nodes."""
    facts = workload.communication
    rows = slice(*np.searchsorted(facts.node, (here.start, here.stop)).tolist())
    node, types = facts.node[rows], workload.type[facts.node[rows]]
    collective, own = types == NodeType.COLL, np.searchsorted(workload.rank_offset, node, side="right") - 1

    def column(values: NDArray[Any], known: NDArray[np.bool_] | bool = True) -> Int64:
        out = np.full(here.stop - here.start, ABSENT, np.int64)
        out[node - here.start] = np.where(known, values, ABSENT)
        return out

    yield from numbers("comm_size", column(facts.size[rows]))
    yield from numbers("comm_type", column(facts.type[rows], collective))
    yield from words("pg_name", [str(number) for number in range(1, len(workload.groups) + 1)], column(facts.group[rows], collective))
    for name, source in (("comm_src", NodeType.SEND), ("comm_dst", NodeType.RECV)):
        yield from numbers(name, column(np.where(types == source, own, facts.peer[rows]), ~collective))
    yield from numbers("comm_tag", column(facts.tag[rows], ~collective))
    yield from words("collective", facts.kinds, column(facts.kind[rows]))


def _costs(workload: Workload, here: slice) -> Iterator[ByteStrings]:
    """The operations and bytes of some nodes.

    Of each there is one at least: in roofline mode a simulator divides the one by the other, and need not accept a node without any.
    """
    operations, moved = workload.operations[here], workload.bytes[here]
    known = ((operations != ABSENT) | (moved != ABSENT)) & ~np.isin(workload.type[here], (NodeType.SEND, NodeType.RECV, NodeType.COLL))
    yield from numbers("num_ops", np.where(known, np.maximum(operations, 1), ABSENT))
    yield from numbers("tensor_size", np.where(known, np.maximum(moved, 1), ABSENT), "uint64")
