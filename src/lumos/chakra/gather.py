"""Gather the traces of `.et` files into one workload: resolve dependencies, and order the nodes so that they are respected.

Many tools write such sets. What a set leaves open is decided as simulators do: a node runs on the device unless
`is_cpu_op` says otherwise; all compute of a device that names no stream shares one; a group that is absent, empty or "0"
is all ranks. A collective that runs "on the CPU" is the call that issued it, not the transfer.
"""

from __future__ import annotations

import heapq
from contextlib import suppress
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from lumos.chakra.collectives import EAGER, chakra_kind
from lumos.chakra.workload import COMMUNICATION, MEMORY, Communication, Details, Workload
from lumos.chakra.write import OF_COMMUNICATION, OF_WORK
from lumos.characters import is_whole
from lumos.diagnostics import Diagnostic
from lumos.errors import TraceError
from lumos.graph.lists import distinct, list_of, offsets
from lumos.graph.table import Kind, Step
from lumos.trace.chakra.schema import ChakraNode, NodeType
from lumos.trace.table import ABSENT, Int8, Int32, Int64, Job, Trace
from lumos.vocabulary import CollectiveKind

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

_KINDS = {kind.name.lower(): kind for kind in Kind}


def gather(job: Job) -> Workload:
    """The workload of a job of Chakra files.

    Raises TraceError, which names file and node, where ids are absent or repeated, dependencies form a cycle, or the peer of
    a transfer has no file.
    """
    ranks = [_rank(trace) for trace in job.traces]
    sizes = [len(r.nodes) for r in ranks]
    offset = offsets(sizes)
    names: dict[str, int] = {}
    own_names = [np.array([names.setdefault(s, len(names)) for s in r.trace.strings], np.int32)[r.trace.name[r.rows]] for r in ranks]
    nodes = [node for r in ranks for node in r.nodes]
    assumed = {str(n.value("pg_name")) for n in nodes if n.type == NodeType.COLL and not is_whole(str(n.value("pg_name") or 0))}

    def column(name: str) -> Int64:
        return np.concatenate([getattr(r.trace, name)[r.rows] for r in ranks])

    def said(name: str) -> Int64:
        return np.array([_integer(n, name) for n in nodes], np.int64)

    def marked(key: str) -> NDArray[np.bool_]:
        return np.repeat([bool(r.trace.metadata.get(key)) for r in ranks], sizes)

    types = np.array([_type(node) for node in nodes], np.uint8)
    communicates = np.isin(types, COMMUNICATION)
    duration, operations, moved = column("duration"), said("num_ops"), said("tensor_size")
    if not duration[communicates].any() and not marked("communication_timed").any():
        duration[communicates] = ABSENT
    work = (operations > 0) | (np.isin(types, MEMORY) & (moved > 0))
    duration[~communicates & (duration == 0) & work & ~marked("compute_timed")] = ABSENT
    begins = any(bool(t.start.any()) for t in job.traces) or bool(marked("compute_timed").any())  # all at 0 in a step of 1 us
    timed = begins and bool((duration != ABSENT).all())
    detail, details = _details(nodes, communicates.tolist())
    task = list_of(offsets([len(d) for r in ranks for d in r.deps]))
    flat = np.fromiter((d + low for r, low in zip(ranks, offset.tolist(), strict=False) for deps in r.deps for d in deps), np.int64)
    dep_offset, dep = distinct(flat, task, len(nodes))
    communication, groups = _communication(job, nodes, types, offset)
    return Workload(
        ranks=job.ranks,
        rank_offset=offset,
        type=types,
        on_cpu=np.array([bool(n.value("is_cpu_op")) for n in nodes], bool) & ~communicates,
        kind=np.array([_kind(n, t) for n, t in zip(nodes, types.tolist(), strict=True)], np.uint8),
        name=np.concatenate(own_names),
        names=tuple(names),
        queue=np.array([_queue(n) for n in nodes], np.int64),
        start=column("start") if timed else np.full(len(nodes), ABSENT, np.int64),
        duration=duration,
        release=said("release_ns"),
        operations=operations,
        bytes=moved,
        dep_offset=dep_offset,
        dep=dep,
        communication=communication,
        groups=groups,
        steps=tuple(step for r in ranks for step in _steps(r.trace)),
        steps_alone=bool(marked("steps_alone").any()),
        timers=frozenset((i, int(q)) for i, r in enumerate(ranks) if isinstance(own := r.trace.metadata.get("timers"), tuple) for q in own),
        id=np.array([n.id & ((1 << 63) - 1) for n in nodes], np.int64),
        detail=detail,
        details=details,
        diagnostics=(
            *job.diagnostics,
            *(d for r in ranks for d in (*r.trace.diagnostics, *r.findings)),
            *(
                Diagnostic("group-assumed", f"{job.traces[0].path}: group {name!r} is no number of groups.json: taken as all ranks")
                for name in sorted(assumed)
            ),
        ),
    )


