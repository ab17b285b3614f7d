"""The profiler's rows and the journal's notes, put together into one record on one clock."""

from __future__ import annotations

import heapq
import itertools
from typing import TYPE_CHECKING, Any, NamedTuple

from lumos.emulate import record
from lumos.emulate.process.journal import (
    CLOSED,
    OPEN,
    AllocationNote,
    CallNote,
    ExchangeNote,
    Journal,
    OperatorNote,
    StepNote,
)
from lumos.emulate.process.operators.plain import as_plain

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

#: Rows that torch adds where a mode or a subclass of tensors takes an operator over.
_DISPATCH = frozenset({"PythonDispatchMode", "PythonSubclass"})
_ANNOTATION = "USER_SCOPE"
_BACKWARD = "BACKWARD_FUNCTION"


class _Row(NamedTuple):
    """A row that is kept. entry: the number of its note, 0 without."""

    name: str
    thread: int
    entry: int
    fields: Any
    leaf: bool


class Boundary(NamedTuple):
    """The begin or end of a row on its thread, in ns of the profiler."""

    time: int
    row: int
    is_end: bool


class _Rows:
    """The kept rows of all threads, and the boundaries of each thread in their order."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self.rows: list[_Row | None] = []
        self.boundaries: dict[int, list[Boundary]] = {}

    def add(self, event: Any) -> None:
        """Keep a row of the profiler's tree and what is below it, except torch's own work on tensors without data."""
        name = event.name
        if name.startswith(CLOSED):
            self._span(event, _Row(name, event.start_tid, int(name.removeprefix(CLOSED)), None, True), _notes_below(event))
        elif name.startswith(OPEN) or name in _DISPATCH:
            for child in event.children:
                self.add(child)
        else:
            kept = [child for child in event.children if child.name in _DISPATCH]
            entry, closed = self._entry(kept)
            fields = event.typed[1]
            row = _Row(name, event.start_tid, entry, fields, closed)
            self._span(event, row, _notes_below(event) if closed else event.children)

    def _entry(self, dispatched: list[Any]) -> tuple[int, bool]:
        """The number of the note of a row, and whether what is below it is torch's own work: a row of ours below torch's for the mode."""
        for child in (child for each in dispatched for child in each.children):
            for prefix in (CLOSED, OPEN):
                if child.name.startswith(prefix):
                    number = int(child.name.removeprefix(prefix))
                    if isinstance(self._journal.entries.get(number), (OperatorNote, ExchangeNote)):
                        return number, prefix == CLOSED
        return 0, False

    def _span(self, event: Any, row: _Row, children: Iterable[Any]) -> None:
        place, mine = len(self.rows), self.boundaries.setdefault(event.start_tid, [])
        self.rows.append(row)
        begin = max(event.start_time_ns, mine[-1].time) if mine else event.start_time_ns
        mine.append(Boundary(begin, place, False))
        for child in children:
            self.add(child)
        mine.append(Boundary(max(event.end_time_ns, mine[-1].time), place, True))


def _notes_below(event: Any) -> Iterator[Any]:
    """Our own rows below one whose other rows are not kept."""
    for child in event.children:
        if child.name.startswith(CLOSED):
            yield child
        else:
            yield from _notes_below(child)


class _Recorded(NamedTuple):
    """The lists of a record."""

    threads: list[str]
    operators: list[record.Operator]
    marks: list[record.Mark]
    calls: list[record.DeviceCall]
    exchanges: list[record.Exchange]
    allocations: list[record.Allocation]


def put_together(events: list[Any], journal: Journal) -> _Recorded:
    """The record's lists. events: the roots of the profiler's tree."""
    rows = _Rows(journal)
    for event in sorted(events, key=lambda each: each.start_time_ns):
        rows.add(event)
    begins, ends = _positions(rows)
    numbers = {tid: place for place, tid in enumerate(dict.fromkeys(row.thread for row in rows.rows if row is not None))}
    return _lists(rows, begins, ends, numbers, journal)


def _positions(rows: _Rows) -> tuple[list[int], list[int]]:
    """Begin and end of each row on one clock for all threads."""
    begins, ends = [0] * len(rows.rows), [0] * len(rows.rows)
    for position, boundary in enumerate(heapq.merge(*rows.boundaries.values(), key=lambda each: each.time)):
        (ends if boundary.is_end else begins)[boundary.row] = position + 1
    return begins, ends


def _lists(rows: _Rows, begins: list[int], ends: list[int], numbers: dict[int, int], journal: Journal) -> _Recorded:
    found = _Recorded([f"thread {place}" for place in range(len(numbers))], [], [], [], [], [])
    found.allocations.extend(record.Allocation(0, each.bytes, each.storage) for each in journal.before)
    forward: dict[int, int] = {}
    exchange_of: dict[int, int] = {}
    steps = [(0, 0)]
    parents = _with_children(rows)
    for place, row in enumerate(rows.rows):
        if row is None:
            continue
        thread, begin, end = numbers[row.thread], begins[place], ends[place]
        note = journal.entries.get(row.entry)
        if row.fields is not None:
            if row.fields.scope.name == _ANNOTATION:
                found.marks.append(record.Mark(row.name, thread, begin, end))
            else:
                found.operators.append(_operator(row, note, thread, begin, end, forward, place in parents))
            if isinstance(note, ExchangeNote):
                exchange_of[row.entry] = len(found.exchanges)
                found.exchanges.append(record.Exchange(thread=thread, begin=begin, end=end, **note._asdict()))
        elif isinstance(note, CallNote):
            exchange = exchange_of.get(note.exchange, -1)
            found.calls.append(record.DeviceCall(
                kind=note.kind, thread=thread, position=begin, stream=note.stream, event=note.event, exchange=exchange, bytes=note.bytes,
            ))  # fmt: skip
        elif isinstance(note, AllocationNote):
            found.allocations.append(record.Allocation(begin, note.bytes, note.storage))
        elif isinstance(note, StepNote):
            steps.append((note.number, end))
    found.marks.extend(
        record.Mark(f"ProfilerStep#{number}", 0, before + 1, end) for (_, before), (number, end) in itertools.pairwise(steps)
    )
    return found._replace(operators=as_plain(found.operators))


def _with_children(rows: _Rows) -> set[int]:
    """The rows that have an operator below them."""
    found = set()
    for boundaries in rows.boundaries.values():
        stack: list[int] = []
        for each in boundaries:
            if each.is_end:
                stack.pop()
                continue
            row = rows.rows[each.row]
            if stack and row is not None and row.fields is not None:
                found.add(stack[-1])
            stack.append(each.row)
    return found


def _operator(row: _Row, note: Any, thread: int, begin: int, end: int, forward: dict[int, int], calls_others: bool) -> record.Operator:
    fields = row.fields
    backward = fields.scope.name == _BACKWARD or row.name.startswith("autograd::engine")
    if fields.sequence_number >= 0 and not backward:
        forward.setdefault(fields.sequence_number, thread)
    known = note if isinstance(note, OperatorNote) else None
    return record.Operator(
        name=row.name,
        thread=thread,
        begin=begin,
        end=end,
        inputs=known.inputs if known else [_argument(each) for each in fields.inputs],
        outputs=known.outputs if known else [],
        overload=known.overload if known else "",
        sequence=fields.sequence_number,
        forward_thread=forward.get(fields.sequence_number, -1) if backward else -1,
        stream=known.stream if known else 0,
        leaf=known is not None and not calls_others,
    )


def _argument(value: Any) -> record.Argument:
    """An input as torch's profiler describes it."""
    if isinstance(value, (list, tuple)):
        return [_argument(each) for each in value]  # type: ignore[misc]
    if hasattr(value, "sizes"):
        dtype = str(value.dtype).removeprefix("torch.")
        return record.Tensor(tuple(value.sizes), dtype, tuple(value.strides or ()), 0, value.device.type)
    return value if isinstance(value, (bool, int, float, str)) else None
