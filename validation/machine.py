"""A machine that runs a program (`validation.program`), in plain Python and independent of Lumos: it shares no code with it.

It knows threads, streams and a queue of launches. A launch begins when fewer than QUEUE launches of its rank are outstanding, and
returns after the time of its call. A kernel starts LATENCY after its launch has returned, GAP after the kernel before it on the stream has
ended, and when the work it waits for has ended, whichever is last. A transfer moves its bytes when the last rank has arrived. A call that
synchronises returns RETURN after the work that it waits for. Every step begins when the loop's thread has done all of the step before; a
thread beside it goes from step to step on its own.

All times are whole ns from the begin of the run.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from validation.program import Action, Give, Operator, Pause, Program, Synchronise, Take, Thread, Wait

#: Launches of one rank that may be outstanding.
QUEUE = 1022
#: From the return of a launch to the start of its kernel; between two kernels of a stream; from awaited work to the return; in ns.
LATENCY, GAP, RETURN = 5_000, 2_000, 8_000
#: What each call costs that moves no data: a synchronisation, the record of an event, a stream's wait for it; in ns.
CALL = 1_000


@dataclass(slots=True)
class Work:
    """A kernel of a run. launched: when its launch returned. start, end: None as long as they are not known.

    step, correlation: the step and the call that launched it. after: other work that it waits for. meeting: the transfer that it is a
    part of, one place per rank.
    """

    name: str
    stream: int
    duration: int
    step: int
    correlation: int
    launched: int
    after: list[Work]
    meeting: list[Work | None] | None = None
    start: int | None = None
    end: int | None = None


class Row(NamedTuple):
    """What a thread did: an operator ("cpu_op"), a runtime call ("cuda_runtime") or a range ("user_annotation")."""

    category: str
    name: str
    thread: int
    step: int
    start: int
    duration: int
    correlation: int = -1


class WaitNote(NamedTuple):
    """What a stream's wait refers to. call: its correlation. record: that of the call which recorded the event."""

    call: int
    record: int
    stream: int
    awaited: int


