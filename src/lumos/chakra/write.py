"""Write a workload as `.et` files, one per rank, and a file of the communicators; or a set that was read as it was read.

Durations are whole microseconds in Chakra. The start and the end of every node are rounded, and the duration is their difference: the
rounded times satisfy every dependency, and the step is right to 1 us however many nodes it has. With `exact_ns` the nanoseconds stand
beside them, in attributes that simulators pass over.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from lumos.chakra.workload import COMMUNICATION, Details
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
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from lumos.chakra.workload import Workload
    from lumos.graph.table import Step
    from lumos.trace.table import Job

#: Chakra's timeline visualiser recognises node types by these words in the name.
PREFIX = {kind: f"{'COMM_' if kind in COMMUNICATION else ''}{kind.name}_NODE_" for kind in NodeType}

#: The attributes that are written from the columns of a workload, in this order, and their types; and those that hold exact times.
_TRANSFERS = {"comm_size": "int64", "comm_type": "int64", "pg_name": "string", "comm_src": "int64", "comm_dst": "int64"}
_TRANSFERS |= {"comm_tag": "int64", "collective": "string"}
_AMOUNTS = {"num_ops": "int64", "tensor_size": "uint64"}
_OF_ALL = {"is_cpu_op": "bool", "tid": "int64", "stream": "int64", "kind": "string"}
_WRITTEN = {**_OF_ALL, **_TRANSFERS, "release_ns": "int64", **_AMOUNTS}
_EXACT = ("start_ns", "duration_ns")
#: Those of compute and of memory nodes, and of communication.
OF_WORK, OF_COMMUNICATION = ({*_WRITTEN, *_EXACT}.difference(others) for others in (_TRANSFERS, _AMOUNTS))

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
    """The position of every rank and its nodes, numbered from 1, each behind its length."""
    details = (*workload.details, Details())  # ABSENT is the last
    numbers = [str(group) for group in range(1, len(workload.groups) + 1)]
    words = {"kind": [kind.name.lower() for kind in Kind], "pg_name": numbers, "collective": workload.communication.kinds}

    @lru_cache(1 << 16)  # layers, microbatches and ranks are alike
    def said(of: int, name: int, detail: int, *values: int) -> bytes:
        """What a node says but its number, what it waits for and its times."""
        inputs, outputs, more, unknown = details[detail]
        known = ((key, value) for key, value in zip(_WRITTEN, values, strict=True) if value != ABSENT)
        attrs = (*(Attribute(key, _WRITTEN[key], words[key][value] if key in words else value) for key, value in known), *more)
        text = PREFIX[NodeType(of)] + workload.names[name].encode("utf-8", "replace").decode()
        return encode_node(ChakraNode(0, text, of, inputs=inputs, outputs=outputs, attrs=attrs, unknown=unknown))

    for rank, (low, high) in enumerate(pairwise(workload.rank_offset.tolist())):
        start, duration, bounds = workload.start[low:high], workload.duration[low:high], workload.dep_offset[low : high + 1]
        begin, exact = _microseconds(start), np.maximum((start, duration), 0).T.tolist() if exact_ns else [()] * (high - low)
        lasts = np.where(duration == ABSENT, 0, _microseconds(start + np.maximum(duration, 0)) - begin)
        deps = (workload.dep[bounds[0] : bounds[-1]] - (low - 1)).tolist()
        columns = zip(*(column.tolist() for column in _columns(workload, rank, low, high)), strict=True)
        rows = zip(pairwise((bounds - bounds[0]).tolist()), begin.tolist(), lasts.tolist(), exact, columns, strict=True)
        frames = []
        for number, ((first, last), begins, takes, ns, row) in enumerate(rows, 1):
            attrs = tuple(Attribute(name, "int64", value) for name, value in zip(_EXACT, ns, strict=False))
            node = ChakraNode(number, "", 0, (), tuple(deps[first:last]), begins, takes, attrs=attrs)
            frames.append(frame(encode_node(node) + said(*row)))
        yield rank, b"".join(frames)


def _columns(workload: Workload, rank: int, low: int, high: int) -> Iterator[NDArray[Any]]:
    """What the nodes of a rank say, ABSENT where nothing.

    Of operations and bytes each has one at least where one is known: in roofline mode a simulator divides the one by the other, and need
    not accept a node without any.
    """
    here, facts = slice(low, high), workload.communication
    rows = slice(*np.searchsorted(facts.node, (low, high)).tolist())
    types, amounts = workload.type[here], np.stack((workload.operations[here], workload.bytes[here]))
    yield from (types, workload.name[here], np.full(high - low, ABSENT) if workload.detail is None else workload.detail[here])
    cpu, queue = workload.on_cpu[here], workload.queue[here]
    yield from (cpu, np.where(cpu, queue, ABSENT), np.where(cpu, ABSENT, queue), workload.kind[here])
    node, sends, receives = facts.node[rows] - low, *(types[facts.node[rows] - low] == kind for kind in (NodeType.SEND, NodeType.RECV))
    peer, alone = facts.peer[rows], ~sends & ~receives
    source, target = (np.where(alone, ABSENT, np.where(own, rank, peer)) for own in (sends, receives))
    of_kind = (facts.size[rows], np.where(alone, facts.type[rows], ABSENT), np.where(alone, facts.group[rows], ABSENT))
    for values in (*of_kind, source, target, np.where(alone, ABSENT, facts.tag[rows]), facts.kind[rows]):
        out = np.full(high - low, ABSENT, np.int64)
        out[node] = values
        yield out
    yield workload.release[here]
    known = (amounts != ABSENT).any(axis=0) & ~np.isin(types, COMMUNICATION)
    yield from np.where(known, np.maximum(amounts, 1), ABSENT)


def _microseconds(ns: Int64) -> Int64:
    return np.asarray((np.maximum(ns, 0) + 500) // 1000)


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
