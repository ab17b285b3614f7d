"""The tasks of one process in the order in which it issued them, what each of its streams waits for, and where the rows of its record lie.

Host time between two calls of the runtime is one task; operators, marks and allocations have places inside these tasks. A stream runs its
work in the order of issue. Work issued after a wait for an event starts when the work that the event marks has ended: the last work of its
stream when it was recorded and, where that stream was itself waiting and nothing was issued to it since, what it waited for.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from lumos.graph.table import Dependency, Kind

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable

    from lumos.blocks.work import Work
    from lumos.emulation.device.host import HostClass
    from lumos.emulation.record import Process


class MarkedEvent(NamedTuple):
    """What an event marks: tasks, and the stream and the call that recorded it (task ids; -1 where no call was needed)."""

    tasks: tuple[int, ...]
    stream: int
    call: int


class Waited(NamedTuple):
    """One wait that a stream was told: the call, what it waits for, and the stream that waits."""

    call: int
    stream: int
    event: MarkedEvent


class StreamOrder:
    """The streams of one rank while its work is issued. waited: every wait, in order."""

    def __init__(self) -> None:
        self._last: dict[int, int] = {}
        self._waiting: dict[int, dict[int, None]] = {}
        self.waited: list[Waited] = []

    def issue(self, stream: int, task: int) -> tuple[int, ...]:
        """Issue device work to a stream; returns the tasks of other streams that it has to wait for."""
        waiting = tuple(self._waiting.pop(stream, ()))
        self._last[stream] = task
        return waiting

    def record(self, stream: int, call: int = -1) -> MarkedEvent:
        """What an event marks that is recorded on the stream now."""
        last = self._last.get(stream)
        marked = dict.fromkeys(() if last is None else (last,))
        return MarkedEvent(tuple({**marked, **self._waiting.get(stream, {})}), stream, call)

    def wait(self, stream: int, event: MarkedEvent, call: int = -1) -> None:
        """Let later work on the stream wait for what the event marks."""
        if event.stream != stream:
            self._waiting.setdefault(stream, {}).update(dict.fromkeys(event.tasks))
            self.waited.append(Waited(call, stream, event))

    def last(self) -> tuple[int, ...]:
        """The last work of every stream."""
        return tuple(self._last.values())


class HostPlace(NamedTuple):
    """A moment of a thread: `ns` after the start of its `task`-th task. Where ns is 0 it is the moment between that task and the one
    before, which an end takes as the end of the one before, and a begin as the start of the one after."""

    thread: int
    task: int
    ns: int


class Span(NamedTuple):
    """From one place of a thread to another."""

    begin: HostPlace
    end: HostPlace


class Spent(NamedTuple):
    """Host time that a task consists of: what kind of stretch it is, the operator whose own time it is or before which it lies, ns."""

    kind: HostClass
    operator: int
    ns: int


class Task(NamedTuple):
    """One task. lane: index of its thread, or of its stream. ns: of host work; device work has `work` instead, and `launch`, the task that
    launched it (-1 for host work). exchange: index of the exchange that a collective is, -1 for others. operator: the innermost operator
    around it, -1 for none. awaited: the stream that a synchronising call waits for, -1 where it is several or none."""

    on_device: bool
    lane: int
    kind: Kind
    name: str
    ns: int = 0
    work: Work | None = None
    launch: int = -1
    exchange: int = -1
    operator: int = -1
    awaited: int = -1


@dataclass(slots=True)
class DeviceProgram:
    """Tasks in order of issue, and edges between them (before, after, kind) besides the order on each thread and stream.

    by_thread: the tasks of each thread. stream_names: what each stream is, by its index. spans: where the operators, marks and exchanges of
    the record lie, by their index there, and allocations: where each was made. waits: what the streams were told. spent: what the host time
    of a task consists of. at: of each task the reading of the record's counter at which it was issued.
    """

    process: Process
    tasks: list[Task] = field(default_factory=list)
    edges: list[tuple[int, int, Dependency]] = field(default_factory=list)
    by_thread: list[list[int]] = field(default_factory=list)
    stream_names: list[Hashable] = field(default_factory=list)
    operators: dict[int, Span] = field(default_factory=dict)
    marks: dict[int, Span] = field(default_factory=dict)
    exchanges: dict[int, Span] = field(default_factory=dict)
    allocations: dict[int, HostPlace] = field(default_factory=dict)
    streams: StreamOrder = field(default_factory=StreamOrder)
    spent: dict[int, list[Spent]] = field(default_factory=dict)
    at: list[int] = field(default_factory=list)


class Threads:
    """Adds the tasks of a process to a program, thread by thread.

    The counter of a record orders everything that a process did, so threads run in turns here: where it passes to another thread, that one
    goes on when the one before has come so far, as the backward thread does when the main thread has called it, and the main thread when
    the backward pass is done.
    """

    def __init__(self, program: DeviceProgram) -> None:
        self.program = program
        self.current = 0
        self.position = 0  # of the record's counter
        self.operators: list[list[int]] = [[] for _ in program.process.threads]  # that are open, of each thread
        self._pending = [0] * len(program.process.threads)
        self._spent: list[list[Spent]] = [[] for _ in program.process.threads]  # of which that time consists
        self._handed = [-1] * len(program.process.threads)
        self._streams: dict[Hashable, int] = {}
        program.by_thread.extend([] for _ in program.process.threads)

    def go_on(self, thread: int) -> None:
        """Let the thread go on, after the one that ran until now."""
        if thread == self.current:
            return
        self.flush()
        own = self.program.by_thread[self.current]
        self._handed[thread] = own[-1] if own else -1
        self.current = thread

    def spend(self, kind: HostClass, operator: int, ns: int) -> None:
        """Host time of the current thread: an operator's own, or before it."""
        self._pending[self.current] += ns
        self._spent[self.current].append(Spent(kind, operator, ns))

    def here(self) -> HostPlace:
        """The place that the current thread has come to."""
        return HostPlace(self.current, len(self.program.by_thread[self.current]), self._pending[self.current])

    def flush(self, name: str = "host") -> None:
        """End the host time so far with a task of its own, called `name`."""
        ns, self._pending[self.current] = self._pending[self.current], 0
        if ns:
            self.program.spent[len(self.program.tasks)] = self._spent[self.current]
            self._spent[self.current] = []
            self._add(Task(False, self.current, Kind.OPERATOR, name, ns))

    def call(self, name: str, kind: Kind, ns: int, after: Iterable[int] = (), awaited: int = -1) -> int:
        """A call of the runtime by the current thread, which ends no earlier than the device tasks `after`; returns its task."""
        self.flush()
        task = self._add(Task(False, self.current, kind, name, ns, operator=self._operator, awaited=awaited))
        self.program.edges.extend((before, task, Dependency.SYNC) for before in after)
        return task

    def stream(self, name: Hashable) -> int:
        """The index of the stream with this name."""
        if name not in self._streams:
            self._streams[name] = len(self._streams)
            self.program.stream_names.append(name)
        return self._streams[name]

    def issue(
        self, launch: int, stream: int, kind: Kind, name: str, work: Work, exchange: int = -1, by: Dependency = Dependency.LAUNCH
    ) -> int:  # fmt: skip
        """Work that the call `launch` enqueues on a stream, or leaves to another thread of the process, which stands where a device's
        streams do; returns its task. by: what leads from the call to the work."""
        p, task = self.program, len(self.program.tasks)
        p.at.append(self.position)
        p.tasks.append(Task(True, stream, kind, name, 0, work, launch, exchange, self._operator))
        p.edges.append((launch, task, by))
        p.edges.extend((before, task, Dependency.STREAM_WAIT) for before in p.streams.issue(stream, task))
        return task

    @property
    def _operator(self) -> int:
        inner = self.operators[self.current]
        return inner[-1] if inner else -1

    def _add(self, task: Task) -> int:
        p, number = self.program, len(self.program.tasks)
        p.tasks.append(task)
        p.at.append(self.position)
        p.by_thread[task.lane].append(number)
        if self._handed[task.lane] >= 0:
            p.edges.append((self._handed[task.lane], number, Dependency.HAND_OFF))
            self._handed[task.lane] = -1
        return number
