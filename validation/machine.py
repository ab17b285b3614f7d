"""A machine that runs a program (`validation.program`), in plain Python and independent of Lumos: it shares no code with it.

It knows threads, streams and a queue of launches. A launch begins when fewer than QUEUE launches of its rank are outstanding, and
returns after the time of its call. A kernel starts LATENCY after its launch has returned, GAP after the kernel before it on the stream has
ended, and when the work it waits for has ended, whichever is last. A transfer moves its bytes when the last rank has arrived. A call that
synchronises, or that copies and blocks, returns RETURN after the work that it waits for. The kernels of a graph that one call launches
follow what is on its stream, and what comes to that stream next follows all of them. Every step begins when the loop's thread has done
all of the step before; a thread beside it goes from step to step on its own.

All times are whole ns from the begin of the run.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from validation.machine_run import Event, Meeting, Note, RankRun, Row, Run, Work
from validation.program import (
    Action,
    Collective,
    Exchange,
    Give,
    InTurn,
    Kernel,
    LaunchGraph,
    Message,
    Operator,
    Pause,
    Poll,
    Program,
    Record,
    Synchronise,
    SynchroniseEvent,
    Take,
    Thread,
    Wait,
    WaitEvent,
)

#: Launches of one rank that may be outstanding.
QUEUE = 1022
#: From the return of a launch to the start of its kernel; between two kernels of a stream; from awaited work to the return; in ns.
LATENCY, GAP, RETURN = 5_000, 2_000, 8_000
#: What each call costs that moves no data: a synchronisation, the record of an event, a stream's wait for it; in ns.
CALL = 1_000


def run(program: Program, steps: int) -> Run:
    """Run `steps` steps of a program. RuntimeError where its threads wait for each other for ever."""
    machine = _Machine(program, steps)
    machine.run()
    return Run(tuple(rank.run for rank in machine.ranks), steps)


class _Rank:
    """The state of one rank. outstanding: ends of launched work, a heap. unknown: how much launched work has no known end."""

    def __init__(self, number: int, seen: int) -> None:
        self.number = number
        self.run = RankRun(seen)
        self.streams: dict[int, list[Work]] = {}
        self.known: dict[int, int] = {}  # how many of a stream's kernels have a known end
        self.after: dict[int, list[Work]] = {}  # what the next kernel of a stream waits for
        self.outstanding: list[int] = []
        self.unknown = 0
        self.given: dict[str, list[int]] = {}
        self.events: dict[str, list[Event]] = {}
        self.calls = 0
        self.met: dict[tuple[int, ...], int] = {}  # how many transfers there were with the same ranks

    def correlation(self) -> int:
        self.calls += 1
        return self.calls


class _Machine:
    """Threads take turns, the one that is furthest behind first; one that waits for something unknown passes its turn on."""

    def __init__(self, program: Program, steps: int) -> None:
        self.ranks = [_Rank(number, len(rank.threads) - rank.unseen) for number, rank in enumerate(program.ranks)]
        self.meetings: dict[tuple[tuple[int, ...], int], Meeting] = {}
        self.exchanges: dict[tuple[int, int], list[int]] = {}  # when ranks arrived at an exchange, by thread and number
        self.threads = [
            _ThreadRun(self, rank, number, thread, program.ranks[i].between if number == 0 else (), steps)
            for i, rank in enumerate(self.ranks)
            for number, thread in enumerate(program.ranks[i].threads)
        ]

    def run(self) -> None:
        waiting = list(self.threads)
        while waiting:
            waiting.sort(key=lambda thread: thread.clock)
            moved = next((thread for thread in waiting if thread.advance()), None)
            if moved is None:
                raise RuntimeError("every thread waits for something that never comes")
            if moved.done:
                waiting.remove(moved)
        self.settle()

    def settle(self) -> None:
        """Work out the times of all kernels that do not depend on something still to be launched."""
        moved = True
        while moved:
            moved = False
            for rank in self.ranks:
                for stream in rank.streams:
                    moved |= self._settle_stream(rank, stream)

    def _settle_stream(self, rank: _Rank, stream: int) -> bool:
        """The same for one stream; returns whether any kernel's end became known."""
        kernels, first = rank.streams[stream], rank.known[stream]
        at = first
        while at < len(kernels) and self._place(kernels[at], kernels[at - 1] if at else None):
            at += 1
        for work in kernels[first:at]:
            assert work.end is not None
            heapq.heappush(rank.outstanding, work.end)
        rank.unknown -= at - first
        rank.known[stream] = at
        return at > first

    @staticmethod
    def _place(work: Work, before: Work | None) -> bool:
        """Give work its start and, if that is known, its end; returns whether the end is known."""
        if work.start is None:
            if any(other.end is None for other in work.after):
                return False
            ready = [work.launched + LATENCY, *(other.end or 0 for other in work.after)]
            work.start = max(ready if before is None else [*ready, (before.end or 0) + GAP])
        starts = [work.start]
        for meeting in work.meetings:
            arrived = [member.start for member in meeting.work if member.start is not None]
            if len(arrived) < meeting.ranks:
                return False
            starts += arrived
        work.end = max(starts) + work.duration
        return True


