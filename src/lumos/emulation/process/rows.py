"""The profiler's rows and the journal's notes, put together into one record on one clock."""

from __future__ import annotations

import contextlib
import heapq
import itertools
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from msgspec.structs import replace

from lumos.emulation import record
from lumos.emulation.process.journal import CLOSED, OPEN, Journal, StepNote
from lumos.emulation.record import ENGINE_PREFIX, REGION_PREFIX
from lumos.vocabulary import MODULE_PREFIX

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from lumos.emulation.process.operators.storages import Storages

#: Rows that torch adds where a mode or a subclass of tensors takes an operator over.
_DISPATCH = frozenset({"PythonDispatchMode", "PythonSubclass"})
_ANNOTATION = "USER_SCOPE"
_BACKWARD = "BACKWARD_FUNCTION"


class _Row(NamedTuple):
    """A row that is kept. entry: the number of its note, 0 without. event: of the profiler, None for a note's own row."""

    name: str
    thread: int
    entry: int
    event: Any = None


class Boundary(NamedTuple):
    """The begin or end of a row on its thread, in ns of the profiler."""

    time: int
    row: int
    is_end: bool


class _Rows:
    """The kept rows of all threads, and the boundaries of each thread in their order."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self.rows: list[_Row] = []
        self.noted: list[int] = []  # for each row the newest note when it ended
        self.parents: set[int] = set()  # rows that have an operator below them
        self._open: list[int] = []
        self._newest = 0
        self.boundaries: dict[int, list[Boundary]] = {}

    def add(self, event: Any) -> None:
        """Keep a row of the profiler's tree and what is below it, except torch's own work on tensors without data."""
        name = event.name
        if name.startswith(CLOSED):
            self._span(event, _Row(name, event.start_tid, int(name.removeprefix(CLOSED))), _notes_below(event))
        elif name.startswith(OPEN) or name in _DISPATCH:
            for child in event.children:
                self.add(child)
        else:
            kept = [child for child in event.children if child.name in _DISPATCH]
            entry, closed = self._entry(kept)
            below = _notes_below(event) if closed else event.children
            self._span(event, _Row(name, event.start_tid, entry, event), below)

    def _entry(self, dispatched: list[Any]) -> tuple[int, bool]:
        """The number of the note of a row, and whether what is below it is torch's own work: a row of ours below torch's for the mode."""
        for child in (child for event in dispatched for child in event.children):
            for prefix in (CLOSED, OPEN):
                if child.name.startswith(prefix):
                    number = int(child.name.removeprefix(prefix))
                    if isinstance(self._journal.entries.get(number), (record.Operator, record.Exchange)):
                        return number, prefix == CLOSED
        return 0, False

    def _span(self, event: Any, row: _Row, children: Iterable[Any]) -> None:
        number = len(self.rows)
        self.rows.append(row)
        self.noted.append(0)
        self._newest = max(self._newest, row.entry)
        self._bound(event.start_tid, Boundary(event.start_time_ns, number, False))
        if row.event is not None:
            self.parents.update(self._open[-1:])
        self._open.append(number)
        for child in children:
            self.add(child)
        self._open.pop()
        self._bound(event.start_tid, Boundary(event.end_time_ns, number, True))
        self.noted[number] = self._newest

    def _bound(self, thread: int, boundary: Boundary) -> None:
        mine = self.boundaries.setdefault(thread, [])
        mine.append(boundary._replace(time=max(boundary.time, mine[-1].time)) if mine else boundary)


def _notes_below(event: Any) -> Iterator[Any]:
    """Our own rows below one whose other rows are not kept."""
    for child in event.children:
        if child.name.startswith(CLOSED):
            yield child
        else:
            yield from _notes_below(child)


def put_together(profile: Any, journal: Journal, storages: Storages, process: record.Process) -> None:
    """Fill the lists of a record. profile: what torch's profiler gives when it is disabled."""
    rows = _Rows(journal)
    for event in sorted(profile.experimental_event_tree(), key=lambda event: event.start_time_ns):
        rows.add(event)
    begins, ends = _positions(rows)
    numbers = {tid: number for number, tid in enumerate(dict.fromkeys(row.thread for row in rows.rows))}
    process.threads.extend(f"thread {number}" for number in range(len(numbers)))
    flat = {event.correlation_id(): event for event in profile.events()}
    _lists(rows, begins, ends, numbers, journal, storages, flat, process)
    process.operators.sort(key=lambda operator: operator.begin)
    process.schemas.update(_schemas(process.operators))


def _positions(rows: _Rows) -> tuple[list[int], list[int]]:
    """Begin and end of each row on one clock for all threads."""
    begins, ends = [0] * len(rows.rows), [0] * len(rows.rows)
    for position, boundary in enumerate(heapq.merge(*rows.boundaries.values(), key=lambda boundary: boundary.time)):
        (ends if boundary.is_end else begins)[boundary.row] = position + 1
    return begins, ends