class _Rank(NamedTuple):
    """The nodes of a file in an order that respects dependencies. rows: the nodes' rows in the trace. deps: for each node
    the positions of those that it depends on."""

    trace: Trace
    nodes: list[ChakraNode]
    rows: Int64
    deps: list[list[int]]
    findings: list[Diagnostic]


def _rank(trace: Trace) -> _Rank:
    nodes: list[ChakraNode] = trace.metadata["chakra"]
    index: dict[int, int] = {}
    for row, node in enumerate(nodes):
        if index.setdefault(node.id, row) != row:
            raise TraceError(f"{trace.path}: two nodes have id {node.id}; write the set again")
    findings = []
    for node in nodes:
        lost = next((dep for dep in node.data_deps if dep not in index), None)
        if lost is not None:
            raise TraceError(f"{trace.path}: node {node.id} depends on node {lost}, which the file lacks; export the set again")
    data = [[index[dep] for dep in node.data_deps] for node in nodes]
    control = [[index[dep] for dep in node.ctrl_deps if dep in index] for node in nodes]
    deps = [one + other for one, other in zip(data, control, strict=True)]
    absent = sum(len(node.ctrl_deps) for node in nodes) - sum(map(len, control))
    if absent:
        text = f"{trace.path}: {absent} control dependencies on absent nodes were dropped"
        findings.append(Diagnostic("control-dependencies-lost", text))
    keys = list(zip(trace.start.tolist(), (node.id for node in nodes), strict=True))
    order = topological(deps, keys)
    if len(order) < len(nodes):
        # Older converters write calls between operators as control dependencies, which contradict their data dependencies.
        deps, order = data, topological(data, keys)
        findings.append(
            Diagnostic("control-dependencies-ignored", f"{trace.path}: control dependencies contradict data dependencies and were ignored")
        )
    if len(order) < len(nodes):
        stuck = min({node.id for node in nodes} - {nodes[row].id for row in order})
        raise TraceError(
            f"{trace.path}: {len(nodes) - len(order)} nodes wait for one another in a cycle (node {stuck} among them);"
            " `lumos chakra check` names it"
        )
    new_place = np.argsort(order).tolist()
    return _Rank(trace, [nodes[i] for i in order], np.array(order), [[new_place[d] for d in deps[i]] for i in order], findings)


def topological(deps: Sequence[Sequence[int]], keys: Sequence[tuple[int, int]]) -> list[int]:
    """The rows in topological order, of those that are ready together the smallest key first; rows on cycles are left out."""
    sorter = TopologicalSorter(dict(enumerate(deps)))
    with suppress(CycleError):  # the sorter gives all the same what no cycle holds up
        sorter.prepare()
    ready: list[tuple[int, int, int]] = []
    out = []
    while sorter.is_active():
        for row in sorter.get_ready():
            heapq.heappush(ready, (*keys[row], row))
        out.append(heapq.heappop(ready)[2])
        sorter.done(out[-1])
    return out


def _type(node: ChakraNode) -> NodeType:
    """The type that a simulator needs: communication only where data is transferred. Pseudo-nodes and CPU calls that issue
    collectives are compute, which takes their time."""
    transfers = node.type in COMMUNICATION and not node.value("is_cpu_op") and node.attr("comm_size") is not None
    return NodeType(node.type) if transfers or node.type in MEMORY else NodeType.COMP


def _kind(node: ChakraNode, kind: int) -> Kind:
    on_cpu = bool(node.value("is_cpu_op"))
    usual = Kind.MEMCPY if node.type in MEMORY else Kind.OPERATOR if on_cpu else Kind.KERNEL
    usual = Kind.COLLECTIVE if node.type in COMMUNICATION and not on_cpu else usual
    return usual if kind in COMMUNICATION else _KINDS.get(str(node.value("kind")), usual)


def _integer(node: ChakraNode, name: str) -> int:
    value = node.value(name)
    return value if isinstance(value, int) else ABSENT


