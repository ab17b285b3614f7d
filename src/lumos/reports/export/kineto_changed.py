"""Write a changed job as profiler files, one for each rank, from the run of its graph.

Each task of a thread is a row at its simulated time, so an operator that does other work in between has several; time between operators is
a pause, as in a recording. A dependency between two streams is written as a pair of calls that record and await an event, which take up
to CALL ns of the launches that they belong to. Work that the change added takes no place in the queue of launches, as in the run, and says
so. Collectives have the group and the number by which replaying finds those that meet.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import count, pairwise
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from lumos.errors import LumosError
from lumos.graph.table import Dependency, Graph, Kind
from lumos.reports.export.kineto import CALL, write_ranks
from lumos.reports.export.kineto_nested import NestedRow, Nesting, OpenOperators
from lumos.trace.kineto_rows import (
    BASE,
    ORIGIN,
    PROCESS,
    THREAD,
    call,
    collective_arguments,
    complete,
    flow,
    nccl_kernel,
    process_name,
    quoted,
    stream_sync,
    stream_wait,
    whole_window,
)
from lumos.trace.table import Origin
from lumos.vocabulary import CollectiveKind, Grade

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lumos.simulation.timeline import Timeline
    from lumos.trace.table import Job

_CATEGORY = {Kind.KERNEL: "kernel", Kind.COLLECTIVE: "kernel", Kind.MEMCPY: "gpu_memcpy", Kind.MEMSET: "gpu_memset"}
#: The argument of rows that belong to no operator.
_NO_ID = '"External id":0'
_WORDS = {CollectiveKind.ALL_REDUCE: "allreduce", CollectiveKind.RECEIVE: "recv"}
#: Ranges in which a CPU thread carries out a collective begin with the name of the library.
_ON_CPU = ("gloo:", "mpi:", "ucc:")


#: How the calls that launch a whole graph are named, after the letters of the runtime.
_GRAPH_LAUNCH = "GraphLaunch"


class _Meeting(NamedTuple):
    """What a collective says of itself: the ranks that meet, and its number among the collectives of these ranks."""

    ranks: tuple[int, ...]
    number: int


def write_changed(folder: str, timeline: Timeline, recorded: Job | None = None, grade: Grade = Grade.LIMITED) -> list[str]:
    """Write one file per rank of a changed job, as it ran in `timeline`, to a folder, which is created if it is absent; returns the paths.

    recorded: the traces whose rows the graph's `event` names, where the work still has their shapes: then operators are nested as there.

    Raises LumosError for a recording of whole operations, whose steps have no common clock, for captured passes of several
    streams that wait for each other, and where the folder cannot be written;
    UsageError where it holds other traces.
    """
    if timeline.graph.steps_alone or not any(not p.is_stream for p in timeline.graph.processors):
        raise LumosError(
            "--kineto: this job consists of whole operations, not of calls and kernels that a profiler could record; use --chakra"
        )
    meetings = _meetings(timeline.graph)
    traces = () if recorded is None else recorded.traces

    def content(rank: int) -> tuple[bytes, Iterator[str]]:
        position = timeline.graph.ranks.index(rank)
        nesting = Nesting(traces[position]) if position < len(traces) else None
        return _header(rank, timeline.graph, meetings, grade), _Sheet(timeline, rank, meetings, nesting).rows()

    return write_ranks(folder, timeline.graph.ranks, content)


def _meetings(graph: Graph) -> dict[int, _Meeting]:
    """The meeting of each collective task. Those that meet none are the only members of theirs."""
    ranks, offset = graph.rank_of_task, graph.rendezvous_offset
    sets = [graph.rendezvous_task[offset[i] : offset[i + 1]].tolist() for i in range(len(offset) - 1)]
    together = {task for one in sets for task in one}
    sets += [[task] for task in np.flatnonzero(graph.kind == Kind.COLLECTIVE).tolist() if task not in together]
    counted: dict[tuple[int, ...], int] = defaultdict(int)
    out: dict[int, _Meeting] = {}
    for members in sorted(sets, key=min):
        group = tuple(sorted({int(ranks[task]) for task in members}))
        counted[group] += 1
        out.update(dict.fromkeys(members, _Meeting(group, counted[group])))
    return out


def _group(ranks: tuple[int, ...]) -> str:
    return "ranks " + "-".join(map(str, ranks))


def _header(rank: int, graph: Graph, meetings: dict[int, _Meeting], grade: Grade) -> bytes:
    """The file up to its rows."""
    groups = sorted({m.ranks for m in meetings.values() if rank in m.ranks})
    world = max(graph.ranks) + 1
    config = [{"pg_name": _group(g), "pg_desc": "lumos", "pg_size": len(g), "ranks": list(g)} for g in groups]
    info = {"rank": rank, "world_size": world, "pg_count": len(groups), "pg_config": config}
    out = {"schemaVersion": 1, "lumos": Origin("changed", grade).said, "distributedInfo": info, "baseTimeNanoseconds": BASE}
    return msgspec.json.encode(out)[:-1] + b',"traceEvents":[\n'


class _Sheet:
    """The rows of one rank."""

    def __init__(self, timeline: Timeline, rank: int, meetings: dict[int, _Meeting], nesting: Nesting | None) -> None:
        self.graph, self.rank, self.meetings, self.nesting = timeline.graph, rank, meetings, nesting
        self.start, self.end = (timeline.start + ORIGIN).tolist(), (timeline.end + ORIGIN).tolist()
        self.tasks: list[int] = np.flatnonzero(self.graph.rank_of_task == rank).tolist()
        self.fresh = count(len(self.graph) + 1)
        facts, waits = self.graph.collectives, self.graph.waits
        self.fact = {} if facts is None else {task: i for i, task in enumerate(facts.task.tolist())}
        self.target = {} if waits is None else dict(zip(waits.task.tolist(), waits.target.tolist(), strict=True))
        #: By call, the device work that it launches; by device work, what it awaits on other streams; by return, what it awaits.
        self.work: dict[int, list[int]] = defaultdict(list)
        self.awaits: dict[int, list[int]] = defaultdict(list)
        self.returns: dict[int, list[int]] = defaultdict(list)
        self.launch: dict[int, int] = {}
        self._sort_dependencies()
        self._check_launches()
        #: The ids of added work, which no call of the recording launched: it has one of its own behind that of the work beside it.
        self.added = {d: next(self.fresh) for work in self.work.values() if len(work) > 1 for d in work if self.graph.event[d] < 0}
        #: The ids of the calls that record an event behind device work.
        awaited = sorted({b for found in (self.awaits, self.returns) for before in found.values() for b in before})
        self.record = {before: next(self.fresh) for before in awaited}

    def _sort_dependencies(self) -> None:
        graph, on_device = self.graph, self.graph.on_device
        for task in self.tasks:
            for e in range(int(graph.pred_offset[task]), int(graph.pred_offset[task + 1])):
                before, kind = int(graph.pred[e]), int(graph.pred_kind[e])
                if kind == Dependency.LAUNCH:
                    self.launch[task] = before
                    self.work[before].append(task)
                elif kind == Dependency.SYNC and on_device[before]:
                    self.returns[task].append(before)
                elif kind == Dependency.STREAM_WAIT and on_device[task] and graph.processor[before] != graph.processor[task]:
                    self.awaits[task].append(before)

    def _check_launches(self) -> None:
        """Raise LumosError where a stream waits for another within what one call launches: a wait is a row before or behind a call."""
        for task, found in self.awaits.items():
            call = self.launch.get(task, -1)
            recorded = [before for before in found if min(self.graph.event[task], self.graph.event[before]) >= 0]
            if call >= 0 and call in map(self.launch.get, recorded):
                raise LumosError(
                    "--kineto: in a captured pass one stream waits for another, and a profiler's rows show no wait inside what one call"
                    " launches; use --chakra"
                )

    def rows(self) -> Iterator[str]:
        """All rows."""
        processors = self.graph.processors
        threads: dict[int, list[int]] = {i: [] for i, p in enumerate(processors) if p.rank == self.rank and not p.is_stream}
        device: list[int] = []
        for task in self.tasks:
            threads.get(int(self.graph.processor[task]), device).append(task)
        yield process_name()
        for thread in threads:
            name = quoted(processors[thread].name)
            yield f'{{"name":"thread_name","ph":"M","ts":0,"pid":{PROCESS},"tid":{THREAD + thread},"args":{{"name":{name}}}}}'
        lane = {processors[thread].lane: thread for thread in threads}
        for step in (step for step in self.graph.steps if step.rank == self.rank):
            thread = THREAD + lane.get(step.lane, min(threads))
            yield complete("user_annotation", step.name, step.start + ORIGIN, step.end + ORIGIN, _NO_ID, thread=thread)
        for thread, tasks in threads.items():
            around = OpenOperators(self.nesting) if self.nesting is not None else None
            for task, following in pairwise([*tasks, -1]):
                nested = around is not None and self._nests(task)
                if around is not None:
                    yield from self._operators(around, task, THREAD + thread)
                yield from self._on_thread(task, following, THREAD + thread, flat=not nested)
            if around is not None:
                yield from self._written(around.pause(), THREAD + thread)
        for task in device:
            yield from self._on_device(task)
        first, last = min(self.start[t] for t in self.tasks), max(self.end[t] for t in self.tasks)
        yield whole_window(first, last)

    def _nests(self, task: int) -> bool:
        """Whether the recording shows what was around a task: its row is of the work that the task does."""
        row, name = int(self.graph.event[task]), self.graph.names[self.graph.name[task]]
        kinds = (Kind.OPERATOR, Kind.LAUNCH, Kind.RUNTIME, Kind.SYNC)
        return self.nesting is not None and row >= 0 and self.graph.kind[task] in kinds and self.nesting.name(row) == name

    def _begins(self, task: int) -> bool:
        """Whether a thread that was idle begins again at a return, after work of another thread. Others end a call."""
        kinds = self.graph.pred_kind[self.graph.pred_offset[task] : self.graph.pred_offset[task + 1]]
        return bool((kinds == Dependency.HAND_OFF).any())

    def _operators(self, around: OpenOperators, task: int, thread: int) -> Iterator[str]:
        """The operators that end before a task of a thread."""
        if self.graph.kind[task] == Kind.RETURN and not self._begins(task):
            around.longer(self.end[task])
        elif self._nests(task):
            yield from self._written(around.piece(int(self.graph.event[task]), self.start[task], self.end[task]), thread)
        else:
            yield from self._written(around.pause(), thread)

    def _written(self, operators: Iterator[NestedRow], thread: int) -> Iterator[str]:
        for row, begin, end in operators:
            assert self.nesting is not None
            yield complete("cpu_op", self.nesting.name(row), begin, end, _NO_ID + self.nesting.inputs(row), thread=thread)

    def _on_thread(self, task: int, following: int, thread: int, *, flat: bool) -> Iterator[str]:
        """The rows of a task of a thread. following: the next task there, -1 without one. flat: whether an operator is a row of its own."""
        kind, begin, end, name = self.graph.kind[task], self.start[task], self.end[task], self.graph.names[self.graph.name[task]]
        if kind == Kind.COLLECTIVE:
            shown = name if name.startswith(_ON_CPU) else f"gloo:{self._kind(task).value.replace('-', '_')}"
            yield complete("user_annotation", shown, begin, end, f"{_NO_ID},{self._stated(task)}", thread=thread)
        elif kind == Kind.LAUNCH and begin == end and task not in self.work:
            return  # a captured pass does not make this call
        elif kind in (Kind.LAUNCH, Kind.RUNTIME, Kind.SYNC):
            ends = following >= 0 and self.graph.kind[following] == Kind.RETURN and not self._begins(following)
            back = following if ends else -1
            captured = _GRAPH_LAUNCH not in name and sum(d not in self.added for d in self.work[task]) > 1
            shown = f"cuda{_GRAPH_LAUNCH}" if captured else name
            yield from self._calls(task, shown, begin, end if back < 0 else self.end[back], thread)
            if back >= 0:
                yield from self._awaited(task, back)
        elif flat and kind not in (Kind.HOST, Kind.RETURN):
            yield complete("cpu_op", name, begin, end, _NO_ID, thread=thread)

    def _calls(self, task: int, name: str, begin: int, end: int, thread: int) -> Iterator[str]:
        """A call, with those around it by which the work that it launches waits for other streams and is waited for. Added work that the
        call's own work waits for is launched before that, and other added work behind it."""
        own = [d for d in self.work[task] if d not in self.added]
        early = [d for d in self.work[task] if d in self.added and any(d in self.awaits[w] for w in own)]
        late = [d for d in self.work[task] if d in self.added and d not in early]
        groups = [*([d] for d in early), own, *([d] for d in late)]
        others = len(early) + len(late) + sum(len(self.awaits[d]) + (d in self.record) for group in groups for d in group)
        each = min(CALL, (end - begin) // (others + 1))  # a call of its own time each: by their begins it is known what a record follows
        rest = end - begin - each * others
        at = begin
        for work in groups:
            for device, before in ((d, b) for d in work for b in self.awaits[d]):
                number, stop = next(self.fresh), at + each
                yield call("cudaStreamWaitEvent", at, stop, number, thread)
                yield stream_wait(self._stream(device), self._stream(before), self.record[before], at, number, self._device(device))
                at = stop
            number = task + 1 if work is own else self.added[work[0]]
            stop = at + (rest if work is own else each)
            yield call(name if work is own else "cudaLaunchKernelExC", at, stop, number, thread)
            if work:
                yield flow("s", number, PROCESS, thread, at)
            at = stop
            for number in (self.record[d] for d in work if d in self.record):
                stop = at + each
                yield call("cudaEventRecord", at, stop, number, thread)
                at = stop

    def _awaited(self, call: int, back: int) -> Iterator[str]:
        """What the return of a call waited for."""
        begin, end, number = self.start[call], self.end[back], call + 1
        streams = [i for i, p in enumerate(self.graph.processors) if p.is_stream and p.rank == self.rank]
        target = self.target.get(back)
        for i in streams if target == -1 else [] if target is None else [target]:
            yield stream_sync(self.graph.processors[i].stream, begin, end, number, self.graph.processors[i].device)
        for before in self.returns[back][-1:]:
            yield stream_wait(-1, self._stream(before), self.record[before], begin, number, self._device(before))

    def _on_device(self, task: int) -> Iterator[str]:
        """The row of device work."""
        kind, begin, end, name = Kind(self.graph.kind[task]), self.start[task], self.end[task], self.graph.names[self.graph.name[task]]
        device, stream, number = self._device(task), self._stream(task), self.added.get(task, self.launch.get(task, -1) + 1)
        args = f'{_NO_ID},"device":{device},"context":1,"stream":{stream},"correlation":{number or next(self.fresh)}'
        if task in self.added:
            args += ',"Queue place":0'
        if kind == Kind.COLLECTIVE:
            args += f",{self._stated(task)}"
            name = name if "nccl" in name.lower() else nccl_kernel(self._kind(task))
        yield complete(_CATEGORY[kind], name, begin, end, args, device, stream)
        if number:
            yield flow("f", number, device, stream, begin)

    def _stated(self, task: int) -> str:
        """The arguments of a collective."""
        ranks, number = self.meetings[task]
        kind, facts = self._kind(task), self.graph.collectives
        size = 0 if facts is None or task not in self.fact else max(int(facts.nbytes[self.fact[task]]), 0)
        peers = [rank for rank in ranks if rank != self.rank]
        side = {CollectiveKind.SEND: "Dst", CollectiveKind.RECEIVE: "Src"}.get(kind)
        peer = f',"{side} Rank":{peers[0]}' if side and len(peers) == 1 else ""
        word = _WORDS.get(kind, kind.value.replace("-", "_"))
        return collective_arguments(word, (size, size), '"Byte"', _group(ranks), ranks, number, peer)

    def _kind(self, task: int) -> CollectiveKind:
        """The kind of a collective; of an added one its name says it."""
        facts = self.graph.collectives
        if facts is None or task not in self.fact:
            return CollectiveKind.in_name(self.graph.names[self.graph.name[task]])
        return facts.kinds[int(facts.kind[self.fact[task]])]

    def _stream(self, task: int) -> int:
        return self.graph.processors[int(self.graph.processor[task])].stream

    def _device(self, task: int) -> int:
        return self.graph.processors[int(self.graph.processor[task])].device