def _lists(
    rows: _Rows, begins: list[int], ends: list[int], numbers: dict[int, int], journal: Journal, storages: Storages,
    flat: Mapping[int, Any], process: record.Process,
) -> None:  # fmt: skip
    """flat: the profiler's rows outside of its tree, by their number there and here."""
    process.allocations.extend(journal.before)
    forward = _forward_threads(rows, numbers)
    exchange_of: dict[int, int] = {}
    steps = [(0, 0)]
    for index, row in enumerate(rows.rows):
        thread, begin, end = numbers[row.thread], begins[index], ends[index]
        note = journal.entries.get(row.entry)
        if isinstance(note, record.Exchange):
            exchange_of[row.entry] = len(process.exchanges)
            process.exchanges.append(replace(note, thread=thread, begin=begin, end=end))
        if row.event is not None:
            if row.event.typed[1].scope.name == _ANNOTATION or row.name.startswith((MODULE_PREFIX, REGION_PREFIX)):
                process.marks.append(record.Mark(row.name, thread, begin, end))
            else:
                known = note if isinstance(note, record.Operator) else record.Operator(
                    name=row.name, thread=thread, begin=begin, end=end, overload=str(getattr(row.event, "overload_name", "")),
                    inputs=_inputs(storages, rows.noted[index], row.event, flat),
                )  # fmt: skip
                leaf, number = known is note and (note.leaf or index not in rows.parents), row.event.typed[1].sequence_number
                made = forward.get(number, -1) if _is_node(row) else -1
                known = replace(known, thread=thread, begin=begin, end=end, leaf=leaf, sequence=number, forward_thread=made)
                process.operators.append(known)
        elif isinstance(note, record.DeviceCall):
            process.calls.append(replace(note, thread=thread, position=begin, exchange=exchange_of.get(note.exchange, -1)))
        elif isinstance(note, record.Allocation):
            process.allocations.append(replace(note, position=begin))
        elif isinstance(note, StepNote):
            steps.append((note.number, end))
    process.marks.extend(
        record.Mark(f"ProfilerStep#{number}", 0, before + 1, end) for (_, before), (number, end) in itertools.pairwise(steps)
    )


def _is_node(row: _Row) -> bool:
    """Whether a row is a node of a backward pass."""
    return row.event.typed[1].scope.name == _BACKWARD or row.name.startswith(ENGINE_PREFIX)


def _forward_threads(rows: _Rows, numbers: dict[int, int]) -> dict[int, int]:
    """By autograd's number the thread of the operator of the forward pass. Numbers count on each thread: the main thread's are meant, not
    those of what the backward pass recomputes."""
    out: dict[int, int] = {}
    for row in rows.rows:
        if row.event is not None and not _is_node(row) and (number := row.event.typed[1].sequence_number) >= 0:
            out[number] = min(out.get(number, numbers[row.thread]), numbers[row.thread])
    return out


def _schemas(operators: Iterable[record.Operator]) -> dict[str, str]:
    """The schema of each operator that has one, by its signature."""
    schemas: dict[str, str] = {}
    for operator in operators:
        name = record.signature(operator)
        if name not in schemas and "::" in name:
            with contextlib.suppress(RuntimeError):  # a row of the engine, or of a kernel without a schema
                schemas[name] = str(torch._C._get_schema(operator.name, operator.overload))
    return schemas


def _inputs(storages: Storages, noted: int, event: Any, flat: Mapping[int, Any]) -> list[record.Argument]:
    """Inputs as torch's profiler describes them. Its tree knows the address of a tensor, and so which one it is of those that were noted
    until then; of a list of numbers it has nothing, which the rows outside of the tree have. noted: the newest note."""

    def single(value: Any) -> record.Single:
        if not hasattr(value, "sizes"):
            return value if isinstance(value, (bool, int, float, str)) else None
        dtype = str(value.dtype).removeprefix("torch.")
        known = storages.known(int(value.impl_ptr), noted) if value.impl_ptr is not None else None
        if known is not None and (known.shape, known.dtype) == (tuple(value.sizes), dtype):
            return known
        return record.Tensor(tuple(value.sizes), dtype, tuple(value.strides or ()), 0, value.device.type)

    def argument(value: Any) -> record.Argument:
        return [single(element) for element in value] if isinstance(value, (list, tuple)) else single(value)

    arguments = [argument(value) for value in event.typed[1].inputs]
    numbers: Sequence[Any] = flat[event.correlation_id].concrete_inputs() if None in arguments and event.correlation_id in flat else ()
    if len(numbers) != len(arguments):
        return arguments
    return [argument(number) if value is None else value for value, number in zip(arguments, numbers, strict=True)]
