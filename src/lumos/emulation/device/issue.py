"""From the record of a process to its program: goes through everything that the process did, in order, and issues the work.

An operator takes the host time of its class when it begins, then launches; an operator that calls others takes its own time before
them. A call that waits ends with the work that it waits for. Memory that an operator takes is taken where the record says.

A collective that its caller did not wait for runs on the stream that NCCL's process group keeps for its group; one that the caller
waits for at once runs on the caller's own stream (as in PyTorch since 2.8). Sends and receives run on a stream for each group, peer and
direction. Ranks fill nodes in their order, and the groups that reach across nodes share their node's network interfaces.

On CPUs there are no kernels: the time of an operator is its own time on its thread. A collective runs on a thread that its process group
keeps, as gloo does: it is handed over when it is called, and whoever waits for it goes on when it has ended.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from lumos.blocks.work import Collective, Fixed
from lumos.emulation.accelerators import ON_CPUS
from lumos.emulation.device.fusion import launched
from lumos.emulation.device.host import HostClass, OperatorTree, class_of
from lumos.emulation.device.kernels import host_copy_ns
from lumos.emulation.device.launch import DeviceEngine, width
from lumos.emulation.device.program import DeviceProgram, MarkedEvent, Span, Threads
from lumos.emulation.record import ENGINE_PREFIX, CallKind
from lumos.graph.places import MARK
from lumos.graph.table import Dependency, Kind
from lumos.vocabulary import CollectiveKind

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence

    from lumos.cost.cluster import Cluster
    from lumos.emulation.device.kernels import Kernels
    from lumos.emulation.record import DeviceCall, Exchange, Mark, Operator, Process

_KINDS = {DeviceEngine.KERNEL: Kind.KERNEL, DeviceEngine.COPY: Kind.MEMCPY, DeviceEngine.FILL: Kind.MEMSET}
_CALLS = {DeviceEngine.KERNEL: "cudaLaunchKernel", DeviceEngine.COPY: "cudaMemcpyAsync", DeviceEngine.FILL: "cudaMemsetAsync"}
_NOTHING = MarkedEvent((), -1, -1)


class Moment(NamedTuple):
    """Something that happened. order: of things at one position, the lower comes first. thread: -1 where the record does not say, which is
    the thread that ran. place: index in its list of the record. step: what it does to the walk."""

    position: int
    order: int
    thread: int
    place: int
    step: Callable[[int], None]


def issued(process: Process, kernels: Kernels, host: Mapping[HostClass, int], cluster: Cluster) -> DeviceProgram:
    """The program of a process on `cluster`. host: ns of each class."""
    return (_HostWalk if process.accelerator == ON_CPUS else Walk)(process, kernels, host, cluster).run()


class Walk:
    """The state of a process between two moments."""

    def __init__(self, process: Process, kernels: Kernels, host: Mapping[HostClass, int], cluster: Cluster) -> None:
        self.process, self.host, self.cluster = process, host, cluster
        self.launches, self.regions = launched(process, kernels)
        self.graphs = [[launch for operator in graph for launch in kernels(operator)] for graph in process.graphs]
        self.tree = OperatorTree.of(process, self.launches)
        self.outermost: dict[int, int] = {}  # by thread: the last operator that no other called
        self.program = DeviceProgram(process)
        self.threads = Threads(self.program)
        self.groups = {group.name: group.ranks for group in process.groups}
        self.events: dict[int, MarkedEvent] = {}
        self.ends: dict[int, MarkedEvent] = {}
        self.turns: Counter[str] = Counter()  # by group: exchanges that threads of the host took
        self.fetched: dict[int, int] = {}  # by thread: the last copy to the host that an operator made, until its wait

    def run(self) -> DeviceProgram:
        for moment in sorted(self._moments()):
            self.threads.position = moment.position
            if moment.thread >= 0:
                self.threads.go_on(moment.thread)
            moment.step(moment.place)
        self.threads.flush()
        return self.program

    def _moments(self) -> Iterator[Moment]:
        """Everything that the process did, in any order. What begins first at a position ends last there."""
        process, program = self.process, self.program
        yield from _spans(0, process.marks, self._mark_begins, partial(self._close, program.marks))
        yield from _spans(1, process.operators, self._operator_begins, self._operator_ends)
        yield from _spans(2, process.exchanges, self._exchange_begins, partial(self._close, program.exchanges))
        yield from (Moment(call.position, 3, call.thread, i, self._call) for i, call in enumerate(process.calls))
        yield from (Moment(allocation.position, 4, -1, i, self._allocation) for i, allocation in enumerate(process.allocations))

    # ---------------------------------------------------------------- rows

    def _mark_begins(self, i: int) -> None:
        if self.process.marks[i].name.startswith(MARK):
            self.threads.flush()  # no task belongs to two steps
        self._open(self.program.marks, i)

    def _allocation(self, i: int) -> None:
        """An operator that calls no other takes memory before it does anything, and so within its row."""
        inner = self.threads.operators[self.threads.current]
        within = bool(inner) and inner[-1] not in self.tree.calling
        self.program.allocations[i] = self.program.operators[inner[-1]].begin if within else self.threads.here()

    def _open(self, spans: dict[int, Span], i: int) -> None:
        spans[i] = Span(self.threads.here(), self.threads.here())

    def _close(self, spans: dict[int, Span], i: int) -> None:
        spans[i] = Span(spans.pop(i).begin, self.threads.here())

    def _operator_begins(self, i: int) -> None:
        operator, thread = self.process.operators[i], self.threads.current
        inner = self.threads.operators[thread]
        fused = i in self.regions
        if not inner and not fused:
            self._spend(HostClass.ENGINE if operator.name.startswith(ENGINE_PREFIX) else self._python(i, thread), i)
        if not inner:
            self.outermost[thread] = i
        inner.append(i)
        self._open(self.program.operators, i)
        if fused:  # compiled code calls one operator or kernel for each launch, and nothing around it
            self._spend(HostClass.LEAF, i, len(self.launches[i]))
        else:
            self._spend(class_of(i, operator.name, self.tree), i)
        self.fetched.pop(thread, None)
        if not self._launches_late(i):
            self._launch(i)

    def _launches_late(self, i: int) -> bool:
        """Whether an operator launches after what it calls: one that clears its result, or has positions counted, before its own kernel."""
        return self.process.operators[i].leaf and i in self.tree.calling and i not in self.regions

    def _launch(self, i: int) -> None:
        operator, thread = self.process.operators[i], self.threads.current
        for launch in self.launches[i]:
            self.threads.flush(operator.name)
            cost = self.host[HostClass.LAUNCH if launch.engine is DeviceEngine.KERNEL else HostClass.COPY]
            call = self.threads.call(_CALLS[launch.engine], Kind.LAUNCH, cost)
            task = self.threads.issue(call, self.threads.stream(operator.stream), _KINDS[launch.engine], launch.name, launch.work)
            if "DtoH" in launch.name:
                self.fetched[thread] = task

    def _spend(self, kind: HostClass, operator: int, times: int = 1) -> None:
        self.threads.spend(kind, operator, times * self.host[kind])

    def _python(self, i: int, thread: int) -> HostClass:
        """The class of the time before an operator that no other called: a framework's own code lies around launches."""
        quiet = i not in self.tree.launching and self.outermost.get(thread, -1) not in self.tree.launching
        return HostClass.QUIET_PYTHON if quiet else HostClass.PYTHON

    def _operator_ends(self, i: int) -> None:
        if self._launches_late(i):
            self._launch(i)
        self.threads.operators[self.threads.current].remove(i)
        self._close(self.program.operators, i)

    # ---------------------------------------------------------------- order between streams

    def _exchange_begins(self, i: int) -> None:
        exchange = self.process.exchanges[i]
        self._open(self.program.exchanges, i)
        self._spend(HostClass.LEAF, (self.threads.operators[self.threads.current] or [-1])[-1])
        if exchange.host:
            return
        name = stream_of(exchange)
        if name != exchange.stream:
            self._wait(name, self._record(exchange.stream))
        self._collective(i, exchange, name)
        self.ends[i] = self._record(name)

    def _collective(self, i: int, exchange: Exchange, stream: Hashable) -> None:
        work = exchange_work(exchange, self.process.rank, self.groups[exchange.group], self.process.world, self.cluster)
        call = self.threads.call(_CALLS[DeviceEngine.KERNEL], Kind.LAUNCH, self.host[HostClass.LAUNCH])
        self.threads.issue(call, self.threads.stream(stream), Kind.COLLECTIVE, exchange.name, work, i)

    def _record(self, stream: Hashable) -> MarkedEvent:
        call = self.threads.call("cudaEventRecord", Kind.RUNTIME, self.host[HostClass.EVENT])
        return self.program.streams.record(self.threads.stream(stream), call)

    def _wait(self, stream: Hashable, event: MarkedEvent) -> None:
        call = self.threads.call("cudaStreamWaitEvent", Kind.RUNTIME, self.host[HostClass.EVENT])
        self.program.streams.wait(self.threads.stream(stream), event, call)

    def _synchronise(self, name: str, tasks: tuple[int, ...], stream: int = -1) -> None:
        self.threads.call(name, Kind.SYNC, self.host[HostClass.EVENT], awaited=stream)
        self.threads.call(name, Kind.RETURN, 0, tasks)

    def _call(self, i: int) -> None:
        call, streams = self.process.calls[i], self.program.streams
        match call.kind:
            case CallKind.RECORD_EVENT:
                self.events[call.event] = self._record(call.stream)
            case CallKind.STREAM_WAITS_EVENT:
                self._wait(call.stream, self.events.get(call.event, _NOTHING))
            case CallKind.STREAM_WAITS_EXCHANGE:
                if call.exchange in self.ends:
                    self._wait(call.stream, self.ends[call.exchange])
            case CallKind.SYNCHRONIZE_EVENT:
                event = self.events.get(call.event, _NOTHING)
                self._synchronise("cudaEventSynchronize", event.tasks, event.stream)
            case CallKind.SYNCHRONIZE_STREAM:
                stream = self.threads.stream(call.stream)
                self._synchronise("cudaStreamSynchronize", streams.record(stream).tasks, stream)
            case CallKind.SYNCHRONIZE_DEVICE:
                self._synchronise("cudaDeviceSynchronize", streams.last())
            case CallKind.LAUNCH_GRAPH:
                launch = self.threads.call("cudaGraphLaunch", Kind.LAUNCH, self.host[HostClass.LAUNCH])
                for node in self.graphs[call.graph]:
                    self.threads.issue(launch, self.threads.stream(call.stream), _KINDS[node.engine], node.name, node.work)
            case CallKind.READ_VALUE:
                self._read(call)

    def _read(self, call: DeviceCall) -> None:
        """Copy a value to the host, unless the operator around the call has made the copy itself, and wait for it."""
        copy = self.fetched.pop(self.threads.current, -1)
        if copy < 0:
            launch = self.threads.call(_CALLS[DeviceEngine.COPY], Kind.LAUNCH, self.host[HostClass.COPY])
            work = Fixed(host_copy_ns(call.bytes))
            copy = self.threads.issue(launch, self.threads.stream(call.stream), Kind.MEMCPY, "Memcpy DtoH (Device -> Pinned)", work)
        self._synchronise("cudaStreamSynchronize", (copy,), self.program.tasks[copy].lane)


