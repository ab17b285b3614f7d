"""Write a job that no profiler saw as profiler files, one for each rank, from a run of its graph.

The files are named `rank<N>.json.gz` and have Kineto's form of torch 2.5 and later. Every task has a row at its simulated time. A call that
launches work whose stream waits for another stands behind the calls that wait for an event, and before those that record one: each takes
up to CALL ns of the launch that it belongs to, and has its `cuda_sync` row. Collectives have the group and the number by which replaying
finds those that meet. What the operators around a thread's tasks are, and what kernels are called, differs between jobs: a subclass of
`RankRows` says it.
"""

from __future__ import annotations

import gzip
from collections import defaultdict
from itertools import count, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.graph.table import Dependency, Kind
from lumos.output_files import check_only_own, new_folder
from lumos.trace.kineto_rows import (
    ORIGIN,
    PROCESS,
    THREAD,
    call,
    collective_arguments,
    complete,
    event_sync,
    flow,
    footer,
    nccl_kernel,
    process_name,
    stream_wait,
    thread_name,
    whole_window,
)
from lumos.vocabulary import CollectiveKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from lumos.graph.table import Graph
    from lumos.simulation.timeline import Timeline

#: CPU time of a call that records or waits for an event, ns.
CALL = 200
#: The argument of rows that belong to no operator.
NO_ID = '"External id":0'
#: What PyTorch calls collectives; the others have the names of the vocabulary.
_C10D = {
    CollectiveKind.ALL_REDUCE: "allreduce",
    CollectiveKind.ALL_GATHER: "_allgather_base",
    CollectiveKind.REDUCE_SCATTER: "_reduce_scatter_base",
    CollectiveKind.ALL_TO_ALL: "all_to_allv",
    CollectiveKind.RECEIVE: "recv",
}
#: By what a stream waits for another.
_WAITS = (Dependency.STREAM_WAIT, Dependency.DATA)
_CATEGORY = {Kind.KERNEL: "kernel", Kind.COLLECTIVE: "kernel", Kind.MEMCPY: "gpu_memcpy", Kind.MEMSET: "gpu_memset"}


class _Meeting(NamedTuple):
    """What a collective says of itself: the ranks that meet, and its number among the collectives of these ranks."""

    ranks: tuple[int, ...]
    number: int


class WrittenRun:
    """A run of a job, with what the files of its ranks have in common."""

    def __init__(self, timeline: Timeline) -> None:
        self.timeline, self.graph = timeline, timeline.graph
        self.meetings = _meetings(self.graph)
        facts = self.graph.collectives
        self.fact = {} if facts is None else {task: i for i, task in enumerate(facts.task.tolist())}
        ranks = self.graph.rank_of_task
        order, known = np.argsort(ranks, kind="stable"), np.array(self.graph.ranks)
        edges = np.searchsorted(ranks[order], np.stack((known, known + 1)))
        self.tasks = {rank: order[low:high].tolist() for rank, low, high in zip(self.graph.ranks, *edges.tolist(), strict=True)}
        self._groups = sorted({meeting.ranks for meeting in self.meetings.values()})

    def groups(self, rank: int) -> list[tuple[str, str, Sequence[int]]]:
        """Name, description and ranks of the groups of a rank."""
        return [(name_of_group(ranks), "lumos", ranks) for ranks in self._groups if rank in ranks]

    def kind(self, task: int) -> CollectiveKind:
        """The kind of a collective; of an added one its name says it."""
        facts = self.graph.collectives
        if facts is None or task not in self.fact:
            return CollectiveKind.in_name(self.graph.names[self.graph.name[task]])
        return facts.kinds[int(facts.kind[self.fact[task]])]


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


def c10d_name(kind: CollectiveKind) -> str:
    """What PyTorch calls a kind of collective."""
    return _C10D.get(kind, kind.value.replace("-", "_"))


def name_of_group(ranks: Sequence[int]) -> str:
    """The name of the group of these ranks: all of them, or those from the first to the last in equal steps."""
    step = ranks[1] - ranks[0] if len(ranks) > 4 else 0
    if step and list(ranks) == list(range(ranks[0], ranks[-1] + 1, step)):
        return f"ranks {ranks[0]} to {ranks[-1]} by {step}"
    return "ranks " + "-".join(map(str, ranks))