@dataclass(slots=True)
class RankRun:
    """What one rank did. marks: begin and end of every step's mark. work: in the order of the launches."""

    rows: list[Row] = field(default_factory=list)
    work: list[Work] = field(default_factory=list)
    waits: list[WaitNote] = field(default_factory=list)
    marks: list[tuple[int, int]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Run:
    """What all ranks did in `steps` steps."""

    ranks: tuple[RankRun, ...]
    steps: int

    def completions(self) -> list[int]:
        """When every step was complete: all that it did has ended on every rank, and so have the steps before."""
        last = [0] * self.steps
        for rank in self.ranks:
            for row in rank.rows:
                last[row.step] = max(last[row.step], row.start + row.duration)
            for work in rank.work:
                last[work.step] = max(last[work.step], work.end or 0)
        for i in range(1, self.steps):
            last[i] = max(last[i], last[i - 1])
        return last

    def period_ns(self, steps: int = 4) -> float:
        """What the loop takes for a step: the mean over the last `steps`."""
        ends = self.completions()
        return (ends[-1] - ends[-1 - steps]) / steps


def run(program: Program, steps: int) -> Run:
    """Run `steps` steps of a program. RuntimeError where its threads wait for each other for ever."""
    machine = _Machine(program, steps)
    machine.run()
    return Run(tuple(rank.run for rank in machine.ranks), steps)


class _Rank:
    """The state of one rank. outstanding: ends of launched work, a heap. unknown: how much launched work has no known end."""

    def __init__(self) -> None:
        self.run = RankRun()
        self.streams: dict[int, list[Work]] = {}
        self.known: dict[int, int] = {}  # how many of a stream's kernels have a known end
        self.after: dict[int, list[Work]] = {}  # what the next kernel of a stream waits for
        self.outstanding: list[int] = []
        self.unknown = 0
        self.given: dict[str, list[int]] = {}
        self.calls = 0
        self.transfers = 0

    def correlation(self) -> int:
        self.calls += 1
        return self.calls


class _Machine:
    """Threads take turns, the one that is furthest behind first; one that waits for something unknown passes its turn on."""

    def __init__(self, program: Program, steps: int) -> None:
        self.ranks = [_Rank() for _ in program.ranks]
        self.meetings: list[list[Work | None]] = []
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
        members = [work] if work.meeting is None else work.meeting
        starts = [None if member is None else member.start for member in members]
        if None in starts:
            return False
        work.end = max(start for start in starts if start is not None) + work.duration
        return True


class _ThreadRun:
    """One thread of one rank. clock: when it is done with what it did so far."""

    def __init__(self, machine: _Machine, rank: _Rank, number: int, actions: Thread, between: Thread, steps: int) -> None:
        self.machine, self.rank, self.number = machine, rank, number
        self.clock, self.done, self.step = 0, False, 0
        self.taken: dict[str, int] = {}
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
            case Synchronise(stream):
                yield from self._synchronise(stream)
            case Wait(stream, awaited):
                self._wait(stream, awaited)
            case Give(channel):
                self.rank.given.setdefault(channel, []).append(self.clock)
            case Take(channel):
                number = self.taken.get(channel, 0)
                while len(self.rank.given.get(channel, ())) <= number:
                    yield False
                self.taken[channel] = number + 1
                self.clock = max(self.clock, self.rank.given[channel][number])
        yield True

    def _operator(self, operator: Operator) -> Iterator[bool]:
        begin = self.clock
        self.clock += ns(operator.us)
        if operator.kernel is not None:
            call = self.clock
            while (free := self._place_in_queue()) is None:
                yield False
            self.clock = max(self.clock, free) + ns(operator.call_us)
            correlation = self._call(operator.call, call)
            kernel = operator.kernel
            after = self.rank.after.pop(kernel.stream, [])
            work = Work(kernel.name, kernel.stream, ns(kernel.us), self.step, correlation, self.clock, after)
            self._launch(work, kernel.transfer)
        self._row("cpu_op", operator.name, begin, self.clock - begin)

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

    def _launch(self, work: Work, transfer: bool) -> None:
        rank, machine = self.rank, self.machine
        if transfer:
            if rank.transfers == len(machine.meetings):
                machine.meetings.append([None] * len(machine.ranks))
            work.meeting = machine.meetings[rank.transfers]
            work.meeting[machine.ranks.index(rank)] = work
            rank.transfers += 1
        rank.run.work.append(work)
        rank.streams.setdefault(work.stream, []).append(work)
        rank.known.setdefault(work.stream, 0)
        rank.unknown += 1

    def _synchronise(self, stream: int | None) -> Iterator[bool]:
        streams = self.rank.streams
        chosen = list(streams) if stream is None else [stream]
        awaited = [streams[each][-1] for each in chosen if streams.get(each)]
        begin = self.clock
        self.machine.settle()
        while any(work.end is None for work in awaited):
            yield False
            self.machine.settle()
        ends = [work.end + RETURN for work in awaited if work.end is not None and work.end > begin]
        self.clock = max([begin + CALL, *ends])
        self._call("cudaDeviceSynchronize" if stream is None else "cudaStreamSynchronize", begin)

    def _wait(self, stream: int, awaited: int) -> None:
        rank, begin = self.rank, self.clock
        launched = rank.streams.get(awaited)
        if launched:
            rank.after.setdefault(stream, []).append(launched[-1])
        self.clock += CALL
        record = self._call("cudaEventRecord", begin)
        self.clock += CALL
        call = self._call("cudaStreamWaitEvent", begin + CALL)
        rank.run.waits.append(WaitNote(call, record, stream, awaited))

    def _call(self, name: str, begin: int) -> int:
        """Note a runtime call that ends now; returns its correlation."""
        correlation = self.rank.correlation()
        self._row("cuda_runtime", name, begin, self.clock - begin, correlation)
        return correlation

    def _row(self, category: str, name: str, start: int, duration: int, correlation: int = -1) -> None:
        self.rank.run.rows.append(Row(category, name, self.number, self.step, start, duration, correlation))


def ns(us: float) -> int:
    """Whole ns of a time in µs."""
    return round(us * 1000)
