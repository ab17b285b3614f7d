"""The messages of point-to-point tasks: to or from which rank, in which group, and how many bytes; and how arguments of rows are read.

Several sends and receives may be launched together (`batch_isend_irecv`, or a coalescing manager). Each leaves a
`record_param_comms` row of its own, and then one kernel carries them all: its launch comes after these rows and inside none of them.
So the rows that hold no launch belong to the next launch of a communication kernel on their thread, unless that is of a collective.

A send or receive of gloo, on a CPU thread, has no such row. The operator that issued it states the other rank as its position in the
group, which is known to be the rank where the job has no other group.
"""

from __future__ import annotations

import json
import re
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.characters import is_whole
from lumos.graph.places import Ranges
from lumos.trace.table import ABSENT, Category, Int32, Int64, Trace, excluding, unique
from lumos.vocabulary import CollectiveKind, DType

if TYPE_CHECKING:
    from collections.abc import Mapping

#: The arguments that hold the shapes and the types of a row's inputs.
SHAPES = ("Input Dims", "Input type")


def shape_bytes(trace: Trace, row: int) -> int:
    """Bytes of a row's first input, from its shapes and types; ABSENT where the trace has none, or it is no tensor."""
    first = _tensor(trace, row)
    return first.elements * first.dtype.bytes if first.place == 0 and first.elements != ABSENT else ABSENT


def shape_elements(trace: Trace, row: int) -> int:
    """Elements of a row's first input that is a tensor or a list of tensors, from its shapes and types; ABSENT where it has none."""
    return _tensor(trace, row).elements


class _Tensor(NamedTuple):
    """The first input that is a tensor or a list of tensors. place: among the inputs. elements: ABSENT where its shape does not say."""

    place: int = ABSENT
    elements: int = ABSENT
    dtype: DType = DType.FP32  # that of a list is not recorded


def _tensor(trace: Trace, row: int) -> _Tensor:
    dims, types = (text(trace, row, key) for key in SHAPES)
    return _Tensor() if dims is None or types is None else _first_tensor(dims, types)


@lru_cache(maxsize=4096)  # a job repeats the same few shapes in every step
def _first_tensor(dims: str, types: str) -> _Tensor:
    for position, (shape, name) in enumerate(zip(json.loads(dims), json.loads(types), strict=False)):
        dtype = DType.FP32 if name == "TensorList" else DType.parse(str(name))
        if dtype is not None:
            tensors = shape if shape and isinstance(shape[0], list) else [shape]
            whole = all(isinstance(size, int) for one in tensors for size in one)
            return _Tensor(position, sum(int(np.prod(one, dtype=np.int64)) for one in tensors) if whole else ABSENT, dtype)
    return _Tensor()


def integer(trace: Trace, row: int, key: str) -> int:
    """Argument `key` of a row as a whole number; ABSENT where the row lacks it or has none."""
    value = text(trace, row, key)
    return int(value) if value is not None and re.fullmatch(r"-?\d{1,18}", value) else ABSENT


def column_of(trace: Trace, rows: Int32 | Int64, key: str) -> Int64:
    """Argument `key` of each row, int64[rows], as its column holds it; ABSENT where the row lacks it."""
    out = np.full(len(rows), ABSENT, np.int64)
    column = trace.args.get(key)
    if column is not None and len(column.rows):
        at = np.minimum(np.searchsorted(column.rows, rows.astype(np.int32)), len(column.rows) - 1)
        there = column.rows[at] == rows
        out[there] = column.values[at[there]]
    return out


def text(trace: Trace, row: int, key: str) -> str | None:
    """Argument `key` of a row as text; None where the row lacks it."""
    column = trace.args.get(key)
    if column is None:
        return None
    at = int(column.rows.searchsorted(np.int32(row)))  # a plain int would convert the whole column at every call
    if at >= len(column.rows) or column.rows[at] != row:
        return None
    value = int(column.values[at])
    return trace.strings[value] if column.kind == "string" else str(value)


#: The two sides of a message.
SIDES = (CollectiveKind.SEND, CollectiveKind.RECEIVE)
#: Position of the other rank among the arguments of `c10d::send` and `c10d::recv_`, after the tensors and the group.
_PEER_ARGUMENT = 2


class Message(NamedTuple):
    """One message of a task. sends: whether this rank sends it. peer: the other rank. group: None where unknown; nbytes: ABSENT where
    unknown."""

    sends: bool
    peer: int
    group: str | None
    nbytes: int