def _details(nodes: Sequence[ChakraNode], communicates: Sequence[bool]) -> tuple[Int32 | None, tuple[Details, ...]]:
    """What the file says of every node that no column of a workload holds."""
    table: dict[Details, int] = {Details(): ABSENT}
    numbers = []
    for node, transfers in zip(nodes, communicates, strict=True):
        held = OF_COMMUNICATION if transfers else OF_WORK
        other = tuple(a for a in node.attrs if a.name not in held)
        numbers.append(table.setdefault(Details(node.inputs, node.outputs, other, node.unknown), len(table) - 1))
    return (np.array(numbers, np.int32) if len(table) > 1 else None), (*table,)[1:]


def _queue(node: ChakraNode) -> int:
    stream, thread = _integer(node, "stream"), _integer(node, "tid")
    if node.value("is_cpu_op"):
        return thread
    return stream if stream != ABSENT else thread if node.type not in COMMUNICATION else ABSENT


def _communication(job: Job, nodes: Sequence[ChakraNode], types: Int8, offset: Int64) -> tuple[Communication, tuple[tuple[int, ...], ...]]:
    """The facts of the communication nodes, and the groups that they name."""
    position = {rank: i for i, rank in enumerate(job.ranks)}
    groups: dict[tuple[str, tuple[int, ...]], int] = {}  # groups of the same ranks are different communicators
    kinds: dict[str, int] = {}
    rows: list[tuple[int, ...]] = []
    where = np.flatnonzero(np.isin(types, COMMUNICATION))
    rank_of = np.searchsorted(offset, where, side="right") - 1
    named = {str(int(g.name)): g.ranks for g in job.groups if is_whole(g.name) and g.ranks}
    for at, rank in zip(where.tolist(), rank_of.tolist(), strict=True):
        node, path = nodes[at], job.traces[rank].path
        sends = node.type == NodeType.SEND
        if node.type == NodeType.COLL:
            members = group_members(node.value("pg_name"), named, len(job.ranks))
            if members is None or any(m not in position for m in members):
                why = "is not in the set's groups.json" if members is None else "has ranks that have no file"
                raise TraceError(f"{path}: node {node.id}: group {node.value('pg_name')!r} {why}; add what is missing")
            ranks = tuple(sorted(position[m] for m in members))
            kind = _integer(node, "comm_type")
            label = _label(node) or chakra_kind(kind)
            name = str(node.value("pg_name") or 0)
            of_group = (groups.setdefault((name, ranks), len(groups)), ABSENT, ABSENT)
        else:
            peer = _integer(node, "comm_dst" if sends else "comm_src")
            if peer not in position or position[peer] == rank:
                raise TraceError(f"{path}: node {node.id}: its peer is rank {peer}, which has no file of its own; add it to the set")
            label = _label(node) or (CollectiveKind.SEND if sends else CollectiveKind.RECEIVE)
            kind, of_group = ABSENT, (ABSENT, position[peer], _integer(node, "comm_tag"))
        rows.append((at, kind, _integer(node, "comm_size"), *of_group, kinds.setdefault(label, len(kinds))))
    return Communication.of_rows(rows, tuple(kinds)), tuple(ranks for _, ranks in groups)


def _label(node: ChakraNode) -> str:
    """The kind of collective, or one of EAGER, that was exported as this node; "" where the file does not say."""
    written = str(node.value("collective") or "")
    return written if written in EAGER or not written else CollectiveKind.of_word(written)


def _steps(trace: Trace) -> tuple[Step, ...]:
    text = trace.metadata.get("steps")
    if not isinstance(text, str):
        return ()
    try:
        marks = msgspec.json.decode(text, type=list[tuple[str, int, int]])
    except msgspec.MsgspecError as error:
        raise TraceError(f"{trace.path}: the metadata's steps are unreadable ({error}); export the set again") from None
    return tuple(Step(trace.rank, name, start, end) for name, start, end in marks)


def folder_of(job: Job) -> Path:
    """The folder that a set was read from, which also holds its system and network files."""
    return Path(job.traces[0].path).parent


def group_members(name: Any, groups: Mapping[str, tuple[int, ...]], world: int) -> tuple[int, ...] | None:
    """The ranks of a `pg_name`: all where it is absent, no number, or 0; None where the file of groups lacks it."""
    if name is None or not is_whole(str(name)) or int(name) == 0:
        return tuple(range(world))
    return groups.get(str(int(name)))
