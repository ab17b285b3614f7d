"""Collectives and point-to-point transfers: which tasks they are, of what kind, how many bytes, in which group.

Profilers write these facts in different places, of which the best one present is read: the arguments copied to the kernel's
row; the `record_param_comms` operator that encloses the launching call; an `nccl:…` annotation around it with input shapes;
the kernel's name alone.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.graph.enclosing import Ranges
from lumos.graph.table import Collectives
from lumos.trace.table import ABSENT, Category, Int32, Int64, Trace
from lumos.vocabulary import CollectiveKind, DType

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

#: Kernels that communicate: all versions of NCCL and RCCL, MSCCL, DeepEP, NVSHMEM, the custom all-reduces of inference servers.
_COMMUNICATION = re.compile(r"(?i)nccl(dev)?kernel|^nccl|mscclkernel|deep_ep::|nvshmem|cross_device_reduce|symm_mem|one_?ccl")


def is_communication(trace: Trace) -> NDArray[np.bool_]:
    """Rows of device work that communicate between ranks, by kernel name or by the profiler's collective arguments."""
    mask = trace.named(_COMMUNICATION.search)
    facts = trace.args.get("Collective name")
    if facts is not None:
        mask[facts.rows] = True
    result: NDArray[np.bool_] = mask & (trace.category == Category.KERNEL)
    return result


#: Ranges in which a CPU thread carries out a collective (gloo, MPI, UCC); in those of NCCL the thread only launches it.
_ON_CPU = re.compile(r"(gloo|mpi|ucc):")


def is_cpu_collective(trace: Trace) -> NDArray[np.bool_]:
    """Annotations in which a CPU thread moves the bytes of a collective. Unlike all other annotations, they are work."""
    mask: NDArray[np.bool_] = trace.named(_ON_CPU.match) & (trace.category == Category.ANNOTATION)
    return mask


#: Operators that issue collectives.
_ISSUING = re.compile(r"c10d::")


def issuers(trace: Trace, rows: Int32) -> Int32:
    """The `c10d::` operator that issued each CPU collective in `rows`; ABSENT without one.

    The k-th collective of a kind and size was issued by the k-th operator of that kind and size before it.
    """
    operators = np.flatnonzero(trace.named(_ISSUING.match) & (trace.category == Category.OPERATOR))
    queues: dict[tuple[CollectiveKind, int], list[int]] = {}
    for row in operators[np.argsort(trace.start[operators], kind="stable")]:
        queues.setdefault((CollectiveKind.in_name(trace.strings[trace.name[row]]), _shape_bytes(trace, int(row))), []).append(int(row))
    out = np.full(len(rows), ABSENT, np.int32)
    for i in np.argsort(trace.start[rows], kind="stable"):
        queue = queues.get((CollectiveKind.in_name(trace.strings[trace.name[rows[i]]]), _shape_bytes(trace, int(rows[i]))))
        if queue and trace.start[queue[0]] <= trace.start[rows[i]]:
            out[i] = queue.pop(0)
    return out


def collectives(trace: Trace, task: Int64, rows: Int32, calls: Int32) -> Collectives | None:
    """Facts of the collectives of one rank: task[i] is row rows[i] of the trace, launched by calls[i] (ABSENT none).

    None if there are none.
    """
    if not len(rows):
        return None
    source = _fact_rows(trace, rows, calls)
    kinds: dict[CollectiveKind, int] = {}
    groups: dict[str, int] = {}
    members = _members(trace)
    facts = [_facts(trace, int(row), int(fact), members) for row, fact in zip(rows, source, strict=True)]
    return Collectives(
        task=task.astype(np.int32),
        kind=np.array([kinds.setdefault(f.kind, len(kinds)) for f in facts], np.int32),
        nbytes=np.array([f.nbytes for f in facts], np.int64),
        group=np.array([ABSENT if f.group is None else groups.setdefault(f.group, len(groups)) for f in facts], np.int32),
        sequence=np.array([f.sequence for f in facts], np.int64),
        peer=np.array([f.peer for f in facts], np.int32),
        kinds=tuple(kinds),
        groups=tuple(groups),
        size=np.array([f.size for f in facts], np.int32),
    )


