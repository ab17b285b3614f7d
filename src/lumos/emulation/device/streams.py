"""What each stream of a rank waits for: the order that events and waits put on the work of several streams.

A stream runs its work in the order in which it was issued. Work that is issued after a wait for an event starts when the work that
the event marks has ended. An event marks the last work of its stream when it was recorded and, where the stream was itself waiting and
nothing was issued to it since, what it waited for.
"""

from __future__ import annotations

from typing import NamedTuple


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
