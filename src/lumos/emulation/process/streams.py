"""Streams and events of the emulated device: every use of them is noted, and what they say of each other's work is known.

Nothing runs, so that work counts as not done until the host waits for it, as where the host is far ahead of its device.
"""

from __future__ import annotations

import itertools
import threading
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import torch

from lumos.emulation.record import CallKind, DeviceCall

if TYPE_CHECKING:
    from collections.abc import Callable

    from lumos.emulation.process.journal import Journal

_CUDA = 1  # c10::DeviceType


#: By stream, the number of the call until which its work is meant.
StreamMoment = dict[int, int]


class Streams:
    """The streams of one process. Each thread has a current one, at first the default stream 0."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._current = threading.local()
        self.events = itertools.count(1)
        self.priorities: list[int] = [0]
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

    def new(self, priority: int) -> int:
        """The number of a new stream."""
        self.priorities.append(priority)
        return len(self.priorities) - 1

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
            self._after[stream] = before | {each: max(call, before.get(each, 0)) for each, call in recorded.items()}
        elif kind is CallKind.SYNCHRONIZE_EVENT:
            self.done(recorded)
        elif kind is CallKind.SYNCHRONIZE_DEVICE:
            self.done(dict.fromkeys(range(len(self.priorities)), self._calls))
        elif kind in (CallKind.SYNCHRONIZE_STREAM, CallKind.READ_VALUE):
            self.done(self._after[stream] | {stream: self._calls})


def answers(streams: Streams) -> dict[str, Any]:
    """What takes the place of torch.cuda's names for streams and events; its contexts of a stream follow from these."""

    class Stream(torch.Stream):  # type: ignore[misc]
        """A stream of the emulated device."""

        def __new__(cls, _device: Any = None, priority: int = 0, **given: Any) -> Any:
            number = given["stream_id"] if "stream_id" in given else streams.new(priority)
            return super().__new__(cls, stream_id=number, device_index=0, device_type=_CUDA)

        def __init__(self, *_: Any, **__: Any) -> None:
            pass

        @property
        def priority(self) -> int:
            return streams.priorities[self.stream_id]

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
        "current_stream": lambda _device=None: Stream(stream_id=streams.current),
        "default_stream": lambda _device=None: Stream(stream_id=0),
        "synchronize": lambda _device=None: streams.call(CallKind.SYNCHRONIZE_DEVICE),
    }  # fmt: skip