def _fact_rows(trace: Trace, rows: Int32, calls: Int32) -> Int64:
    """The row that holds each collective's facts: itself, or the operator or annotation around its launching call."""
    out = np.where(is_cpu_collective(trace)[rows], rows, ABSENT).astype(np.int64)
    own = trace.args.get("Collective name")
    if own is not None:
        out[np.isin(rows, own.rows)] = rows[np.isin(rows, own.rows)]
    has_facts = np.zeros(len(trace), bool)
    if own is not None:
        has_facts[own.rows] = True
    for wanted in ("record_param_comms", "nccl:"):
        ranges = trace.named(re.compile(wanted).match) & trace.is_any(Category.OPERATOR, Category.ANNOTATION)
        if wanted == "record_param_comms":  # in old traces it has no facts: the annotation inside it has more
            ranges &= has_facts
        around = Ranges(trace, np.flatnonzero(ranges))
        for i in np.flatnonzero((out == ABSENT) & (calls >= 0)):
            out[i] = around.at(int(trace.lane[calls[i]]), int(trace.start[calls[i]]))
    return out


class _Facts(NamedTuple):
    """What is known of one collective; see `Collectives`."""

    kind: CollectiveKind
    nbytes: int = ABSENT
    group: str | None = None
    sequence: int = ABSENT
    peer: int = ABSENT
    size: int = ABSENT


def _facts(trace: Trace, row: int, fact: int, members: Mapping[str, str]) -> _Facts:
    """The facts of the collective in `row`, read from row `fact`."""
    own = CollectiveKind.in_name(trace.strings[trace.name[row]])
    if fact == ABSENT:
        return _Facts(own)
    text = _text(trace, fact, "Collective name") or trace.strings[trace.name[fact]]
    named = CollectiveKind.in_name(text)
    elements = _integer(trace, fact, "In msg nelems")
    dtype = DType.parse(_text(trace, fact, "dtype") or "")
    nbytes = elements * dtype.bytes if elements != ABSENT and dtype is not None else _shape_bytes(trace, fact)
    one_sided = named in (CollectiveKind.SEND, CollectiveKind.RECEIVE)
    peer = max(_integer(trace, fact, "Src Rank"), _integer(trace, fact, "Dst Rank")) if one_sided else ABSENT
    return _Facts(
        own if named is CollectiveKind.UNKNOWN else named,
        nbytes,
        _group(trace, fact, members),
        _integer(trace, fact, "Seq"),
        peer,
        _integer(trace, fact, "Group size"),
    )


def _group(trace: Trace, fact: int, members: Mapping[str, str]) -> str | None:
    """A name that identifies the communicator on every rank: its id, else its name with its members."""
    communicator = _text(trace, fact, "Comms Id")
    if communicator not in (None, "", "0"):
        return f"communicator {communicator}"
    name = _text(trace, fact, "Process Group Name") or _text(trace, fact, "Process Group ID")
    if name is None:
        return None
    ranks = _text(trace, fact, "Process Group Ranks") or ""
    if not ranks or "..." in ranks:
        ranks = members.get(name, "")
    return f"{name} {ranks}".strip()


def _members(trace: Trace) -> dict[str, str]:
    """Member lists of the process groups from the file's header, where they are always complete."""
    header = trace.metadata.get("distributedInfo")
    configured = header.get("pg_config") if isinstance(header, dict) else None
    groups = configured if isinstance(configured, list) else []
    return {str(g["pg_name"]): str(g["ranks"]) for g in groups if isinstance(g, dict) and g.get("ranks") and "pg_name" in g}


def _shape_bytes(trace: Trace, row: int) -> int:
    """Bytes of a row's first input, from its shapes and types; ABSENT where the trace has none."""
    dims, types = _text(trace, row, "Input Dims"), _text(trace, row, "Input type")
    if dims is None or types is None:
        return ABSENT
    shapes, names = json.loads(dims), json.loads(types)
    if not shapes or not names:
        return ABSENT
    first = shapes[0] if shapes[0] and isinstance(shapes[0][0], list) else [shapes[0]]  # a list of tensors, or one
    dtype = DType.FP32 if names[0] == "TensorList" else DType.parse(str(names[0]))  # a list's element type is not recorded
    if dtype is None or not all(isinstance(d, int) for shape in first for d in shape):
        return ABSENT
    return sum(int(np.prod(shape, dtype=np.int64)) for shape in first) * dtype.bytes


def _integer(trace: Trace, row: int, key: str) -> int:
    text = _text(trace, row, key)
    return int(text) if text is not None and re.fullmatch(r"-?\d{1,18}", text) else ABSENT


def _text(trace: Trace, row: int, key: str) -> str | None:
    column = trace.args.get(key)
    if column is None:
        return None
    at = int(column.rows.searchsorted(np.int32(row)))  # a plain int would convert the whole column at every call
    if at >= len(column.rows) or column.rows[at] != row:
        return None
    value = int(column.values[at])
    return trace.strings[value] if column.kind == "string" else str(value)
