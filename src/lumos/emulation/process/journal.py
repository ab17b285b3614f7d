"""What happened, in order, while the profiler ran: notes, each tied to the profiler's rows by a row of its own.

torch's profiler knows which operator called which, on which thread, and where the backward pass came from; what it does not know
(streams, storages, communication) is noted here under a number. The number is the name of an empty row among the profiler's, so
both have one order.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from msgspec.structs import replace
from torch._C._profiler import _RecordFunctionFast

from lumos.emulation.process.script import line_of_script
from lumos.emulation.record import Allocation, Assumption, CallKind, DeviceCall, Exchange, Operator

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Rows with this prefix and a number are ours; the rows that a note encloses are torch's work on tensors without data, unless the
#: second prefix says that they are what the operator itself calls.
CLOSED = "lumos:"
OPEN = "lumos>"

#: What a graph that is captured must not hold.
_WAITS = (CallKind.READ_VALUE, CallKind.SYNCHRONIZE_EVENT, CallKind.SYNCHRONIZE_STREAM, CallKind.SYNCHRONIZE_DEVICE)


class CudaGraphError(RuntimeError):
    """The script captures as a CUDA graph what none can hold here."""


class StepNote(NamedTuple):
    """The end of a step."""

    number: int


#: What a graph holds: operators, exchanges, and waits for these by their number, which is -1 for the first thing captured.
CapturedCall = Operator | Exchange | DeviceCall

#: What is noted: all but its place, which the rows tell. An operator is a leaf here where it has a kernel besides what it calls, and its
#: results are added when it returns.
_Entry = Operator | DeviceCall | Exchange | Allocation | StepNote


class Journal:
    """The notes of one process. Those made before `recording` have number 0 and no row. last: the number of the newest."""

    def __init__(self) -> None:
        self.is_on = False
        self.reads = 0  # values read from tensors since the last step
        self.entries: dict[int, _Entry] = {}
        self.before: list[Allocation] = []
        self.assumed: dict[tuple[str, str], Assumption] = {}
        self.last = 0
        self.captured: list[CapturedCall] | None = None  # while a CUDA graph is captured: what reached a kernel so far
        self.graphs: list[list[Operator]] = []  # what each graph launches
        self.lines: dict[str, int] = {}  # of the script, with a number for each

    @property
    def recording(self) -> bool:
        """Whether operators are noted: for a CUDA graph, or for the profiler's rows."""
        return self.captured is not None or self._profiled

    @property
    def _profiled(self) -> bool:
        """Whether the profiler runs on this thread, which it does on those that it knows: the one that started it, and autograd's."""
        return self.is_on and torch.autograd._profiler_enabled()

    @contextlib.contextmanager
    def around(self, entry: _Entry, opened: bool = False) -> Iterator[int]:
        """Note something that takes place within this context. Gives its number: 0 where nothing is recorded, below 0 in a capture."""
        if self.captured is not None and isinstance(entry, Operator):
            before = len(self.captured)
            yield 0
            if entry.leaf or len(self.captured) == before:  # it called no others
                self.captured.append(replace(entry, leaf=True))
            return
        if self.captured is not None and isinstance(entry, Exchange):
            self.captured.append(entry)
            yield -len(self.captured)
            return
        if not self._profiled:
            yield 0
            return
        number = self._number(entry)
        with _RecordFunctionFast(f"{OPEN if opened else CLOSED}{number}"):
            try:
                yield number
            except BaseException:  # such as no memory: the device was asked for nothing
                self.entries.pop(number)
                raise

    def add(self, entry: _Entry) -> int:
        """Note something that takes place now. Returns its number, 0 where nothing is recorded.

        Raises CudaGraphError for a wait of the host while a graph is captured."""
        if self.captured is not None and isinstance(entry, DeviceCall):
            if entry.kind in _WAITS:
                raise CudaGraphError("the host waits for the device while a CUDA graph is captured")
            if entry.kind is CallKind.STREAM_WAITS_EXCHANGE:
                self.captured.append(entry)
        if not self._profiled:
            if isinstance(entry, Allocation):
                self.before.append(entry)
            return 0
        with _RecordFunctionFast(f"{CLOSED}{self.last + 1}"):
            return self._number(entry)

    def line(self) -> int:
        """The number of the line of the script that runs; -1 where there is none."""
        text = line_of_script()
        return self.lines.setdefault(text, len(self.lines)) if text else -1

    def exchange(self, number: int) -> Exchange | None:
        """The exchange of a number, None where none is recorded."""
        entry = self.captured[-1 - number] if self.captured is not None and number < 0 else self.entries.get(number)
        return entry if isinstance(entry, Exchange) else None

    def restart(self) -> None:
        """Forget what was recorded, but for the memory that it took."""
        self.is_on = False
        self.before += [entry for entry in self.entries.values() if isinstance(entry, Allocation)]
        self.entries.clear()

    def assume(self, code: str, message: str, where: str = "") -> None:
        """Note an assumption, with the line of the script that made it necessary; equal ones are counted."""
        known = self.assumed.get((code, message)) or Assumption(code, message, where or line_of_script(), 0)
        self.assumed[code, message] = Assumption(code, message, known.where, known.count + 1)

    @property
    def stands_in(self) -> bool:
        """Whether something stood in for values that nobody knows, which others may follow from since."""
        return any(code.startswith(("stand-in", "balanced")) for code, _ in self.assumed)

    def _number(self, entry: _Entry) -> int:
        self.last += 1
        self.entries[self.last] = entry
        return self.last

    def closed(self) -> contextlib.AbstractContextManager[Any]:
        """Within it, rows are torch's own work on tensors without data."""
        return _RecordFunctionFast(f"{CLOSED}0") if self.recording else contextlib.nullcontext()
