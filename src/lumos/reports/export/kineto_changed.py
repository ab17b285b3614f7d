"""Write a changed job as profiler files, one for each rank, from the run of its graph: `lumos whatif --kineto`.

An operator that does other work in between has several rows; time between operators is a pause, as in a recording. Work that the change
added takes no place in the queue of launches, as in the run, and says so.

Around the work are the operators that were around its like in the recording, with the shapes of their inputs. A thread's work comes in
pieces, each of which names a row of the recording: the operator whose own time it is, or a call. The operators that were open there are
open here too. One that was open before goes on as long as pieces follow each other as they did in the recording; where the recording is
gone back in, as when a layer runs once more, it ends and begins anew.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.errors import LumosError
from lumos.graph.table import Dependency, Kind
from lumos.reports.export.kineto_sheet import NO_ID, RankRows, WrittenRun, write_ranks
from lumos.trace.kineto_rows import ORIGIN, THREAD, complete, header, stream_sync
from lumos.trace.nesting import parents
from lumos.trace.table import ABSENT, CHANGED, Category, Origin

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from lumos.simulation.timeline import Timeline
    from lumos.trace.table import Job, Trace

#: Ranges in which a CPU thread carries out a collective begin with the name of the library.
_ON_CPU = ("gloo:", "mpi:", "ucc:")
#: How the calls that launch a whole graph are named, after the letters of the runtime.
_GRAPH_LAUNCH = "GraphLaunch"


def write_changed(folder: str, timeline: Timeline, recorded: Job | None = None, origin: Origin = Origin(CHANGED)) -> list[str]:
    """Write one file per rank of a changed job, as it ran in `timeline`, to a folder, which is created if it is absent; returns the paths.

    recorded: the traces whose rows the graph's `event` names, where the work still has their shapes: then operators are nested as there.

    Raises LumosError for a recording of whole operations, whose steps have no common clock, for captured passes of several
    streams that wait for each other, and where the folder cannot be written;
    UsageError where it holds other traces.
    """
    graph = timeline.graph
    if graph.steps_alone or not any(not p.is_stream for p in graph.processors):
        raise LumosError(
            "--kineto: this job consists of whole operations, not of calls and kernels that a profiler could record; use --chakra"
        )
    run, traces = WrittenRun(timeline), () if recorded is None else recorded.traces

    def content(rank: int) -> tuple[bytes, Iterator[str]]:
        position = graph.ranks.index(rank)
        nesting = Nesting(traces[position]) if position < len(traces) else None
        begin = header(origin, rank, max(graph.ranks) + 1, run.groups(rank), None)
        return begin, _ChangedRows(run, rank, nesting).rows()

    return write_ranks(folder, graph.ranks, content)


class _ChangedRows(RankRows):
    """The rows of one rank of a changed job."""

    def __init__(self, run: WrittenRun, rank: int, nesting: Nesting | None) -> None:
        super().__init__(run, rank)
        self.nesting, waits = nesting, self.graph.waits
        self.target = {} if waits is None else dict(zip(waits.task.tolist(), waits.target.tolist(), strict=True))
        self._check_launches()

    def _check_launches(self) -> None:
        """Raise LumosError where a stream waits for another within what one call launches: a wait is a row before or behind a call."""
        for task, awaited_calls in self.awaits.items():
            call = self.launch.get(task, -1)
            recorded = [before for before in awaited_calls if min(self.graph.event[task], self.graph.event[before]) >= 0]
            if call >= 0 and call in map(self.launch.get, recorded):
                raise LumosError(
                    "--kineto: in a captured pass one stream waits for another, and a profiler's rows show no wait inside what one call"
                    " launches; use --chakra"
                )

    def steps(self, threads: dict[int, list[int]]) -> Iterator[str]:
        lane = {self.graph.processors[thread].lane: thread for thread in threads}
        for step in (step for step in self.graph.steps if step.rank == self.rank):
            thread = THREAD + lane.get(step.lane, min(threads))
            yield complete("user_annotation", step.name, step.start + ORIGIN, step.end + ORIGIN, NO_ID, thread=thread)

    def on_thread(self, tasks: Iterable[tuple[int, int]], thread: int) -> Iterator[str]:
        around = OpenOperators(self.nesting) if self.nesting is not None else None
        came = None
        for task, following in tasks:
            if came is not None and self.graph.kind[task] == Kind.LAUNCH and not self._begins(task):
                self.start[task] = came  # a call that waits for a place in the queue of launches does so inside
            came = self.end[task]
            nested = around is not None and self._nests(task)
            if around is not None:
                yield from self._operators(around, task, thread)
            yield from self._task(task, following, thread, flat=not nested)
        if around is not None:
            yield from self._written(around.pause(), thread)

    def _nests(self, task: int) -> bool:
        """Whether the recording shows what was around a task: its row is of the work that the task does."""
        row, kinds = int(self.graph.event[task]), (Kind.OPERATOR, Kind.LAUNCH, Kind.RUNTIME, Kind.SYNC)
        return self.nesting is not None and row >= 0 and self.graph.kind[task] in kinds and self.nesting.name(row) == self.name(task)

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
            yield complete("cpu_op", self.nesting.name(row), begin, end, NO_ID + self.nesting.inputs(row), thread=thread)

    def _task(self, task: int, following: int, thread: int, *, flat: bool) -> Iterator[str]:
        """The rows of a task of a thread. following: the next task there, -1 without one. flat: whether an operator is a row of its own."""
        kind, begin, end, name = self.graph.kind[task], self.start[task], self.end[task], self.name(task)
        if kind == Kind.COLLECTIVE:
            shown = name if name.startswith(_ON_CPU) else f"gloo:{self.run.kind(task).value.replace('-', '_')}"
            yield complete("user_annotation", shown, begin, end, f"{NO_ID},{self.stated(task)}", thread=thread)
        elif kind == Kind.LAUNCH and begin == end and task not in self.work:
            return  # a captured pass does not make this call
        elif kind in (Kind.LAUNCH, Kind.RUNTIME, Kind.SYNC):
            ends = following >= 0 and self.graph.kind[following] == Kind.RETURN and not self._begins(following)
            back = following if ends else -1
            captured = _GRAPH_LAUNCH not in name and sum(d not in self.added for d in self.work[task]) > 1
            shown = f"cuda{_GRAPH_LAUNCH}" if captured else name
            yield from self.calls(task, shown, begin, end if back < 0 else self.end[back], thread)
            if back >= 0:
                yield from self._returned(task, back)
        elif flat and kind not in (Kind.HOST, Kind.RETURN):
            yield complete("cpu_op", name, begin, end, NO_ID, thread=thread)

    def _returned(self, call: int, back: int) -> Iterator[str]:
        """What the return of a call waited for."""
        begin, end, number = self.start[call], self.end[back], call + 1
        streams = [i for i, p in enumerate(self.graph.processors) if p.is_stream and p.rank == self.rank]
        target = self.target.get(back)
        for i in streams if target == -1 else [] if target is None else [target]:
            yield stream_sync(self.graph.processors[i].stream, begin, end, number, self.graph.processors[i].device)
        for before in self.returns.get(back, ()):
            yield self.awaited(before, begin, end, number)


#: What the profiler notes of an operator's inputs. Autograd's numbers are left out: they would be the same in every copy.
_FACTS = ("Input Dims", "Input type", "Input Strides", "Concrete Inputs")


class NestedRow(NamedTuple):
    """An operator to write. row: of the recording. begin, end: ns."""

    row: int
    begin: int
    end: int


class Nesting:
    """Which operators of a recorded rank were open around each row, and what is known of them."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        rows = np.flatnonzero(trace.is_any(Category.OPERATOR, Category.RUNTIME))
        self.parent = parents(trace, rows, trace.category[rows] == Category.OPERATOR)
        self.start: list[int] = trace.start.tolist()
        self.facts = {key: trace.dense(key) for key in _FACTS if key in trace.args}

    def name(self, row: int) -> str:
        return str(self.trace.strings[self.trace.name[row]])

    def around(self, row: int) -> list[int]:
        """The operators that were open when the row began, the outermost first, and itself if it is one."""
        out = [row] if self.trace.category[row] == Category.OPERATOR else []
        while (row := int(self.parent[row])) != ABSENT:
            out.append(row)
        return out[::-1]

    def inputs(self, row: int) -> str:
        """What the recording says of an operator's inputs, as members of a JSON object behind others; "" where it says nothing. A
        trace keeps these lists as JSON."""
        texts = [(key, int(column[row])) for key, column in self.facts.items()]
        return "".join(f',"{key}":{self.trace.strings[text]}' for key, text in texts if text >= 0)


