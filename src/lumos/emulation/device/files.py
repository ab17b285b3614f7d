"""The traces of an emulated job: one file a rank in Kineto's form and its execution trace, from the records of its processes.

The work of every rank is priced and simulated together, so that waiting for other ranks emerges. Each rank has a file of its own, copies
too, so that every verb answers for the whole job; where that would be more than `_MOST_ROWS` rows or `_MOST_RANKS` ranks, only those
that were run have files, and the answers say which ranks are absent. Rows are what a profiler would have recorded, at the times that the
simulation gave: operators with their shapes, marks, calls of the runtime, device work with the arguments of its collectives, waits with the
call that recorded their event, the arrows between them, and the memory that was taken and given back, as PyTorch's allocator does.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from lumos.blocks.price import Pricer, kernel_by_kernel
from lumos.diagnostics import Diagnostic
from lumos.emulation.device.host import host_ns
from lumos.emulation.device.issue import issued
from lumos.emulation.device.kernels import Kernels
from lumos.emulation.device.ranks import all_ranks, stream_numbers, wait_for_ever
from lumos.emulation.execution_trace import NodeSheet, compressed, execution_trace_name, operator_arguments, record_ids, type_word
from lumos.errors import GraphError
from lumos.graph.joined.one_job import EMULATED
from lumos.graph.table import Kind
from lumos.output_files import check_only_own, new_folder
from lumos.simulation import simulate
from lumos.simulation.durations import with_durations
from lumos.trace import kineto_rows as kineto
from lumos.trace.kineto_rows import ORIGIN, PROCESS, THREAD, complete
from lumos.vocabulary import MODULE_PREFIX, CollectiveKind, DType

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from lumos.cost.cluster import Cluster
    from lumos.emulation.device.program import DeviceProgram, HostPlace, Span, Task
    from lumos.emulation.device.ranks import Fact, Ranks
    from lumos.emulation.record import Process
    from lumos.simulation import Timeline
    from lumos.trace.table import Int64

#: A job gets a file for each rank while its files hold at most so many rows together (some 2 GB of text, 200 MB compressed), and while it
#: has so many ranks: each has two files, and reading them one by one takes longer than simulating what is in them.
_MOST_ROWS, _MOST_RANKS = 20_000_000, 4096


class WrittenTraces(NamedTuple):
    """What was written. files: paths, by rank; the execution trace of each is beside it. ranks: of the job. span_ns: from the first work
    of any rank to the last, None where work is not priced. diagnostics: what was priced without being known."""

    files: tuple[str, ...]
    ranks: int
    span_ns: int | None
    diagnostics: tuple[Diagnostic, ...]


def write_traces(
    folder: str | os.PathLike[str], processes: Sequence[Process], cluster: Cluster, times: Callable[[Ranks], Int64] | None = None
) -> WrittenTraces:
    """Write the traces of the job of `processes`, as it would run on `cluster`, to a folder, which is created if it is absent.

    processes: the records of the distinct processes of one job. times: gives the durations of the job's tasks, ns, in place of those that
    the models say. Raises LumosError for ranks that make different exchanges, an accelerator whose data lack a number, or a folder that
    cannot be written, UsageError where the folder holds other traces.
    """
    kernels, pricer = Kernels(cluster.accelerator), Pricer(cluster, kernel_by_kernel())
    cluster.check_size(max(process.world for process in processes))
    host = host_ns(cluster.accelerator)
    programs = [issued(process, kernels, host, cluster) for process in processes]
    job = all_ranks(programs, pricer)
    try:
        timeline = simulate(job.graph if times is None else with_durations(job.graph, times(job)))
    except GraphError as error:
        raise wait_for_ever(job, error) from error
    chosen, left_out = _chosen(job)
    names = [_name(rank) for rank in chosen]
    check_only_own(folder, "*.json*", [*names, *map(execution_trace_name, chosen)])
    with new_folder(folder) as draft:
        for program in range(len(programs)):
            ranks = [rank for rank in chosen if job.of[rank] == program]
            _write(draft, job, program, ranks, timeline, cluster)
            _write_execution_traces(draft, job, program, ranks)
    span = int(timeline.end.max(initial=0) - timeline.start.min(initial=0))
    diagnostics = (*_unknown(kernels), *pricer.diagnostics, *left_out)
    return WrittenTraces(tuple(str(Path(folder) / name) for name in names), len(job.of), span, tuple(dict.fromkeys(diagnostics)))


def _chosen(job: Ranks) -> tuple[list[int], tuple[Diagnostic, ...]]:
    """The ranks that get files."""
    rows = sum(2 * len(job.programs[i].tasks) + len(job.programs[i].process.operators) for i in job.of)
    if rows <= _MOST_ROWS and len(job.of) <= _MOST_RANKS:
        return list(range(len(job.of))), ()
    kept = sorted(program.process.rank for program in job.programs)
    note = f"{len(kept)} of {len(job.of):,} ranks are written, one of each kind: all would take {rows:,} rows in {2 * len(job.of):,} files"
    return kept, (Diagnostic("ranks-left-out", note),)


def _write(folder: Path, job: Ranks, program: int, ranks: Sequence[int], timeline: Timeline, cluster: Cluster) -> None:
    """The files of the ranks that run one program. Where their times are the same too, they share the text of most rows."""
    sheet, process = Sheet(job.programs[program]), job.programs[program].process
    start: list[int] = []
    end: list[int] = []
    shared = b""
    for rank in ranks:
        tasks = slice(int(job.first[rank]), int(job.first[rank + 1]))
        times = timeline.start[tasks].tolist(), timeline.end[tasks].tolist()
        if times != (start, end) or not shared:
            start, end = times
            shared = ",\n".join(sheet.common(start, end)).encode()
        device, a = rank % cluster.node.devices, cluster.accelerator
        described = kineto.WrittenDevice(device, a.name, int(a.memory_bytes or 0), a.cores or 0)
        groups = [(group.name, group.description, group.ranks) for group in process.groups if rank in group.ranks]
        with compressed(folder / _name(rank)) as file:
            file.write(kineto.header(EMULATED, rank, process.world, groups, described))
            file.write(shared.replace(DEVICE.encode(), str(device).encode()))
            for row in sheet.exchanges(start, end, job.facts[rank], device):
                file.write(b",\n" + row.encode())
            file.write(kineto.footer(rank))


def _write_execution_traces(folder: Path, job: Ranks, program: int, ranks: Sequence[int]) -> None:
    """The execution traces of the ranks that run one program, which differ in their groups and peers."""
    tasks, process = job.programs[program].tasks, job.programs[program].process
    sheet = NodeSheet(process)
    for rank in ranks:
        meetings = {tasks[number].exchange: (fact.group, fact.peer) for number, fact in job.facts[rank].items()}
        sheet.write(folder / execution_trace_name(rank), [group for group in process.groups if rank in group.ranks], meetings)


def _name(rank: int) -> str:
    return f"rank{rank}.json.gz"


def _unknown(kernels: Kernels) -> Iterator[Diagnostic]:
    """The operators that no rule prices."""
    if kernels.unknown:
        names = ", ".join(f"{name} ({count})" for name, count in sorted(kernels.unknown.items(), key=lambda pair: -pair[1])[:8])
        more = f" and {len(kernels.unknown) - 8} more" if len(kernels.unknown) > 8 else ""
        yield Diagnostic("operators-unknown", f"priced by the bytes that they touch, as their kernels are not known: {names}{more}")


#: Bytes of a block of PyTorch's allocator.
BLOCK = 512
_CATEGORY = {Kind.KERNEL: "kernel", Kind.COLLECTIVE: "kernel", Kind.MEMCPY: "gpu_memcpy", Kind.MEMSET: "gpu_memset"}
#: Stands for the number of the device in rows that ranks have in common: a character that JSON never has.
DEVICE = "\x1a"
#: Correlation ids begin here, so that none is 0.
_FIRST = 10


class Sheet:
    """The rows of the ranks that run one program. What they have in common is made once: ranks whose tasks have the same times differ in
    the number of their device, for which `common` has DEVICE, and in what their exchanges say."""

    def __init__(self, program: DeviceProgram) -> None:
        self.program = program
        self.streams = stream_numbers(program)
        self.arguments = [operator_arguments(operator, i + 1) for i, operator in enumerate(program.process.operators)]

    def common(self, start: Sequence[int], end: Sequence[int]) -> Iterator[str]:
        """All rows but those of exchanges, for tasks that start and end at these times (ns)."""
        at = _Times(self.program, start, end)
        yield kineto.process_name()
        for i, name in enumerate(self.program.process.threads):
            yield kineto.thread_name(THREAD + i, name)
        yield from self._host_rows(at)
        yield from self._backward_flows(at)
        yield from self._tasks(at)
        yield from self._waits(at)
        yield from self._memory(at)
        begin, stop = min(start, default=0) + ORIGIN, max(end, default=0) + ORIGIN
        yield kineto.whole_window(begin, stop)

    def exchanges(self, start: Sequence[int], end: Sequence[int], facts: Mapping[int, Fact], device: int) -> Iterator[str]:
        """The rows of the exchanges of one rank. facts: what they are, by task."""
        at = _Times(self.program, start, end)
        for number, fact in facts.items():
            task = self.program.tasks[number]
            said = exchange_arguments(fact)
            span = at.span(self.program.exchanges[task.exchange])
            identity = f'"Record function id":{record_ids(self.program.process)[2] + task.exchange}'
            yield complete("cpu_op", "record_param_comms", *span, f"{identity},{said}", thread=THREAD + fact.exchange.thread)
            kernel = kineto.nccl_kernel(fact.exchange.kind, DType.parse(fact.exchange.dtype))
            yield from self._device_work(task, kernel, start[number], end[number], device, f",{said}")

    def _host_rows(self, at: _Times) -> Iterator[str]:
        process = self.program.process
        for i, span in self.program.operators.items():
            operator = process.operators[i]
            yield complete("cpu_op", operator.name, *at.span(span), self.arguments[i], thread=THREAD + operator.thread)
        for i, span in self.program.marks.items():
            mark = process.marks[i]
            category, key = ("python_function", "Python id") if mark.name.startswith(MODULE_PREFIX) else ("user_annotation", "External id")
            yield complete(category, mark.name, *at.span(span), f'"{key}":{len(self.arguments) + i + 1}', thread=THREAD + mark.thread)

    def _backward_flows(self, at: _Times) -> Iterator[str]:
        """The arrow from each forward operator to its node of the backward pass, which have a number in common."""
        forward: dict[tuple[int, int], int] = {}
        operators = self.program.process.operators
        for i in self.program.operators:
            operator = operators[i]
            if operator.sequence < 0:
                continue
            if operator.forward_thread < 0:
                forward[operator.thread, operator.sequence] = i
            elif (source := forward.pop((operator.forward_thread, operator.sequence), -1)) >= 0:
                for phase, one in (("s", source), ("f", i)):
                    begin, _ = at.span(self.program.operators[one])
                    yield kineto.flow(phase, i + 1, PROCESS, THREAD + operators[one].thread, begin, "fwdbwd")

    def _tasks(self, at: _Times) -> Iterator[str]:
        for number, task in enumerate(self.program.tasks):
            begin, end = at.start[number] + ORIGIN, at.end[number] + ORIGIN
            correlation = number + _FIRST
            args, thread = f'"External id":{task.operator + 1},"correlation":{correlation}', THREAD + task.lane
            if task.on_device:
                if task.exchange < 0:
                    yield from self._device_work(task, task.name, at.start[number], at.end[number], DEVICE)
            elif task.kind in (Kind.LAUNCH, Kind.RUNTIME):
                yield complete("cuda_runtime", task.name, begin, end, args, thread=thread)
                if task.kind == Kind.LAUNCH:
                    yield kineto.flow("s", correlation, PROCESS, thread, begin)
            elif task.kind == Kind.SYNC:
                back = at.end[number + 1] + ORIGIN
                yield complete("cuda_runtime", task.name, begin, back, args, thread=thread)
                if task.awaited >= 0:
                    yield kineto.stream_sync(self.streams[task.awaited], begin, back, correlation, DEVICE)

    def _device_work(self, task: Task, name: str, start: int, end: int, device: object, more: str = "") -> Iterator[str]:
        stream, correlation = self.streams[task.lane], task.launch + _FIRST
        args = f'"External id":{task.operator + 1},"device":{device},"context":1,"stream":{stream},"correlation":{correlation}{more}'
        yield complete(_CATEGORY[task.kind], name, start + ORIGIN, end + ORIGIN, args, device, stream)
        yield kineto.flow("f", correlation, device, stream, start + ORIGIN)

    def _waits(self, at: _Times) -> Iterator[str]:
        for wait in self.program.streams.waited:
            if wait.call >= 0 and wait.event.call >= 0:
                stream, source = self.streams[wait.stream], self.streams[wait.event.stream]
                yield kineto.stream_wait(stream, source, wait.event.call + _FIRST, at.start[wait.call] + ORIGIN, wait.call + _FIRST, DEVICE)

    def _memory(self, at: _Times) -> Iterator[str]:
        process = self.program.process
        for i, position in self.program.allocations.items():
            allocation = process.allocations[i]
            if not allocation.bytes:
                continue
            args = (
                f'"Total Reserved":{allocation.reserved},"Total Allocated":{allocation.allocated},"Bytes":{allocation.bytes},'
                f'"Addr":{(allocation.storage + 1) * BLOCK},"Device Id":{DEVICE},"Device Type":1'
            )
            yield (
                f'{{"ph":"i","cat":"cpu_instant_event","s":"t","name":"[memory]","pid":{PROCESS},"tid":{THREAD + position.thread}'
                f',"ts":{kineto.microseconds(at.begin(position) + ORIGIN)},"args":{{{args}}}}}'
            )


class _Times:
    """When the places of a program's threads are."""

    def __init__(self, program: DeviceProgram, start: Sequence[int], end: Sequence[int]) -> None:
        self.start, self.end, self._threads = start, end, program.by_thread

    def begin(self, position: HostPlace) -> int:
        """The time of a position where something begins: after all waiting."""
        tasks = self._threads[position.thread]
        if position.task < len(tasks):
            return self.start[tasks[position.task]] + position.ns
        return self.end[tasks[-1]] if tasks else 0

    def span(self, span: Span) -> tuple[int, int]:
        """Begin and end in the time of the file; something ends before what comes next waits."""
        tasks, position = self._threads[span.end.thread], span.end
        begin = self.begin(span.begin)
        end = self.begin(position) if position.ns or not position.task else self.end[tasks[position.task - 1]]
        return begin + ORIGIN, max(begin, end) + ORIGIN


def exchange_arguments(fact: Fact) -> str:
    """The arguments of a collective or message, as PyTorch 2.5 and later state them on its kernel and its `record_param_comms` row."""
    exchange, group = fact.exchange, fact.group
    side = {CollectiveKind.SEND: ("send", "Dst"), CollectiveKind.RECEIVE: ("recv", "Src")}.get(exchange.kind)
    more = f',"{side[1]} Rank":{fact.peer}' if side else ""
    more += f',"In split size":"{exchange.input_splits}","Out split size":"{exchange.output_splits}"'
    elements = exchange.input_elements, exchange.output_elements
    word, name = f'"{type_word(exchange.dtype)}"', side[0] if side else exchange.name
    return kineto.collective_arguments(name, elements, word, group.name, group.ranks, exchange.sequence, more, group.description)