def _spans(
    order: int, rows: Iterable[Mark | Operator | Exchange], begins: Callable[[int], None], ends: Callable[[int], None]
) -> Iterator[Moment]:  # fmt: skip
    for i, row in enumerate(rows):
        yield Moment(row.begin, order, row.thread, i, begins)
        yield Moment(row.end, 7 - order, row.thread, i, ends)


#: Kinds without a cost model of their own, and the one that moves as much: a barrier is an all-reduce of one element, and from one rank
#: to all, or from all to one, go through the links of that rank as an exchange of all with all does.
_PRICED_AS = {
    CollectiveKind.BARRIER: CollectiveKind.ALL_REDUCE, CollectiveKind.GATHER: CollectiveKind.ALL_TO_ALL,
    CollectiveKind.SCATTER: CollectiveKind.ALL_TO_ALL, CollectiveKind.UNKNOWN: CollectiveKind.ALL_TO_ALL,
    CollectiveKind.SEND: CollectiveKind.SEND_RECEIVE, CollectiveKind.RECEIVE: CollectiveKind.SEND_RECEIVE,
}  # fmt: skip


def stream_of(exchange: Exchange) -> Hashable:
    """What names the stream of an exchange: its own number where it runs on the caller's stream, else what NCCL keeps a stream for."""
    if exchange.kind in (CollectiveKind.SEND, CollectiveKind.RECEIVE):
        return (exchange.group, exchange.kind, exchange.peer)
    return (exchange.group,) if exchange.asynchronous else exchange.stream