class _ThreadRun:
    """One thread of one rank. clock: when it is done with what it did so far."""

    def __init__(self, machine: _Machine, rank: _Rank, number: int, actions: Thread, between: Thread, steps: int) -> None:
        self.machine, self.rank, self.number = machine, rank, number
        self.clock, self.done, self.step = 0, False, 0
        self.taken: dict[str, int] = {}
        self.exchanged = 0
        self.turns = self._loop(actions, between, steps)

    def advance(self) -> bool:
        """Do the next action, or say that it cannot be done yet."""
        moved = next(self.turns, None)
        self.done = moved is None
        return moved is not False

    def _loop(self, actions: Thread, between: Thread, steps: int) -> Iterator[bool]:
        """Yields whether it did something; False where it waits."""
        for self.step in range(steps):
            begin = self.clock
            for action in actions:
                yield from self._do(action)
            if self.number == 0:
                self.rank.run.marks.append((begin, self.clock))
            for action in between:
                yield from self._do(action)

    def _do(self, action: Action) -> Iterator[bool]:
        match action:
            case Operator():
                yield from self._operator(action)
            case Pause(us, name):
                if name:
                    self._row("user_annotation", name, self.clock, ns(us))
                self.clock += ns(us)
            case LaunchGraph():
                self._graph(action)
            case Synchronise(stream, call):
                yield from self._synchronise(stream, call)
            case Record(event, stream):
                self._record(event, stream)
            case WaitEvent(stream, event, back):
                self._wait(stream, self._recorded(event, back))
            case SynchroniseEvent(event, back):
                yield from self._synchronise_event(self._recorded(event, back))
            case Poll(event, us, back):
                yield from self._poll(self._recorded(event, back), ns(us))
            case Wait(stream, awaited):
                self._wait(stream, self._record("", awaited))
            case Give(channel):
                self.rank.given.setdefault(channel, []).append(self.clock)
            case Take():
                yield from self._take(action)
            case Exchange():
                yield from self._exchange(action)
            case InTurn(parts):
                for each in parts[self.step % len(parts)]:
                    yield from self._do(each)
        yield True

    def _take(self, take: Take) -> Iterator[bool]:
        begin, number = self.clock, self.taken.get(take.channel, 0)
        self.taken[take.channel] = number + 1
        if number >= take.ahead:
            given = self.rank.given.setdefault(take.channel, [])
            while len(given) <= number - take.ahead:
                yield False
            self.clock = max(begin, given[number - take.ahead])
        if take.name:
            self._row("user_annotation", take.name, begin, self.clock - begin)

    def _operator(self, operator: Operator) -> Iterator[bool]:
        begin = self.clock
        self.clock += ns(operator.us)
        if operator.kernel is not None:
            call = self.clock
            while (free := self._place_in_queue()) is None:
                yield False
            self.clock = max(self.clock, free) + ns(operator.call_us)
            correlation = self.rank.correlation()
            work = self._launch(operator.kernel, correlation, self.clock)
            if operator.blocking:
                yield from self._until(work)
                self.clock = (work.end or 0) + RETURN
            self._call(operator.call, call, correlation)
        self._row("cpu_op", operator.name, begin, self.clock - begin)

    def _graph(self, graph: LaunchGraph) -> None:
        begin, rank = self.clock, self.rank
        self.clock += ns(graph.call_us)
        call = self._call("cudaGraphLaunch", begin)
        before = rank.streams.get(graph.stream, [])[-1:]
        last: dict[int, Work] = {}
        for kernel in graph.kernels:
            if kernel.stream != graph.stream and kernel.stream not in last:
                rank.after.setdefault(kernel.stream, []).extend(before)
            if kernel.behind:
                rank.after.setdefault(kernel.stream, []).append(last[kernel.behind])
            last[kernel.stream] = self._launch(kernel, call, self.clock)
        rank.after.setdefault(graph.stream, []).extend(last.values())

    def _exchange(self, exchange: Exchange) -> Iterator[bool]:
        """Meet the same thread of the other ranks in the exchange that has the same number."""
        begin = self.clock
        arrived = self.machine.exchanges.setdefault((self.number, self.exchanged), [])
        arrived.append(begin)
        self.exchanged += 1
        while len(arrived) < len(self.machine.ranks):
            yield False
        self.clock = max(arrived) + ns(exchange.us)
        self._row("user_annotation", exchange.name, begin, self.clock - begin)

    def _place_in_queue(self) -> int | None:
        """When the queue has a place for a launch, not before now; None as long as that is unknown."""
        rank = self.rank
        if rank.unknown + len(rank.outstanding) >= QUEUE:
            self.machine.settle()
            while rank.outstanding and rank.outstanding[0] <= self.clock:
                heapq.heappop(rank.outstanding)
        if rank.unknown + len(rank.outstanding) < QUEUE:
            return self.clock
        return None if rank.unknown else rank.outstanding[0]

    def _launch(self, kernel: Kernel, correlation: int, launched: int) -> Work:
        rank, machine = self.rank, self.machine
        after = rank.after.pop(kernel.stream, [])
        work = Work(kernel.name, kernel.stream, ns(kernel.us), self.step, correlation, launched, after, kernel.meets)
        for meets in kernel.meets:
            ranks = self._ranks(meets)
            number = rank.met[ranks] = rank.met.get(ranks, -1) + 1
            meeting = machine.meetings.setdefault((ranks, number), Meeting(len(set(ranks))))
            meeting.work.append(work)
            work.meetings.append(meeting)
        rank.run.work.append(work)
        rank.streams.setdefault(work.stream, []).append(work)
        rank.known.setdefault(work.stream, 0)
        rank.unknown += 1
        return work

    def _ranks(self, meets: Collective | Message) -> tuple[int, ...]:
        """The ranks of a transfer; those of a message from its sender to its receiver."""
        own = self.rank.number
        if isinstance(meets, Message):
            return (own, meets.peer, own) if meets.sends else (meets.peer, own, meets.peer)
        return meets.ranks or tuple(range(len(self.machine.ranks)))

    def _until(self, *awaited: Work) -> Iterator[bool]:
        """Pass the turn on until the ends of all awaited work are known."""
        self.machine.settle()
        while any(work.end is None for work in awaited):
            yield False
            self.machine.settle()

    def _synchronise(self, stream: int | None, call: str) -> Iterator[bool]:
        streams = self.rank.streams
        chosen = list(streams) if stream is None else [stream]
        begin = self.clock
        yield from self._returned([streams[each][-1] for each in chosen if streams.get(each)])
        if call or stream is None:
            self._call(call or "cudaDeviceSynchronize", begin)
        else:
            self.rank.run.notes.append(Note("Stream Sync", self._call("cudaStreamSynchronize", begin), stream))

    def _synchronise_event(self, event: Event | None) -> Iterator[bool]:
        if event is None:
            return
        begin = self.clock
        yield from self._returned([event.work] if event.work else [])
        self.rank.run.notes.append(Note("Event Sync", self._call("cudaEventSynchronize", begin), -1, event))

    def _poll(self, event: Event | None, every: int) -> Iterator[bool]:
        if event is None:
            return
        yield from self._until(*([event.work] if event.work else []))
        while True:
            begin = self.clock
            self.clock += CALL
            self._call("cudaEventQuery", begin)
            if event.work is None or (event.work.end or 0) <= begin:
                return
            self.clock += every

    def _returned(self, awaited: list[Work]) -> Iterator[bool]:
        """Set the clock to when a call that begins now and waits for the work returns."""
        begin = self.clock
        yield from self._until(*awaited)
        ends = [work.end + RETURN for work in awaited if work.end is not None and work.end > begin]
        self.clock = max([begin + CALL, *ends])

    def _record(self, name: str, stream: int) -> Event:
        begin = self.clock
        self.clock += CALL
        launched = self.rank.streams.get(stream)
        event = Event(launched[-1] if launched else None, stream, self._call("cudaEventRecord", begin))
        self.rank.events.setdefault(name, []).append(event)
        return event

    def _recorded(self, name: str, back: int) -> Event | None:
        events = self.rank.events.get(name, ())
        return events[-1 - back] if len(events) > back else None

    def _wait(self, stream: int, event: Event | None) -> None:
        if event is None:
            return
        begin = self.clock
        if event.work is not None:
            self.rank.after.setdefault(stream, []).append(event.work)
        self.clock += CALL
        self.rank.run.notes.append(Note("Stream Wait Event", self._call("cudaStreamWaitEvent", begin), stream, event))

    def _call(self, name: str, begin: int, correlation: int | None = None) -> int:
        """Note a runtime call that ends now; returns its correlation, a new one unless it is given."""
        correlation = self.rank.correlation() if correlation is None else correlation
        self._row("cuda_runtime", name, begin, self.clock - begin, correlation)
        return correlation

    def _row(self, category: str, name: str, start: int, duration: int, correlation: int = -1) -> None:
        self.rank.run.rows.append(Row(category, name, self.number, self.step, start, duration, correlation))


def ns(us: float) -> int:
    """Whole ns of a time in µs."""
    return round(us * 1000)