def write_ranks(folder: str, ranks: Iterable[int], content: Callable[[int], tuple[bytes, Iterator[str]]]) -> list[str]:
    """Write the files of some ranks, of which `content` gives the header and the rows, to `folder`; returns their paths."""
    names = {rank: f"rank{rank}.json.gz" for rank in ranks}
    check_only_own(folder, "*.json*", list(names.values()))
    with new_folder(folder) as draft:
        for rank, name in names.items():
            begin, rows = content(rank)
            with gzip.open(draft / name, "wb", compresslevel=4) as file:
                file.write(begin + ",\n".join(rows).encode() + footer(rank))
    return [str(Path(folder) / name) for name in names.values()]


class RankRows:
    """The rows of one rank. shift: of its clock, ns."""

    #: The most that a launch call takes of its task, ns; the rest is its operator's own.
    longest_launch: int | None = None
    #: The type that collectives say they move, and its bytes.
    element = ("Byte", 1)

    def __init__(self, run: WrittenRun, rank: int, shift: int = 0) -> None:
        self.run, self.graph, self.rank = run, run.graph, rank
        self.tasks = run.tasks[rank]
        start, end = run.timeline.start[self.tasks] + ORIGIN + shift, run.timeline.end[self.tasks] + ORIGIN + shift
        self.start, self.end = (dict(zip(self.tasks, times.tolist(), strict=True)) for times in (start, end))
        self.fresh = count(len(self.graph) + 1)
        #: By call, the device work that it launches; by device work, what it awaits on other streams; by task, what its thread awaits.
        self.work: dict[int, list[int]] = defaultdict(list)
        self.awaits: dict[int, list[int]] = defaultdict(list)
        self.returns: dict[int, list[int]] = defaultdict(list)
        self.launch: dict[int, int] = {}
        self._sort_dependencies()
        #: The ids of added work, which no call of the recording launched: it has one of its own behind that of the work beside it.
        self.added = {d: next(self.fresh) for work in self.work.values() if len(work) > 1 for d in work if self.graph.event[d] < 0}
        #: The ids of the calls that record an event behind device work.
        awaited = sorted({b for waits in (self.awaits, self.returns) for before in waits.values() for b in before})
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
                elif kind in _WAITS and on_device[task] and on_device[before] and graph.processor[before] != graph.processor[task]:
                    self.awaits[task].append(before)
        for task, awaited_tasks in self.returns.items():  # the last to end on each stream
            last = {self.stream(before): before for before in sorted(awaited_tasks, key=self.end.__getitem__)}
            self.returns[task] = sorted(last.values(), key=self.end.__getitem__)

    def rows(self) -> Iterator[str]:
        """All rows."""
        processors = self.graph.processors
        threads: dict[int, list[int]] = {i: [] for i, p in enumerate(processors) if p.rank == self.rank and not p.is_stream}
        device: list[int] = []
        for task in self.tasks:
            threads.get(int(self.graph.processor[task]), device).append(task)
        yield process_name()
        for thread in threads:
            yield thread_name(THREAD + thread, processors[thread].name)
        yield from self.steps(threads)
        for thread, tasks in threads.items():
            yield from self.on_thread(pairwise([*tasks, -1]), THREAD + thread)
        for task in device:
            yield from self._on_device(task)
        yield whole_window(min(self.start.values()), max(self.end.values()))

    def steps(self, threads: dict[int, list[int]]) -> Iterator[str]:
        """The marks of the steps. threads: the tasks of each."""
        raise NotImplementedError

    def on_thread(self, tasks: Iterable[tuple[int, int]], thread: int) -> Iterator[str]:
        """The rows of a thread. tasks: in order, each with the one that follows, -1 behind the last."""
        raise NotImplementedError

    def calls(self, task: int, name: str, begin: int, end: int, thread: int) -> Iterator[str]:
        """A call, with those around it by which the work that it launches waits for other streams and is waited for. Added work that the
        call's own work waits for is launched before that, and other added work behind it."""
        own = [d for d in self.work[task] if d not in self.added]
        early = [d for d in self.work[task] if d in self.added and any(d in self.awaits[w] for w in own)]
        late = [d for d in self.work[task] if d in self.added and d not in early]
        groups = [*([d] for d in early), own, *([d] for d in late)]
        others = len(early) + len(late) + sum(len(self.awaits[d]) + (d in self.record) for group in groups for d in group)
        call_ns = min(CALL, (end - begin) // (others + 1))  # a call of its own time each: by their begins it is known what a record follows
        rest = end - begin - call_ns * others
        at, own_id = begin, self.operator_id(task)
        for work in groups:
            for device, before in ((d, b) for d in work for b in self.awaits[d]):
                number, stop = next(self.fresh), at + call_ns
                yield call("cudaStreamWaitEvent", at, stop, number, thread, own_id)
                yield stream_wait(self.stream(device), self.stream(before), self.record[before], at, number, self._device(device))
                at = stop
            number = task + 1 if work is own else self.added[work[0]]
            stop = at + (rest if work is own else call_ns)
            at = at if self.longest_launch is None else max(at, stop - self.longest_launch)
            yield call(name if work is own else "cudaLaunchKernelExC", at, stop, number, thread, own_id)
            if work:
                yield flow("s", number, PROCESS, thread, at)
            at = stop
            for number in (self.record[d] for d in work if d in self.record):
                stop = at + call_ns
                yield call("cudaEventRecord", at, stop, number, thread, own_id)
                at = stop

    def operator_id(self, task: int) -> str:  # noqa: ARG002 - a subclass may know it
        """The number of the operator of a thread's task, as an argument of its rows and of what it launches."""
        return NO_ID

    def awaited(self, before: int, begin: int, end: int, number: int) -> str:
        """The row that says that a call waited for the event behind device work. number: the call's correlation id."""
        return event_sync(self.stream(before), self.record[before], begin, end, number, self._device(before))

    def _on_device(self, task: int) -> Iterator[str]:
        """The row of device work."""
        kind, begin, end = Kind(self.graph.kind[task]), self.start[task], self.end[task]
        device, stream, number = self._device(task), self.stream(task), self.added.get(task, self.launch.get(task, -1) + 1)
        shown = number or next(self.fresh)
        args = f'{self.operator_id(self.launch.get(task, -1))},"device":{device},"context":1,"stream":{stream},"correlation":{shown}'
        if task in self.added:
            args += ',"Queue place":0'
        if kind == Kind.COLLECTIVE:
            args += f",{self.stated(task)}"
        yield complete(_CATEGORY[kind], self.shown(task), begin, end, args, device, stream)
        if number:
            yield flow("f", number, device, stream, begin)

    def shown(self, task: int) -> str:
        """What device work is called."""
        name = self.name(task)
        return name if self.graph.kind[task] != Kind.COLLECTIVE or "nccl" in name.lower() else nccl_kernel(self.run.kind(task))

    def stated(self, task: int) -> str:
        """The arguments of a collective."""
        ranks, number = self.run.meetings[task]
        kind, facts, fact = self.run.kind(task), self.graph.collectives, self.run.fact.get(task)
        into = 0 if facts is None or fact is None else max(int(facts.nbytes[fact]), 0)
        out = into * len(ranks) if kind is CollectiveKind.ALL_GATHER else into
        out = into // len(ranks) if kind is CollectiveKind.REDUCE_SCATTER else out
        word, width = ("Byte", 1) if into % self.element[1] or out % self.element[1] else self.element
        peers = [rank for rank in ranks if rank != self.rank]
        side = {CollectiveKind.SEND: "Dst", CollectiveKind.RECEIVE: "Src"}.get(kind)
        peer = f',"{side} Rank":{peers[0]}' if side and len(peers) == 1 else ""
        return collective_arguments(c10d_name(kind), (into // width, out // width), f'"{word}"', name_of_group(ranks), ranks, number, peer)

    def name(self, task: int) -> str:
        """What the graph calls a task."""
        name: str = self.graph.names[self.graph.name[task]]
        return name

    def stream(self, task: int) -> int:
        """The number of the stream of device work."""
        return self.graph.processors[int(self.graph.processor[task])].stream

    def _device(self, task: int) -> int:
        return self.graph.processors[int(self.graph.processor[task])].device
