"""Lower a Graph, whether measured, changed or assembled, to a Chakra workload.

Dependencies that are found only at run time (calls that wait for a stream, full queues) become edges. A simulation then says for every task
when the last thing that it waits for has ended, and its node lasts from there to the task's end. So durations include lags and the slowdown
of kernels that share a device, and the nodes replay to the same times with no more than their dependencies.

A collective becomes communication nodes where all of its members are recorded; otherwise it is compute of its measured duration, because a
simulator would wait for its peers for ever. A kind that simulators do not synchronise is written as one that moves the same bytes.
"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from lumos.analyze.loop.steps import members
from lumos.chakra.collectives import EAGER, LOWERED, lowered_bytes
from lumos.chakra.workload import Amounts, Communication, Workload, unknown
from lumos.diagnostics import Diagnostic
from lumos.errors import GraphError
from lumos.graph.lists import distinct
from lumos.graph.table import Graph, Kind, Step
from lumos.simulation import freeze, simulate, sweep
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

#: Name of the node that delays a rank which starts later than the first.
OFFSET_NAME = "start_offset"


def lower(graph: Graph, amounts: Amounts | None = None) -> Workload:
    """The workload of a graph. amounts: what its tasks compute and move. GraphError where the graph has no schedule or no tasks."""
    if not len(graph):
        raise GraphError("the graph has no tasks: there is nothing to export")
    nodes = _Nodes(graph)
    nodes.communicate()
    nodes.replace_edges_between_ranks()
    nodes.begin_late()
    return nodes.workload(unknown(len(graph)) if amounts is None else amounts)


class _Added(NamedTuple):
    """A node that is no task of the graph. position: of the task beside which it stands."""

    rank: int
    type: int
    name: str
    start: int
    duration: int
    position: int


class _Nodes:
    """The nodes of the workload while it is made: 0..n-1 are the tasks of the graph, higher numbers are nodes added to them."""

    def __init__(self, graph: Graph) -> None:
        n = len(graph)
        frozen = freeze(graph)
        place_of = {rank: i for i, rank in enumerate(graph.ranks)}
        self.graph = graph
        self.row_of = {} if graph.collectives is None else {task: i for i, task in enumerate(graph.collectives.task.tolist())}
        self.places = [place_of[p.rank] for p in graph.processors]
        self.rank = np.array(self.places, np.int64)[graph.processor]
        self.pred = frozen.edges.pred.astype(np.int64)
        self.task = np.repeat(frozen.edges.order, np.diff(frozen.edges.pred_offset)).astype(np.int64)  # which depends on each of `pred`
        self.position = np.argsort(frozen.edges.order)
        # As simulated from the whole graph, unless that contradicts a frozen edge; then from frozen edges alone.
        timeline = sweep(frozen) if frozen.exact else simulate(graph)
        if (timeline.end[self.pred] > timeline.start[self.task]).any():
            timeline = sweep(frozen)
        origin = int(timeline.start.min())
        self.end = timeline.end - origin
        self.release = np.full(n, ABSENT, np.int64)
        self.release[graph.release_task] = graph.release_time - origin
        # When everything that a task waits for has ended; its start where it waits for nothing.
        never = np.iinfo(np.int64).min
        ready = np.full(n, never)
        np.maximum.at(ready, self.task, self.end[self.pred])
        ready = np.maximum(ready, np.where(self.release == ABSENT, never, self.release))
        self.ready = np.where(ready == never, np.minimum(timeline.start - origin, 0), ready)
        self.base = self.ready.copy()  # when each duration begins
        self.type = np.full(n, NodeType.COMP, np.int64)
        self.added: list[_Added] = []
        self.edges: list[tuple[int, int]] = []
        self.comms: list[tuple[int, int, int, int, int, int, str]] = []  # node, type, size, group, peer, tag, label
        self.groups: dict[tuple[str, tuple[int, ...]], int] = {}
        self.tags: dict[tuple[int, int], set[int]] = {}
        self.findings: list[Diagnostic] = []

    def add(self, node: _Added) -> int:
        """Add a node; returns its number."""
        self.added.append(node)
        return len(self.graph) + len(self.added) - 1

    def find(self, code: str, message: str) -> None:
        self.findings.append(Diagnostic(code, message))

    def communicate(self) -> None:
        """Turn the members of every rendezvous into communication nodes."""
        graph, facts = self.graph, self.graph.collectives
        if facts is None:
            return
        unsized = mixed = 0
        for low, high in pairwise(graph.rendezvous_offset.tolist()):
            tasks = graph.rendezvous_task[low:high].tolist()
            rows = [self.row_of.get(t, ABSENT) for t in tasks]
            ranks = self.rank[tasks].tolist()
            if ABSENT in rows or len(set(ranks)) < 2 or len(set(ranks)) != len(ranks):
                mixed += len(set(ranks)) > 1
                continue
            kinds = [facts.kinds[facts.kind[r]] for r in rows]
            size = max(int(facts.nbytes[r]) for r in rows)
            unsized += size == ABSENT and CollectiveKind.BARRIER not in kinds
            if sorted(kinds) == sorted(_SIDES):
                send = kinds.index(CollectiveKind.SEND)
                self._pair(tasks[send], tasks[1 - send], size, int(facts.sequence[rows[0]]))
            elif len(set(kinds)) == 1:
                name = facts.groups[facts.group[rows[0]]] if facts.group[rows[0]] >= 0 else ""
                group = self.groups.setdefault((name, tuple(sorted(ranks))), len(self.groups))
                written = max(lowered_bytes(kinds[0], size, len(ranks)), LEAST_BYTES)
                self.type[tasks] = NodeType.COLL
                self.comms += ((task, LOWERED[kinds[0]], written, group, ABSENT, ABSENT, kinds[0]) for task in tasks)
            else:
                mixed += 1
                continue
            self.base[tasks] = self.ready[tasks].max()
        if unsized:
            self.find("communication-unsized", f"{unsized} communications have no bytes in the trace: written with {LEAST_BYTES} each")
        if mixed:
            self.find("rendezvous-mixed", f"{mixed} rendezvous join tasks that are no one collective: written as compute, unsynchronised")

    def _pair(self, send: int, receive: int, size: int, tag: int = ABSENT, label: Sequence[str] = _SIDES) -> None:
        """Make a task or an added node a send, and another its receive. tag: that pairs them, where it is still free."""
        source, target = (int(self.rank[n]) if n < len(self.rank) else self.added[n - len(self.rank)].rank for n in (send, receive))
        used = self.tags.setdefault((source, target), set())
        tag = tag if tag >= 0 and tag not in used else max(used, default=0) + 1
        used.add(tag)
        for node, kind, peer, side in ((send, NodeType.SEND, target, label[0]), (receive, NodeType.RECV, source, label[1])):
            self.comms.append((node, ABSENT, max(size, LEAST_BYTES), ABSENT, peer, tag, side))
            if node < len(self.type):
                self.type[node] = kind

    def replace_edges_between_ranks(self) -> None:
        """Replace edges between ranks, which a file cannot hold, by a send and a receive of a few bytes; those from a send to its receive
        by an eager pair, whose sender does not wait. And report how many collectives remain that no peers were found for."""
        facts = self.graph.collectives
        crosses = self.rank[self.pred] != self.rank[self.task]
        written = 0
        for before, after in zip(self.pred[crosses].tolist(), self.task[crosses].tolist(), strict=True):
            rows = [self.row_of[task] for task in (before, after) if task in self.row_of and self.type[task] != NodeType.COLL]
            if facts is not None and tuple(facts.kinds[facts.kind[row]] for row in rows) == _SIDES:
                self._pair(before, after, int(facts.nbytes[rows[0]]), int(facts.sequence[rows[0]]), EAGER)
                continue
            written += 1
            source, target, start, beside = (int(n) for n in (self.rank[before], self.rank[after], self.end[before], self.position[before]))
            send = self.add(_Added(source, NodeType.SEND, f"to rank {target}", start, 0, beside))
            receive = self.add(_Added(target, NodeType.RECV, f"from rank {source}", start, 0, beside))
            self.edges += ((before, send), (receive, after))
            self._pair(send, receive, LEAST_BYTES)
        self.pred, self.task = self.pred[~crosses], self.task[~crosses]
        if written:
            self.find("edges-between-ranks", f"{written} dependencies between ranks were written as messages of {LEAST_BYTES} bytes")
        alone = 0 if facts is None else int((self.type[facts.task] == NodeType.COMP).sum())
        if facts is not None and alone:
            self.find(
                "collective-as-compute",
                f"{alone} of {len(facts.task)} collectives have no peers in this job (waiting-unknown) or one rank: written as compute of "
                "their replayed duration; export all ranks of the job to have them simulated",
            )

    def begin_late(self) -> None:
        """Give every rank that starts later than the first a node that lasts until then, before all tasks that wait for nothing."""
        waits = np.zeros(len(self.graph), bool)
        waits[self.task] = True
        waits[[after for _, after in self.edges if after < len(self.graph)]] = True
        roots = np.flatnonzero(~waits & (self.type != NodeType.RECV))  # a receive waits for its message, not for the clock
        for rank in range(len(self.graph.ranks)):
            here = roots[self.rank[roots] == rank]
            begin = int(self.ready[here].min(initial=np.iinfo(np.int64).max))
            if len(here) and begin > 0:
                node = self.add(_Added(rank, NodeType.COMP, OFFSET_NAME, 0, begin, ABSENT))
                self.edges += ((node, task) for task in here.tolist())

    def workload(self, amounts: Amounts) -> Workload:
        """The nodes as columns, by rank and start."""
        graph, added = self.graph, self.added
        rank, kinds, _, start, duration, position = (list(column) for column in zip(*added, strict=True)) if added else ([],) * 6
        all_ranks = np.concatenate((self.rank, rank)).astype(np.int64)
        starts = np.concatenate((self.base, start)).astype(np.int64)
        order = np.lexsort((np.arange(len(all_ranks)), np.concatenate((self.position, position)), starts, all_ranks))
        new_place = np.argsort(order)
        edges = np.array(self.edges, np.int64).reshape(-1, 2)
        pred, task = np.concatenate((self.pred, edges[:, 0])), np.concatenate((self.task, edges[:, 1]))
        dep_offset, dep = distinct(new_place[pred], new_place[task], len(order))
        labels: dict[str, int] = {}
        comms = sorted((int(new_place[node]), *facts, labels.setdefault(label, len(labels))) for node, *facts, label in self.comms)
        queues = _queues(graph)

        def column(of_tasks: NDArray[Any], dtype: type = np.int64, of_added: Sequence[int] | None = None) -> Any:
            return np.concatenate((of_tasks, [ABSENT] * len(added) if of_added is None else of_added)).astype(dtype)[order]

        return Workload(
            ranks=graph.ranks,
            rank_offset=np.searchsorted(all_ranks[order], np.arange(len(graph.ranks) + 1)).astype(np.int64),
            type=column(self.type, np.uint8, kinds),
            on_cpu=column(~graph.on_device & (self.type == NodeType.COMP), bool, [kind == NodeType.COMP for kind in kinds]),
            kind=column(graph.kind, np.uint8, [Kind.RETURN if kind == NodeType.COMP else Kind.COLLECTIVE for kind in kinds]),
            name=column(graph.name, np.int32, range(len(graph.names), len(graph.names) + len(added))),
            names=(*graph.names, *(node.name for node in added)),
            queue=column(queues[graph.processor]),
            start=starts[order],
            duration=column(np.maximum(self.end - self.base, 0), np.int64, duration),
            release=column(self.release),
            operations=column(amounts.operations),
            bytes=column(amounts.bytes),
            dep_offset=dep_offset,
            dep=dep,
            communication=Communication.of_rows(comms, tuple(labels)),
            groups=tuple(ranks for _, ranks in self.groups),
            steps=self._steps(),
            steps_alone=graph.steps_alone,
            event=column(graph.event, np.int32),
            detail=column(amounts.detail, np.int32) if amounts.table else None,
            details=amounts.table,
            timers=frozenset((new_place, int(q)) for p, q, new_place in zip(graph.processors, queues, self.places, strict=True) if p.timer),
            diagnostics=(*graph.diagnostics, *self.findings),
        )

    def _steps(self) -> tuple[Step, ...]:
        """The marks of the steps in simulated time: each from the first start of the CPU's work in it to the last start. A pause is no
        work, because it may begin long before the step that it leads to. A graph without steps gets no marks."""
        owners, out = members(self.graph), []
        for i, step in enumerate(owners.steps if self.graph.steps else ()):
            tasks = owners.tasks(i)
            works = tasks[owners.completes[tasks]]
            on_cpu = works[~owners.on_device[works]]
            start = self.ready[on_cpu if len(on_cpu) else works]
            out.append(Step(step.rank, step.name, int(start.min()), int(start.max()) + 1))
        return tuple(out)


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