def exchange_work(exchange: Exchange, rank: int, ranks: Sequence[int], world: int, cluster: Cluster) -> Collective:
    """What an exchange of `rank` moves among the ranks of its group. world: ranks of the job."""
    members = (rank, exchange.peer) if exchange.kind.is_transfer and exchange.peer >= 0 else tuple(ranks)
    devices = cluster.node.devices
    on_node = max(Counter(member // devices for member in members).values())
    size = max(exchange.input_elements, exchange.output_elements, 1) * width(exchange.dtype)
    span = max(members) - min(members) + 1
    concurrent = max(1, min(devices, world) // on_node) if on_node < len(members) else 1
    return Collective(_PRICED_AS.get(exchange.kind, exchange.kind), len(members), size, on_node, concurrent, span)


#: Threads of a process group of gloo, which take its exchanges in turn (ProcessGroupGloo::Options in torch's ProcessGroupGloo.hpp).
_GLOO_THREADS = 2


class _HostWalk(Walk):
    """The state of a process on CPUs between two moments."""

    def _exchange_begins(self, i: int) -> None:
        exchange, p = self.process.exchanges[i], self.program
        self._open(p.exchanges, i)
        self._spend(HostClass.LEAF, (self.threads.operators[self.threads.current] or [-1])[-1])
        call = self.threads.call(exchange.name, Kind.RUNTIME, 0)
        name = (exchange.group, self.turns[exchange.group] % _GLOO_THREADS)
        self.turns[exchange.group] += 1
        work = exchange_work(exchange, self.process.rank, self.groups[exchange.group], self.process.world, self.cluster)
        lane, label = self.threads.stream(name), f"gloo:{exchange.kind}"
        task = self.threads.issue(call, lane, Kind.COLLECTIVE, label, work, i, Dependency.HAND_OFF)
        self.ends[i] = MarkedEvent((task,), p.tasks[task].lane, call)

    def _operator_ends(self, i: int) -> None:
        super()._operator_ends(i)
        self.threads.flush(self.process.operators[i].name)  # a task for each, as in the graph of a recording

    def _call(self, i: int) -> None:
        call = self.process.calls[i]
        if call.kind is CallKind.STREAM_WAITS_EXCHANGE and call.exchange in self.ends:
            back = self.threads.call(call.kind, Kind.RETURN, 0)
            self.program.edges += [(before, back, Dependency.HAND_OFF) for before in self.ends[call.exchange].tasks]
