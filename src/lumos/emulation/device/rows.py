"""The rows of one rank's trace: what a profiler would have recorded of it, at the times that the simulation gave.

Operators with their shapes, marks, calls of the runtime, device work with the arguments of its collectives, waits with the call that
recorded their event, the arrows between them, and the memory that was taken and given back, as PyTorch's allocator does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lumos.emulation.device.ranks import stream_numbers
from lumos.emulation.execution_trace.nodes import record_ids
from lumos.emulation.execution_trace.values import operator_arguments, type_word
from lumos.graph.table import Kind
from lumos.trace.kineto_rows import (
    ORIGIN,
    PROCESS,
    THREAD,
    complete,
    flow,
    microseconds,
    nccl_kernel,
    process_name,
    quoted,
    stream_sync,
    stream_wait,
)
from lumos.vocabulary import MODULE_PREFIX, CollectiveKind, DType

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from lumos.emulation.device.program import DeviceProgram, HostPlace, Span, Task
    from lumos.emulation.device.ranks import Fact

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
        yield process_name()
        for i, name in enumerate(self.program.process.threads):
            yield f'{{"name":"thread_name","ph":"M","ts":0,"pid":{PROCESS},"tid":{THREAD + i},"args":{{"name":{quoted(name)}}}}}'
        yield from self._host_rows(at)
        yield from self._backward_flows(at)
        yield from self._tasks(at)
        yield from self._waits(at)
        yield from self._memory(at)
        begin, stop = min(start, default=0) + ORIGIN, max(end, default=0) + ORIGIN
        yield complete("Trace", "PyTorch Profiler (0)", begin, stop, '"Op count":0', '"Spans"', '"PyTorch Profiler"')

    def exchanges(self, start: Sequence[int], end: Sequence[int], facts: Mapping[int, Fact], device: int) -> Iterator[str]:
        """The rows of the exchanges of one rank. facts: what they are, by task."""
        at = _Times(self.program, start, end)
        for number, fact in facts.items():
            task = self.program.tasks[number]
            said = exchange_arguments(fact)
            span = at.span(self.program.exchanges[task.exchange])
            identity = f'"Record function id":{record_ids(self.program.process)[2] + task.exchange}'
            yield complete("cpu_op", "record_param_comms", *span, f"{identity},{said}", thread=THREAD + fact.exchange.thread)
            kernel = nccl_kernel(fact.exchange.kind, DType.parse(fact.exchange.dtype))
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
                    yield flow(phase, i + 1, PROCESS, THREAD + operators[one].thread, begin, "fwdbwd")

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
                    yield flow("s", correlation, PROCESS, thread, begin)
            elif task.kind == Kind.SYNC:
                back = at.end[number + 1] + ORIGIN
                yield complete("cuda_runtime", task.name, begin, back, args, thread=thread)
                if task.awaited >= 0:
                    yield stream_sync(self.streams[task.awaited], begin, back, correlation, DEVICE)

    def _device_work(self, task: Task, name: str, start: int, end: int, device: object, more: str = "") -> Iterator[str]:
        stream, correlation = self.streams[task.lane], task.launch + _FIRST
        args = f'"External id":{task.operator + 1},"device":{device},"context":1,"stream":{stream},"correlation":{correlation}{more}'
        yield complete(_CATEGORY[task.kind], name, start + ORIGIN, end + ORIGIN, args, device, stream)
        yield flow("f", correlation, device, stream, start + ORIGIN)

    def _waits(self, at: _Times) -> Iterator[str]:
        for wait in self.program.streams.waited:
            if wait.call >= 0 and wait.event.call >= 0:
                stream, source = self.streams[wait.stream], self.streams[wait.event.stream]
                yield stream_wait(stream, source, wait.event.call + _FIRST, at.start[wait.call] + ORIGIN, wait.call + _FIRST, DEVICE)

    def _memory(self, at: _Times) -> Iterator[str]:
        process = self.program.process
        for i, place in self.program.allocations.items():
            allocation = process.allocations[i]
            if not allocation.bytes:
                continue
            args = (
                f'"Total Reserved":{allocation.reserved},"Total Allocated":{allocation.allocated},"Bytes":{allocation.bytes},'
                f'"Addr":{(allocation.storage + 1) * BLOCK},"Device Id":{DEVICE},"Device Type":1'
            )
            yield (
                f'{{"ph":"i","cat":"cpu_instant_event","s":"t","name":"[memory]","pid":{PROCESS},"tid":{THREAD + place.thread}'
                f',"ts":{microseconds(at.begin(place) + ORIGIN)},"args":{{{args}}}}}'
            )


class _Times:
    """When the places of a program's threads are."""

    def __init__(self, program: DeviceProgram, start: Sequence[int], end: Sequence[int]) -> None:
        self.start, self.end, self._threads = start, end, program.by_thread

    def begin(self, place: HostPlace) -> int:
        """The time of a place where something begins: after all waiting."""
        tasks = self._threads[place.thread]
        if place.task < len(tasks):
            return self.start[tasks[place.task]] + place.ns
        return self.end[tasks[-1]] if tasks else 0

    def span(self, span: Span) -> tuple[int, int]:
        """Begin and end in the time of the file; something ends before what comes next waits."""
        tasks, place = self._threads[span.end.thread], span.end
        begin = self.begin(span.begin)
        end = self.begin(place) if place.ns or not place.task else self.end[tasks[place.task - 1]]
        return begin + ORIGIN, max(begin, end) + ORIGIN


def exchange_arguments(fact: Fact) -> str:
    """The arguments of a collective or message, as PyTorch 2.5 and later state them on its kernel and its `record_param_comms` row."""
    exchange, group = fact.exchange, fact.group
    name, peer = exchange.name, ""
    if exchange.kind in (CollectiveKind.SEND, CollectiveKind.RECEIVE):
        sends = exchange.kind is CollectiveKind.SEND
        name, peer = ("send", f',"Dst Rank":{fact.peer}') if sends else ("recv", f',"Src Rank":{fact.peer}')
    return (
        f'"Collective name":{quoted(name)},"In msg nelems":{exchange.input_elements},"Out msg nelems":{exchange.output_elements}'
        f',"Group size":{len(group.ranks)},"dtype":"{type_word(exchange.dtype)}","In split size":"{exchange.input_splits}"'
        f',"Out split size":"{exchange.output_splits}","Process Group Name":{quoted(group.name)}'
        f',"Process Group Description":{quoted(group.description)},"Process Group Ranks":"{group.ranks}","Seq":{exchange.sequence}{peer}'
    )