def coalesced_rows(trace: Trace, calls: Int32, source: Int64) -> list[list[int]]:
    """For each communication kernel, launched by calls[i] (ABSENT none), the rows whose sends, receives or collectives it carries
    besides that of source[i], the row around its launch (ABSENT none)."""
    out: list[list[int]] = [[] for _ in calls]
    stated = trace.args.get("Collective name")
    if stated is None:
        return out
    rows = stated.rows[trace.named(lambda name: name == "record_param_comms")[stated.rows]]
    launched = np.flatnonzero(calls >= 0)
    at = calls[launched]
    holding = Ranges(trace, rows).at(trace.lane[at], trace.start[at])  # also where the kernel's own row states the facts
    waiting = excluding(rows, unique(source, holding))
    for lane in unique(trace.lane[waiting]):
        own = waiting[trace.lane[waiting] == lane]
        own = own[np.argsort(trace.start[own], kind="stable")]
        here = launched[trace.lane[calls[launched]] == lane]
        here = here[np.argsort(trace.start[calls[here]], kind="stable")]
        after = np.searchsorted(trace.start[calls[here]], trace.start[own])
        for row, position in zip(own.tolist(), after.tolist(), strict=True):
            by = int(source[here[position]]) if position < len(here) else ABSENT
            if position < len(here) and (by == ABSENT or stated_kind(trace, by) in (*SIDES, CollectiveKind.UNKNOWN)):  # no collective
                out[here[position]].append(row)
    return out


def stated_kind(trace: Trace, row: int) -> CollectiveKind:
    """The kind of communication that a row states, by its arguments or else its name."""
    return CollectiveKind.in_name(text(trace, row, "Collective name") or trace.strings[trace.name[row]])


def stated_bytes(trace: Trace, row: int) -> int:
    """The bytes of this rank's input that a row states; ABSENT where it states none."""
    elements, dtype = integer(trace, row, "In msg nelems"), DType.parse(text(trace, row, "dtype") or "")
    return elements * dtype.bytes if elements != ABSENT and dtype is not None else shape_bytes(trace, row)


def message(trace: Trace, row: int, members: Mapping[str, str]) -> Message | None:
    """The message that a row states; None where it states none, or not its other rank."""
    kind = stated_kind(trace, row)
    peer = max(integer(trace, row, "Src Rank"), integer(trace, row, "Dst Rank"))
    if kind not in SIDES or peer == ABSENT:
        return None
    return Message(kind is CollectiveKind.SEND, peer, group_name(trace, row, members), stated_bytes(trace, row))


def issued_message(trace: Trace, row: int, issuer: int, members: Mapping[str, str]) -> Message | None:
    """The message of `row` on a CPU thread, which the operator `issuer` issued; None where that does not state its other rank."""
    kind = CollectiveKind.in_name(trace.strings[trace.name[row]])
    arguments = text(trace, issuer, "Concrete Inputs") if issuer != ABSENT and kind in SIDES and len(members) <= 1 else None
    values = json.loads(arguments) if arguments else []
    peer = str(values[_PEER_ARGUMENT]) if len(values) > _PEER_ARGUMENT else ""
    return Message(kind is CollectiveKind.SEND, int(peer), None, shape_bytes(trace, row)) if is_whole(peer) else None


def group_name(trace: Trace, row: int, members: Mapping[str, str]) -> str | None:
    """A name that identifies the group of a row on every rank: its name with its members; None where the row states no name.

    The id that new profilers add ("Comms Id") is one of the call, not of the group, and names it only where the call has no number.
    """
    communicator = text(trace, row, "Comms Id")
    if communicator not in (None, "", "0") and integer(trace, row, "Seq") == ABSENT:
        return f"communicator {communicator}"
    name = text(trace, row, "Process Group Name") or text(trace, row, "Process Group ID")
    if name is None:
        return None
    ranks = text(trace, row, "Process Group Ranks") or ""
    if not ranks or "..." in ranks:
        ranks = members.get(name, "")
    return f"{name} {ranks}".strip()


def members_by_group(trace: Trace) -> dict[str, str]:
    """Member lists of the process groups from the file's header, where they are always complete, as text by name."""
    groups = trace.metadata.get("distributedInfo", {}).get("pg_config", ())
    return {str(group["pg_name"]): str(group["ranks"]) for group in groups if group.get("ranks") and "pg_name" in group}


def carried_messages(trace: Trace, rows: Int32, source: Int64, grouped: list[list[int]], issuer: Int32) -> list[tuple[Message, ...]]:
    """The messages of each communication task: row rows[i], whose facts are in row source[i] (ABSENT none), with those that
    grouped[i] adds. issuer: int32[tasks], the operator that issued a task on a CPU thread, ABSENT elsewhere."""
    members = members_by_group(trace)
    out: list[tuple[Message, ...]] = []
    for row, fact, more, by in zip(rows.tolist(), source.tolist(), grouped, issuer.tolist(), strict=True):
        stated = [message(trace, r, members) for r in (*more, *([fact] if fact != ABSENT else []))]
        if trace.category[row] == Category.ANNOTATION:
            stated = [issued_message(trace, row, by, members)]
        out.append(tuple(m for m in stated if m is not None))
    return out
