"""Streams and events of a device that is not there: what a script does with them becomes named ranges among its operators.

Libraries that overlap transfers with compute (FSDP2) take streams and events from the module of their device. That of tensors on the CPU
is `torch.cpu`, where they do nothing. While `noted` is in force, whatever is done with them leaves a range named `stream: …`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any
from unittest.mock import patch

import torch
from torch.profiler import record_function
from validation.foreign.nodes import COMPUTE, MARK


def note(text: str) -> None:
    """Leave a note among the operators."""
    with record_function(MARK + text):
        pass


class _Streams:
    """The streams of one script. current: the one on which operators launch now."""

    def __init__(self) -> None:
        self.streams = count(20, 4)
        self.events = count(1)
        self.compute = _Stream(self, COMPUTE)
        self.current = self.compute

    def new_stream(self, *_: Any, **__: Any) -> _Stream:
        return _Stream(self, next(self.streams))

    def new_event(self, *_: Any, **__: Any) -> _Event:
        return _Event(self, next(self.events))

    def current_stream(self, _: Any = None) -> _Stream:
        return self.current

    @contextmanager
    def use(self, stream: _Stream | None) -> Iterator[None]:
        before, self.current = self.current, stream or self.current
        note(f"use {self.current.number}")
        try:
            yield
        finally:
            self.current = before
            note(f"use {before.number}")


class _Stream:
    def __init__(self, owner: _Streams, number: int) -> None:
        self.owner, self.number = owner, number

    def wait_stream(self, other: _Stream) -> None:
        self.wait_event(other.record_event())

    def wait_event(self, event: _Event) -> None:
        note(f"wait {self.number} {event.number}")

    def record_event(self, event: _Event | None = None) -> _Event:
        event = event or self.owner.new_event()
        event.record(self)
        return event


class _Event:
    def __init__(self, owner: _Streams, number: int) -> None:
        self.owner, self.number = owner, number

    def record(self, stream: _Stream | None = None) -> None:
        note(f"record {(stream or self.owner.current).number} {self.number}")

    def wait(self, stream: _Stream | None = None) -> None:
        (stream or self.owner.current).wait_event(self)

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        note(f"synchronise {self.number}")


@contextmanager
def noted() -> Iterator[None]:
    """Let scripts find streams and events that leave notes."""
    streams = _Streams()
    with patch.multiple(
        torch.cpu, Stream=streams.new_stream, Event=streams.new_event, current_stream=streams.current_stream, stream=streams.use
    ):
        yield
