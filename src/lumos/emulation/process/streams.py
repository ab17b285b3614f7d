"""Streams and events of the emulated device: every use of them is noted, and what they say of each other's work is known.

Nothing runs, so that work counts as not done until the host waits for it, as where the host is far ahead of its device.

Of CUDA graphs what a script captures is noted once, apart from its steps, and each replay is one call that launches all of it.

Operators run while they are captured as they do at any time, so that tensors and memory are what they would be. The memory of a graph that
nothing holds counts as free between its replays. What a graph launches runs on the stream of the replay, in the order of the capture; its
exchanges, between which it is launched in parts, run where they would without it. A step that ends inside a capture (`optimizer.step()`)
ends with each replay too.
"""

from __future__ import annotations

import itertools
import threading
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import torch

from lumos.emulation.process.patches import Silent
from lumos.emulation.record import CallKind, DeviceCall, Exchange, Operator

if TYPE_CHECKING:
    from collections.abc import Callable

    from lumos.emulation.process.journal import CapturedCall, Journal

_CUDA = 1  # c10::DeviceType

#: By stream, the number of the call until which its work is meant.
StreamMoment = dict[int, int]


class Streams:
    """The streams of one process. Each thread has a current one, at first the default stream 0."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._current = threading.local()
        self.events = itertools.count(1)
        self._count = 1
        self._calls = 0
        self._after: defaultdict[int, StreamMoment] = defaultdict(dict)  # of a stream: what is done before its next work begins
        self._recorded: dict[int, StreamMoment] = {}  # of an event: what is done once it is
        self.done: Callable[[StreamMoment], None] = lambda _: None  # called where the host knows that the work until a moment is done

    @property
    def current(self) -> int:
        """The number of this thread's current stream."""
        return getattr(self._current, "number", 0)

    @current.setter
    def current(self, number: int) -> None:
        self._current.number = number

    def new(self) -> int:
        """The number of a new stream."""
        self._count += 1
        return self._count - 1

    def call(self, kind: CallKind, *, stream: int = 0, event: int = -1, exchange: int = -1, graph: int = -1, size: int = 0) -> None:
        """Note a call that orders work."""
        self._order(kind, stream, self._recorded.get(event, {}), event)
        self._journal.add(
            DeviceCall(kind=kind, thread=0, position=0, stream=stream, event=event, exchange=exchange, graph=graph, bytes=size)
        )

    @property
    def next(self) -> int:
        """The number of the next call: what is on a stream now is done where that call's work is."""
        return self._calls + 1

    def _order(self, kind: CallKind, stream: int, recorded: StreamMoment, event: int) -> None:
        self._calls += 1
        if kind is CallKind.RECORD_EVENT:
            self._recorded[event] = self._after[stream] | {stream: self._calls}
        elif kind is CallKind.STREAM_WAITS_EVENT:
            before = self._after[stream]
            self._after[stream] = before | {other: max(call, before.get(other, 0)) for other, call in recorded.items()}
        elif kind is CallKind.SYNCHRONIZE_EVENT:
            self.done(recorded)
        elif kind is CallKind.SYNCHRONIZE_DEVICE:
            self.done(dict.fromkeys(range(self._count), self._calls))
        elif kind in (CallKind.SYNCHRONIZE_STREAM, CallKind.READ_VALUE):
            self.done(self._after[stream] | {stream: self._calls})


