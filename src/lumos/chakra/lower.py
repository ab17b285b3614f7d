"""Lower a Graph, whether measured, changed or assembled, to a Chakra workload.

Dependencies that are found only at run time (calls that wait for a stream, full queues) become edges, as `freeze` fixes
them. A simulation then says for every task when the last thing that it waits for has ended, and the task's node lasts
from there to the task's end. So durations include lags and the slowdown of kernels that share a device, and the nodes
replay to the same times with no more than their dependencies.

A collective becomes communication nodes where all of its members are recorded. Otherwise, and where it has one rank, it
is compute of its measured duration, because a simulator would wait for its peers for ever. A kind that simulators do not
synchronise is written as one that they do and that moves the same bytes over the busiest link.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from lumos.analyze.loop.steps import members
from lumos.chakra.collectives import EAGER, LOWERED, lowered_bytes
from lumos.chakra.work.amounts import Amounts, unknown
from lumos.chakra.workload import Communication, Workload
from lumos.diagnostics import Diagnostic
from lumos.errors import GraphError
from lumos.graph.edges import distinct
from lumos.graph.lists import Lists, offsets
from lumos.graph.table import Graph, Kind, Step
from lumos.simulation import Frozen, Timeline, freeze, simulate, sweep
from lumos.trace.chakra.schema import NodeType
from lumos.trace.table import ABSENT, Int64
from lumos.vocabulary import CollectiveKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

#: Bytes of a communication whose size the trace lacks, and of a barrier: enough to synchronise the ranks, and hardly any time.
LEAST_BYTES = 4

#: The two sides of a message.
_SIDES = (CollectiveKind.SEND, CollectiveKind.RECEIVE)

#: How many nodes `reduced` visits in search of a chain that makes a dependency superfluous.
REACH = 8

#: Name of the node that delays a rank which starts later than the first.
OFFSET_NAME = "start_offset"


def lower(graph: Graph, amounts: Amounts | None = None) -> Workload:
    """The workload of a graph. amounts: what its tasks compute and move. GraphError where the graph has no schedule or no tasks."""
    if not len(graph):
        raise GraphError("the graph has no tasks: there is nothing to export")
    frozen = freeze(graph)
    timeline = _timeline(graph, frozen)
    nodes = _Nodes(graph, frozen, timeline)
    _communicate(nodes)
    _cross_rank_edges(nodes)
    _report_compute(nodes)
    _rank_offsets(nodes)
    return nodes.workload(unknown(len(graph)) if amounts is None else amounts)


def _timeline(graph: Graph, frozen: Frozen) -> Timeline:
    """When tasks run: as simulated from the whole graph, unless that contradicts a frozen edge; then from frozen edges alone."""
    if frozen.exact:
        return sweep(frozen)
    live = simulate(graph)
    task = _successors(frozen)
    return live if (live.end[frozen.edges.pred] <= live.start[task]).all() else sweep(frozen)


def _successors(frozen: Frozen) -> Int64:
    """The task that depends on each of `frozen.edges.pred`."""
    return np.repeat(frozen.edges.order, np.diff(frozen.edges.pred_offset)).astype(np.int64)


@dataclass(slots=True)
class _Comm:
    """One communication node."""

    node: int
    type: int
    size: int
    group: int
    peer: int
    tag: int
    kind: str


class _Nodes:
    """The nodes of the workload while it is made: 0..n-1 are the tasks of the graph, higher numbers are nodes added to them."""

    def __init__(self, graph: Graph, frozen: Frozen, timeline: Timeline) -> None:
        n = len(graph)
        place = {rank: i for i, rank in enumerate(graph.ranks)}
        self.graph = graph
        self.places = [place[p.rank] for p in graph.processors]
        self.rank = np.array(self.places, np.int32)[graph.processor]
        self.pred = frozen.edges.pred.astype(np.int64)
        self.task = _successors(frozen)
        self.position = np.empty(n, np.int64)
        self.position[frozen.edges.order] = np.arange(n)
        self.origin = int(timeline.start.min())
        self.end = timeline.end - self.origin
        self.release = np.full(n, ABSENT, np.int64)
        self.release[graph.release_task] = graph.release_time - self.origin
        self.ready = self._ready(timeline.start - self.origin)
        self.members = members(graph)
        self.type = np.full(n, NodeType.COMP, np.uint8)
        self.added: list[tuple[int, int, str, int, int, int, bool]] = []  # rank, type, name, start, duration, position, cpu
        self.edges: list[tuple[int, int]] = []
        self.comms: list[_Comm] = []
        self.groups: dict[tuple[int, ...], int] = {}
        self.keys: dict[tuple[str, tuple[int, ...]], int] = {}
        self.group_ranks: list[tuple[int, ...]] = []
        self.tags: dict[tuple[int, int], set[int]] = {}
        self.findings: list[Diagnostic] = []
        self.base = self.ready.copy()  # when each duration begins

    def _ready(self, start: Int64) -> Int64:
        """When everything that a task waits for has ended; its start where it waits for nothing."""
        ready = np.full(len(self.graph), np.iinfo(np.int64).min)
        np.maximum.at(ready, self.task, self.end[self.pred])
        ready = np.maximum(ready, np.where(self.release == ABSENT, ready, self.release))
        return np.where(ready == np.iinfo(np.int64).min, np.minimum(start, 0), ready)

    def add(self, rank: int, kind: NodeType, name: str, start: int, duration: int, position: int, cpu: bool) -> int:
        """Add a node that is no task of the graph; returns its number."""
        self.added.append((rank, kind, name, start, duration, position, cpu))
        return len(self.graph) + len(self.added) - 1

    def group(self, name: str, ranks: tuple[int, ...]) -> int:
        key = (name, ranks)
        if key not in self.keys:
            self.keys[key] = len(self.group_ranks)
            self.group_ranks.append(ranks)
        return self.keys[key]

    def tag(self, source: int, target: int, wanted: int = ABSENT) -> int:
        """The tag that pairs a send with its receive: `wanted` where it is still free, else the next number."""
        used = self.tags.setdefault((source, target), set())
        tag = wanted if wanted >= 0 and wanted not in used else max(used, default=0) + 1
        used.add(tag)
        return tag

    def find(self, code: str, message: str) -> None:
        self.findings.append(Diagnostic(code, message))

    def workload(self, amounts: Amounts) -> Workload:
        """The nodes as columns, by rank and start."""
        graph, added = self.graph, self.added
        names = [*graph.names]
        added_name = []
        for _, _, name, *_ in added:
            added_name.append(len(names))
            names.append(name)
        rank = np.concatenate((self.rank, [a[0] for a in added])).astype(np.int32)
        start = np.concatenate((self.base, [a[3] for a in added])).astype(np.int64)
        position = np.concatenate((self.position, [a[5] for a in added])).astype(np.int64)
        order = np.lexsort((np.arange(len(rank)), position, start, rank))
        place = np.empty(len(order), np.int64)
        place[order] = np.arange(len(order))
        pred = np.concatenate((self.pred, [e[0] for e in self.edges])).astype(np.int64)
        task = np.concatenate((self.task, [e[1] for e in self.edges])).astype(np.int64)
        dep_offset, dep = reduced(distinct(place[pred], place[task], len(order)))
        on_stream = graph.on_device

        def column(of_tasks: NDArray[Any], of_added: list[int], dtype: type) -> Any:
            return np.concatenate((of_tasks, of_added)).astype(dtype)[order]

        return Workload(
            ranks=graph.ranks,
            rank_offset=np.searchsorted(rank[order], np.arange(len(graph.ranks) + 1)).astype(np.int64),
            type=column(self.type, [a[1] for a in added], np.uint8),
            on_cpu=column(~on_stream & (self.type == NodeType.COMP), [a[6] for a in added], bool),
            kind=column(graph.kind, [Kind.RETURN if a[1] == NodeType.COMP else Kind.COLLECTIVE for a in added], np.uint8),
            name=column(graph.name, added_name, np.int32),
            names=tuple(names),
            queue=column(_queues(graph)[graph.processor], [ABSENT] * len(added), np.int64),
            start=start[order],
            duration=column(np.maximum(self.end - self.base, 0), [a[4] for a in added], np.int64),
            release=column(self.release, [ABSENT] * len(added), np.int64),
            operations=column(amounts.operations, [ABSENT] * len(added), np.int64),
            bytes=column(amounts.bytes, [ABSENT] * len(added), np.int64),
            dep_offset=dep_offset,
            dep=dep,
            communication=self._communication(place),
            groups=tuple(self.group_ranks),
            steps=self._steps(),
            steps_alone=graph.steps_alone,
            event=column(graph.event, [ABSENT] * len(added), np.int32),
            detail=column(amounts.detail, [ABSENT] * len(added), np.int32) if amounts.table else None,
            details=amounts.table,
            timers=frozenset((place, int(q)) for p, q, place in zip(graph.processors, _queues(graph), self.places, strict=True) if p.timer),
            diagnostics=(*graph.diagnostics, *self.findings),
        )

    def _communication(self, place: Int64) -> Communication:
        kinds: dict[str, int] = {}
        comms = sorted(self.comms, key=lambda c: place[c.node])
        rows = [(int(place[c.node]), c.type, c.size, c.group, c.peer, c.tag, kinds.setdefault(c.kind, len(kinds))) for c in comms]
        return Communication.of_rows(rows, tuple(kinds))

    def _steps(self) -> tuple[Step, ...]:
        """The marks of the steps in simulated time: each from the first start of the CPU's work in it to the last start. A pause is no
        work, because it may begin long before the step that it leads to. A graph without steps gets no marks."""
        members = self.members
        out = []
        for i, step in enumerate(members.steps if self.graph.steps else ()):
            tasks = members.tasks(i)
            works = tasks[members.completes[tasks]]
            on_cpu = works[~members.on_device[works]]
            start = self.ready[on_cpu if len(on_cpu) else works]
            out.append(Step(step.rank, step.name, int(start.min()), int(start.max()) + 1))
        return tuple(out)


def reduced(dependencies: Lists) -> Lists:
    """The dependencies without those that a short chain of others implies. Every dependency is on a node before.

    Visits `REACH` nodes at most, enough for dependencies that the order of a stream or thread implies.
    """
    offset, dep = dependencies
    bounds, deps = offset.tolist(), dep.tolist()
    keep = np.ones(len(deps), bool)
    for node in np.flatnonzero(np.diff(offset) > 1).tolist():
        low, high = bounds[node], bounds[node + 1]
        first, seen = deps[low], set()
        front = deps[low + 1 : high]
        for _ in range(REACH):
            if not front:
                break
            at = front.pop()
            before = [d for d in deps[bounds[at] : bounds[at + 1]] if d >= first and d not in seen]
            seen.update(before)
            front += before
        for i in range(low, high):
            keep[i] = deps[i] not in seen
    return Lists(offsets(keep)[offset], dep[keep])


def _queues(graph: Graph) -> Int64:
    """The number of each processor within its rank: a stream keeps its own, threads are counted."""
    threads: Counter[int] = Counter()
    taken: set[tuple[int, int]] = set()
    out = []
    for p in graph.processors:
        if p.is_stream:
            number = max(p.stream, 0)
            while (p.rank, number) in taken:  # streams of a second device may have the same numbers
                number += 10_000
            taken.add((p.rank, number))
        else:
            threads[p.rank] += 1
            number = threads[p.rank]
        out.append(number)
    return np.array(out, np.int64)


def _communicate(nodes: _Nodes) -> None:
    """Turn the members of every rendezvous into communication nodes."""
    graph, facts = nodes.graph, nodes.graph.collectives
    if facts is None:
        return
    row_of = {int(task): i for i, task in enumerate(facts.task)}
    unsized = mixed = 0
    for low, high in pairwise(graph.rendezvous_offset.tolist()):
        tasks = [int(t) for t in graph.rendezvous_task[low:high]]
        rows = [row_of.get(t, ABSENT) for t in tasks]
        ranks = [int(nodes.rank[t]) for t in tasks]
        if ABSENT in rows or len(set(ranks)) < 2 or len(set(ranks)) != len(ranks):
            mixed += len(set(ranks)) > 1
            continue
        kinds = [facts.kinds[facts.kind[r]] for r in rows]
        name = facts.groups[facts.group[rows[0]]] if facts.group[rows[0]] >= 0 else ""
        size = max(int(facts.nbytes[r]) for r in rows)
        unsized += size == ABSENT and CollectiveKind.BARRIER not in kinds
        if sorted(kinds) == sorted(_SIDES):
            send = kinds.index(CollectiveKind.SEND)
            _pair(nodes, tasks[send], tasks[1 - send], max(size, LEAST_BYTES), int(facts.sequence[rows[0]]))
        elif len(set(kinds)) == 1:
            _collective(nodes, tasks, ranks, kinds[0], name, size)
        else:
            mixed += 1
            continue
        nodes.base[tasks] = nodes.ready[tasks].max()
    if unsized:
        nodes.find("communication-unsized", f"{unsized} communications have no bytes in the trace: written with {LEAST_BYTES} bytes each")
    if mixed:
        nodes.find("rendezvous-mixed", f"{mixed} rendezvous join tasks that are no one collective: written as compute, unsynchronised")


def _pair(nodes: _Nodes, send: int, receive: int, size: int, number: int, label: Sequence[str] = _SIDES) -> None:
    source, target = int(nodes.rank[send]), int(nodes.rank[receive])
    tag = nodes.tag(source, target, number)
    nodes.type[send], nodes.type[receive] = NodeType.SEND, NodeType.RECV
    nodes.comms.append(_Comm(send, ABSENT, size, ABSENT, target, tag, label[0]))
    nodes.comms.append(_Comm(receive, ABSENT, size, ABSENT, source, tag, label[1]))


def _collective(nodes: _Nodes, tasks: list[int], ranks: list[int], kind: CollectiveKind, name: str, size: int) -> None:
    size = max(lowered_bytes(kind, size, len(ranks)), LEAST_BYTES)
    group = nodes.group(name, tuple(sorted(ranks)))
    for task in tasks:
        nodes.type[task] = NodeType.COLL
        nodes.comms.append(_Comm(task, LOWERED[kind].type, size, group, ABSENT, ABSENT, kind))


def _cross_rank_edges(nodes: _Nodes) -> None:
    """Replace edges between ranks, which a file cannot hold, by a send and a receive of a few bytes."""
    cross = np.flatnonzero(nodes.rank[nodes.pred] != nodes.rank[nodes.task])
    if not len(cross):
        return
    written = 0
    for edge in cross.tolist():
        before, after = int(nodes.pred[edge]), int(nodes.task[edge])
        source, target = int(nodes.rank[before]), int(nodes.rank[after])
        if _eager_pair(nodes, before, after):
            continue
        written += 1
        start, tag = int(nodes.end[before]), nodes.tag(source, target)
        send = nodes.add(source, NodeType.SEND, f"to rank {target}", start, 0, int(nodes.position[before]), False)
        receive = nodes.add(target, NodeType.RECV, f"from rank {source}", start, 0, int(nodes.position[before]), False)
        nodes.edges += ((before, send), (receive, after))
        nodes.comms.append(_Comm(send, ABSENT, LEAST_BYTES, ABSENT, target, tag, CollectiveKind.SEND))
        nodes.comms.append(_Comm(receive, ABSENT, LEAST_BYTES, ABSENT, source, tag, CollectiveKind.RECEIVE))
    keep = np.ones(len(nodes.pred), bool)
    keep[cross] = False
    nodes.pred, nodes.task = nodes.pred[keep], nodes.task[keep]
    if written:
        nodes.find("edges-between-ranks", f"{written} dependencies between ranks were written as messages of {LEAST_BYTES} bytes")


def _eager_pair(nodes: _Nodes, before: int, after: int) -> bool:
    """Write an edge from a send to its receive as an eager pair: the sender does not wait. False where the edge is no such."""
    facts = nodes.graph.collectives
    rows = [] if facts is None else [np.flatnonzero(facts.task == task) for task in (before, after)]
    if facts is None or not all(map(len, rows)) or NodeType.COLL in nodes.type[[before, after]]:
        return False
    one, other = (int(r[0]) for r in rows)
    if (facts.kinds[facts.kind[one]], facts.kinds[facts.kind[other]]) != _SIDES:
        return False
    _pair(nodes, before, after, max(int(facts.nbytes[one]), LEAST_BYTES), int(facts.sequence[one]), EAGER)
    return True


def _report_compute(nodes: _Nodes) -> None:
    """Report how many collectives had to be written as compute."""
    facts = nodes.graph.collectives
    alone = 0 if facts is None else int((nodes.type[facts.task] == NodeType.COMP).sum())
    if facts is not None and alone:
        nodes.find(
            "collective-as-compute",
            f"{alone} of {len(facts.task)} collectives have no peers in this job (waiting-unknown) or one rank: written as compute of "
            "their replayed duration; export all ranks of the job to have them simulated",
        )


def _rank_offsets(nodes: _Nodes) -> None:
    """Give every rank that starts later than the first a node that lasts until then, before all tasks that wait for nothing."""
    waits = np.zeros(len(nodes.graph), bool)
    waits[nodes.task] = True
    waits[[after for _, after in nodes.edges if after < len(nodes.graph)]] = True
    roots = np.flatnonzero(~waits & (nodes.type != NodeType.RECV))  # a receive waits for its message, not for the clock
    for rank in range(len(nodes.graph.ranks)):
        here = roots[nodes.rank[roots] == rank]
        begin = int(nodes.ready[here].min(initial=np.iinfo(np.int64).max))
        if len(here) and begin > 0:
            node = nodes.add(rank, NodeType.COMP, OFFSET_NAME, 0, begin, -1, True)
            nodes.edges += ((node, int(task)) for task in here)
