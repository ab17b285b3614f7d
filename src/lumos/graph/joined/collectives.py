"""Collectives and point-to-point transfers: which tasks they are, of what kind, how many bytes, in which group.

Profilers write these facts in different places, of which the best one present is read: the arguments copied to the kernel's
row; the `record_param_comms` operator that encloses the launching call, or those of a grouped launch before it
(`graph.joined.messages`); an `nccl:…` annotation around it with input shapes; the kernel's name alone.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.graph.joined.messages import (
    SHAPES,
    SIDES,
    Message,
    carried_messages,
    coalesced_rows,
    column_of,
    group_name,
    integer,
    members_by_group,
    shape_elements,
    stated_bytes,
    stated_kind,
)
from lumos.graph.kernel_names import KernelClass, kernel_class
from lumos.graph.lists import numbered
from lumos.graph.places import Ranges
from lumos.graph.table import Collectives
from lumos.trace.table import ABSENT, Category, Int32, Int64, Trace
from lumos.vocabulary import CollectiveKind

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray


def is_communication(trace: Trace) -> NDArray[np.bool_]:
    """Rows of device work that communicate between ranks, by kernel name or by the profiler's collective arguments."""
    kernel = trace.category == Category.KERNEL
    named = np.zeros(len(trace.strings), bool)
    names = trace.names_of(kernel)
    named[names] = [kernel_class(trace.strings[i]) is KernelClass.COLLECTIVE for i in names]
    mask = named[trace.name]
    facts = trace.args.get("Collective name")
    if facts is not None:
        mask[facts.rows] = True
    return np.asarray(mask & kernel)


#: Ranges in which a CPU thread carries out a collective (gloo, MPI, UCC); in those of NCCL the thread only launches it.
_ON_CPU = re.compile(r"(gloo|mpi|ucc):")


def is_cpu_collective(trace: Trace) -> NDArray[np.bool_]:
    """Annotations in which a CPU thread moves the bytes of a collective. Unlike all other annotations, they are work."""
    return np.asarray(trace.named(_ON_CPU.match) & (trace.category == Category.ANNOTATION))


#: Their names.
_ISSUING = re.compile(r"c10d::")


def is_issuing(trace: Trace) -> NDArray[np.bool_]:
    """Operators that issue collectives."""
    return np.asarray(trace.named(_ISSUING.match) & (trace.category == Category.OPERATOR))


def issuers(trace: Trace, rows: Int32) -> Int32:
    """The `c10d::` operator that issued each CPU collective in `rows`; ABSENT without one.

    The k-th collective of a kind and number of elements was issued by the k-th such operator before it. An operator that takes a list of
    tensors does not say of which type they are.
    """
    operators = np.flatnonzero(is_issuing(trace))
    queues: dict[tuple[CollectiveKind, int], list[int]] = {}
    operators = operators[np.argsort(trace.start[operators], kind="stable")]
    for row, fact in zip(operators.tolist(), _kinds_and_elements(trace, operators), strict=True):
        queues.setdefault(fact, []).append(row)
    out = np.full(len(rows), ABSENT, np.int32)
    facts = _kinds_and_elements(trace, rows)
    for i in np.argsort(trace.start[rows], kind="stable").tolist():
        queue = queues.get(facts[i])
        if queue and trace.start[queue[0]] <= trace.start[rows[i]]:
            out[i] = queue.pop(0)
    return out


def _kinds_and_elements(trace: Trace, rows: Int32 | Int64) -> list[tuple[CollectiveKind, int]]:
    """What rows have in common with those of their issuers: found once for all rows with the same name, shapes and types."""
    number = numbered(trace.name[rows], *(column_of(trace, rows, key) for key in SHAPES))
    _, first = np.unique(number, return_index=True)
    facts = [_kind_and_elements(trace, int(row)) for row in rows[first]]
    return [facts[i] for i in number.tolist()]


def _kind_and_elements(trace: Trace, row: int) -> tuple[CollectiveKind, int]:
    """What a row and the row of its issuer have in common. A barrier moves nothing, whatever tensor its issuer has."""
    kind = CollectiveKind.in_name(trace.strings[trace.name[row]])
    return kind, ABSENT if kind is CollectiveKind.BARRIER else shape_elements(trace, row)