def answers(streams: Streams) -> dict[str, Any]:
    """What takes the place of torch.cuda's names for streams and events; its contexts of a stream follow from these."""

    class Stream(torch.Stream):  # type: ignore[misc]
        """A stream of the emulated device."""

        def __new__(cls, _device: Any = None, priority: int = 0, **given: Any) -> Any:
            number = given["stream_id"] if "stream_id" in given else streams.new()
            made = super().__new__(cls, stream_id=number, device_index=0, device_type=_CUDA)
            made.priority = priority
            return made

        def __init__(self, *_: Any, **__: Any) -> None:
            pass

        @property
        def cuda_stream(self) -> int:
            return int(self.stream_id)

        def wait_event(self, event: Any) -> None:
            streams.call(CallKind.STREAM_WAITS_EVENT, stream=self.stream_id, event=event.number)

        def wait_stream(self, other: Any) -> None:
            self.wait_event(other.record_event())

        def record_event(self, event: Any = None) -> Any:
            event = event if event is not None else Event()
            event.record(self)
            return event

        def synchronize(self) -> None:
            streams.call(CallKind.SYNCHRONIZE_STREAM, stream=self.stream_id)

        def query(self) -> bool:
            return True

        def __enter__(self) -> Any:
            self._before, streams.current = streams.current, int(self.stream_id)
            return self

        def __exit__(self, *_: Any) -> None:
            streams.current = self._before

    class Event:
        """An event of the emulated device."""

        def __init__(self, *_: Any, **__: Any) -> None:
            self.number = next(streams.events)

        def record(self, stream: Any = None) -> None:
            streams.call(CallKind.RECORD_EVENT, stream=number_of(stream), event=self.number)

        def wait(self, stream: Any = None) -> None:
            streams.call(CallKind.STREAM_WAITS_EVENT, stream=number_of(stream), event=self.number)

        def synchronize(self) -> None:
            streams.call(CallKind.SYNCHRONIZE_EVENT, event=self.number)

        def query(self) -> bool:
            return True

        def elapsed_time(self, _: Any) -> float:
            return 1.0  # milliseconds: nothing was timed, and a script may divide by it

    def number_of(stream: Any) -> int:
        return streams.current if stream is None else int(stream.stream_id)

    def set_stream(stream: Any) -> None:
        streams.current = number_of(stream)

    return {
        "Stream": Stream, "ExternalStream": Stream, "Event": Event, "set_stream": set_stream,
        "current_stream": lambda *_, **__: Stream(stream_id=streams.current),
        "default_stream": lambda *_, **__: Stream(stream_id=0),
        "synchronize": lambda *_, **__: streams.call(CallKind.SYNCHRONIZE_DEVICE),
    }  # fmt: skip


#: What a graph launches in turn, by its place in the capture: operators, by the number of their part, an exchange, or a wait for one.
_Parts = dict[int, int | Exchange | DeviceCall]


class Graphs:
    """The graphs of one process. begins, ends: called where a capture does; step: where a step ends in a replay."""

    def __init__(self, journal: Journal, streams: Streams) -> None:
        self._journal, self._streams = journal, streams
        self.begins: Callable[[], None] = lambda: None
        self.ends: Callable[[], None] = lambda: None
        self.step: Callable[[], None] = lambda: None
        self.again: Callable[[Exchange], int] = lambda _: 0  # makes an exchange that was captured, and gives its number
        self.steps: list[int] = []  # that ended in the capture of each graph

    def is_captured(self) -> bool:
        """Whether a step ends inside of a capture, which then counts with each replay."""
        if self._journal.captured is not None:
            self.steps[-1] += 1
        return self._journal.captured is not None

    def _keep(self, captured: list[CapturedCall]) -> _Parts:
        parts: _Parts = {}
        together: list[Operator] | None = None
        for position, call in enumerate(captured):
            if not isinstance(call, Operator):
                parts[position], together = call, None
                continue
            if together is None:
                parts[position], together = len(self._journal.graphs), []
                self._journal.graphs.append(together)
            together.append(call)
        return parts

    def _launch(self, parts: _Parts) -> None:
        """Launch what was captured. Each time, its exchanges are others."""
        numbers: dict[int, int] = {}
        for position, part in parts.items():
            if isinstance(part, int):
                self._streams.call(CallKind.LAUNCH_GRAPH, stream=self._streams.current, graph=part)
            elif isinstance(part, Exchange):
                numbers[-1 - position] = self.again(part)
            elif number := numbers.get(part.exchange, 0):
                self._streams.call(part.kind, stream=self._streams.current, exchange=number)

    def answers(self) -> dict[str, Any]:
        """What takes the place of torch.cuda's names for graphs; its contexts of a capture follow from these."""
        graphs = self

        class CUDAGraph(Silent):
            """A graph of the emulated device, of which more may be asked (instantiate, reset, …) than is done."""

            number = -1

            def capture_begin(self, *_: Any, **__: Any) -> None:
                graphs.begins()
                self.number = len(graphs.steps)
                graphs.steps.append(0)
                graphs._journal.captured = []

            def capture_end(self) -> None:
                self._parts = graphs._keep(graphs._journal.captured or [])
                graphs._journal.captured = None
                graphs.ends()

            def replay(self) -> None:
                graphs._launch(self._parts)
                for _ in range(graphs.steps[self.number]):
                    graphs.step()

            def pool(self) -> tuple[int, int]:
                return 0, self.number + 1

        return {
            "CUDAGraph": CUDAGraph, "graph_pool_handle": lambda: (0, 0),
            "is_current_stream_capturing": lambda: self._journal.captured is not None,
        }  # fmt: skip