class OpenOperators:
    """The operators that are open on a thread of the changed job."""

    def __init__(self, nesting: Nesting) -> None:
        self.nesting = nesting
        self.rows: list[tuple[int, int]] = []  # row, begin
        self.end, self.last = 0, ABSENT  # of the piece before, and its row

    def piece(self, row: int, begin: int, end: int) -> Iterator[NestedRow]:
        """Go on with a piece of the recorded row; gives the operators that end with the piece before."""
        wanted = self.nesting.around(row)
        back = self.last != ABSENT and self.nesting.start[row] < self.nesting.start[self.last] and row not in {r for r, _ in self.rows}
        same = 0
        while not back and same < min(len(self.rows), len(wanted)) and self.rows[same][0] == wanted[same]:
            same += 1
        yield from self._closed(same)
        self.rows += [(row_inside, begin) for row_inside in wanted[same:]]
        self.end, self.last = end, row

    def pause(self) -> Iterator[NestedRow]:
        """Gives all operators that are open: what follows is in none."""
        yield from self._closed(0)

    def longer(self, end: int) -> None:
        """The piece before takes until then."""
        self.end = end

    def _closed(self, keep: int) -> Iterator[NestedRow]:
        while len(self.rows) > keep:
            row, begin = self.rows.pop()
            yield NestedRow(row, begin, self.end)