def collectives(trace: Trace, task: Int64, rows: Int32, calls: Int32) -> Collectives | None:
    """Facts of the collectives of one rank: task[i] is row rows[i] of the trace, launched by calls[i] (ABSENT none).

    None if there are none.
    """
    if not len(rows):
        return None
    source = _fact_rows(trace, rows, calls)
    grouped = coalesced_rows(trace, calls, source)
    on_cpu = np.flatnonzero(is_cpu_collective(trace)[rows])
    issuer = np.full(len(rows), ABSENT, np.int32)
    issuer[on_cpu] = issuers(trace, rows[on_cpu])
    carried = carried_messages(trace, rows, source, grouped, issuer)
    kinds: dict[CollectiveKind, int] = {}
    groups: dict[str, int] = {}
    members = members_by_group(trace)
    facts = [
        _of_messages(messages) if messages else _facts(trace, int(row), int(fact), more, members)
        for row, fact, more, messages in zip(rows, source, grouped, carried, strict=True)
    ]

    def index(group: str | None) -> int:
        return ABSENT if group is None else groups.setdefault(group, len(groups))

    return Collectives(
        task=task.astype(np.int32),
        kind=np.array([kinds.setdefault(f.kind, len(kinds)) for f in facts], np.int32),
        nbytes=np.array([f.nbytes for f in facts], np.int64),
        group=np.array([index(f.group) for f in facts], np.int32),
        sequence=np.array([f.sequence for f in facts], np.int64),
        peer=np.array([f.peer for f in facts], np.int32),
        kinds=tuple(kinds),
        messages=tuple((i, m.sends, m.peer, index(m.group), m.nbytes) for i, messages in enumerate(carried) for m in messages),
        groups=tuple(groups),
        size=np.array([f.size for f in facts], np.int32),
    )


def _fact_rows(trace: Trace, rows: Int32, calls: Int32) -> Int64:
    """The row that holds each collective's facts: itself, or the operator or annotation around its launching call."""
    out = np.where(is_cpu_collective(trace)[rows], rows, ABSENT).astype(np.int64)
    own = trace.args.get("Collective name")
    has_facts = np.zeros(len(trace), bool)
    if own is not None:
        has_facts[own.rows] = True
    out[has_facts[rows]] = rows[has_facts[rows]]
    for wanted in ("record_param_comms", "nccl:"):
        ranges = trace.named(re.compile(wanted).match) & trace.is_any(Category.OPERATOR, Category.ANNOTATION)
        if wanted == "record_param_comms":  # in old traces it has no facts: the annotation inside it has more
            ranges &= has_facts
        open_ = np.flatnonzero((out == ABSENT) & (calls >= 0))
        out[open_] = Ranges(trace, np.flatnonzero(ranges)).at(trace.lane[calls[open_]], trace.start[calls[open_]])
    return out


class _Facts(NamedTuple):
    """What is known of one collective; see `Collectives`."""

    kind: CollectiveKind
    nbytes: int = ABSENT
    group: str | None = None
    sequence: int = ABSENT
    peer: int = ABSENT
    size: int = ABSENT


def _facts(trace: Trace, row: int, fact: int, more: list[int], members: Mapping[str, str]) -> _Facts:
    """The facts of the collective in `row`, read from row `fact`, or from the rows `more` of calls that were launched together."""
    own = CollectiveKind.in_name(trace.strings[trace.name[row]])
    if more and (fact == ABSENT or stated_kind(trace, fact) is CollectiveKind.UNKNOWN):
        first = _facts(trace, row, more[0], [], members)
        sizes = [stated_bytes(trace, r) for r in more]
        return first._replace(nbytes=sum(sizes) if min(sizes) >= 0 else ABSENT)
    if fact == ABSENT:
        return _Facts(own)
    named = stated_kind(trace, fact)
    if named in SIDES or (named is CollectiveKind.UNKNOWN and own.is_transfer):  # the group does not say which two of its ranks meet
        return _Facts(own if named is CollectiveKind.UNKNOWN else named, stated_bytes(trace, fact))
    return _Facts(
        own if named is CollectiveKind.UNKNOWN else named,
        stated_bytes(trace, fact),
        group_name(trace, fact, members),
        integer(trace, fact, "Seq"),
        ABSENT,
        integer(trace, fact, "Group size"),
    )


def _of_messages(messages: Sequence[Message]) -> _Facts:
    """The facts of a task that carries messages: of one, its side and its other rank; of several, the bytes that this rank sends."""
    first = messages[0]
    if len(messages) == 1:
        return _Facts(SIDES[0] if first.sends else SIDES[1], first.nbytes, first.group, peer=first.peer)
    sides = {m.sends for m in messages}
    sizes = [m.nbytes for m in messages if m.sends or True not in sides]
    kind = CollectiveKind.SEND_RECEIVE
    return _Facts(kind, sum(sizes) if min(sizes) >= 0 else ABSENT, first.group if len({m.group for m in messages}) == 1 else None)
