"""The execution trace of an emulated process: its operators with the identity of every tensor, in schema 1.1.1, as torch's
ExecutionTraceObserver writes it since version 2.5; and arguments of operators as the profiler's rows show them.

Node 1 is the process, then come its threads and the process groups, then everything that the record has, in the order in which it
began, so that an id is a place in the order of calls. A node's `rf_id` is the "Record function id" of the profiler's row of the same call.
An operator that only calls others gives what the last of them gave, or its first argument where it called none, as `aten::to` may.

A tensor's value is its id, the id of its storage, the offset of its first element, its elements, bytes of an element and device. Types of
elements, layouts and memory formats are the numbers of torch's enumerations.
"""

from __future__ import annotations

import itertools
import math
import re
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from isal import igzip

from lumos.emulation.device.launch import tensor_list, width
from lumos.emulation.record import Exchange, Mark, Operator, Tensor, enclosed, signature
from lumos.graph.joined.one_job import EMULATED
from lumos.trace.kineto_rows import PROCESS
from lumos.vocabulary import MODULE_PREFIX, CollectiveKind, DType

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from lumos.emulation.record import Argument, Group, Process

#: torch's names in the order of the numbers that they have in c10::ScalarType, c10::Layout and c10::MemoryFormat of torch 2.13.
_SCALAR_TYPES = (
    "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64", "complex32", "complex64", "complex128", "bool", "qint8",
    "quint8", "qint32", "bfloat16", "quint4x2", "quint2x4", "bits1x8", "bits2x4", "bits4x2", "bits8", "bits16", "float8_e5m2",
    "float8_e4m3fn", "float8_e5m2fnuz", "float8_e4m3fnuz", "uint16", "uint32", "uint64",
)  # fmt: skip
_LAYOUTS = ("strided", "sparse_coo", "sparse_csr", "_mkldnn", "sparse_csc", "sparse_bsr", "sparse_bsc", "jagged")
_FORMATS = ("contiguous_format", "preserve_format", "channels_last", "channels_last_3d")
_NUMBERS = {f"torch.{name}": number for names in (_SCALAR_TYPES, _LAYOUTS, _FORMATS) for number, name in enumerate(names)}

_DEVICE = re.compile(r"(cpu|cuda|meta)(:\d+)?")
#: One argument in the four forms in which the observer writes it: its value, shape, type and stride.
_Forms = tuple[Any, Any, str, Any]


class TensorIds:
    """Gives every tensor and every storage of a process an id. Two tensors are the same where they show the same part of a storage in the
    same way. first: the first id that is free."""

    def __init__(self, first: int) -> None:
        self._next = first
        self._tensors: dict[Tensor, int] = {}
        self._storages: dict[int, int] = {}

    def written(self, arguments: Iterable[Argument]) -> dict[str, Any]:
        """The object that a node has for its inputs or outputs."""
        forms = self._together(arguments)
        return dict(zip(("values", "shapes", "types", "strides"), forms, strict=True))

    def _together(self, arguments: Iterable[Argument]) -> list[list[Any]]:
        return [list(column) for column in zip(*map(self._forms, arguments), strict=True)] or [[], [], [], []]

    def _forms(self, argument: Argument) -> _Forms:
        if isinstance(argument, list):
            values, shapes, types, strides = self._together(argument)
            return values, shapes, f"GenericList[{','.join(types)}]", strides
        if not isinstance(argument, Tensor):
            value, kind = _plain(argument)
            return value, [], kind, []
        storage, device = self._id(self._storages, argument.storage), _device(argument.device)
        count = math.prod(argument.shape)
        value = [self._id(self._tensors, argument), storage, argument.offset, count, width(argument.dtype), device]
        return value, argument.shape, f"Tensor({cpp_type(argument.dtype)})", argument.stride

    def _id(self, known: dict[Any, int], key: Any) -> int:
        if key not in known:
            known[key] = self._next
            self._next += 1
        return known[key]


def _device(kind: str) -> str:
    """A device with its number: a process has one accelerator, and calls it 0."""
    return "cuda:0" if kind == "cuda" else kind


def _plain(value: bool | float | str | None) -> tuple[Any, str]:
    """The value and the type of an argument that is neither a tensor nor a list."""
    if value is None:
        return "<None>", "None"
    if isinstance(value, (bool, int, float)):
        kind = "Bool" if isinstance(value, bool) else "Int" if isinstance(value, int) else "Double"
        return value if math.isfinite(value) else str(value), kind
    if value in _NUMBERS:
        return _NUMBERS[value], "Int"
    if _DEVICE.fullmatch(value):
        return _device(value), "Device"
    return ("<Object>", "Object") if value.startswith("<") else (value, "String")


def cpp_type(dtype: str) -> str:
    """A type as the profiler and the execution trace name it, by its name in torch."""
    known = DType.parse(dtype)
    return dtype if known is None else known.profiler_name


def operator_arguments(operator: Operator, number: int) -> str:
    """The members of the JSON object of an operator's row. number: of the row, which device work and the execution trace refer to."""
    inputs = operator.inputs
    out: dict[str, Any] = {"External id": number, "Record function id": number}
    if operator.sequence >= 0:
        out["Sequence number"] = operator.sequence
        out["Fwd thread id"] = operator.forward_thread + 1  # the first thread is 1, and 0 stands beside operators that are no nodes
    if inputs:
        out["Concrete Inputs"], out["Input type"] = zip(*map(_shown, inputs), strict=True)
        out["Input Strides"] = [_layout(argument, "stride") for argument in inputs]
        out["Input Dims"] = [_layout(argument, "shape") for argument in inputs]
    out["Ev Idx"] = number
    return msgspec.json.encode(out).decode()[1:-1]


def type_word(dtype: str) -> str:
    """A type as the arguments of collectives name it; "Byte" for one that they have no name for."""
    known = DType.parse(dtype)
    return "Byte" if known is None else known.word


def _layout(argument: Argument, what: str) -> list[Any]:
    if isinstance(argument, Tensor):
        return list(getattr(argument, what))
    return [list(getattr(tensor, what)) for tensor in tensor_list(argument)]


def _shown(argument: Argument) -> tuple[str, str]:
    """The value and the type of an argument, as the profiler's rows show them."""
    if isinstance(argument, Tensor):
        return "", cpp_type(argument.dtype)
    if isinstance(argument, list):
        return ("", "TensorList") if tensor_list(argument) else (f"[{', '.join(_shown(element)[0] for element in argument)}]", "ScalarList")
    return ("", "") if argument is None else (str(argument), "Scalar")


SCHEMA = "1.1.1-chakra.0.0.4"
_PROCESS, _THREAD = (f"[pytorch|profiler|execution_trace|{word}]" for word in ("process", "thread"))
_GROUPS = "## process_group:init ##"

#: Numbers of c10's RecordScope.
_FUNCTION, _BACKWARD, _USER = 0, 1, 7


def compressed(path: Path) -> Any:
    """A new file, compressed at the fastest level, which a reader does not notice."""
    return igzip.open(path, "wb", compresslevel=1)  # type: ignore[no-untyped-call]


class _Call(NamedTuple):
    """A node of the record. parent: the id of its caller."""

    id: int
    parent: int
    what: Operator | Mark | Exchange
    place: int


def execution_trace_name(rank: int) -> str:
    """The name of a rank's file, as `lumos collect --execution-trace` gives it."""
    return f"rank{rank}.et.json.gz"


def record_ids(process: Process) -> tuple[int, int, int]:
    """The "Record function id" of the first operator, the first mark and the first exchange of a record; those of others follow."""
    marks = 1 + len(process.operators)
    return 1, marks, marks + len(process.marks)


def own_meetings(process: Process) -> dict[int, tuple[Group, int]]:
    """What the exchanges of the process itself are, by their place in its record: the group, and the peer or root (-1 without)."""
    groups = {group.name: group for group in process.groups}
    return {i: (groups[exchange.group], exchange.peer) for i, exchange in enumerate(process.exchanges) if exchange.group in groups}


class NodeSheet:
    """The nodes of the ranks that run one program. What they have in common is made once."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self._ids = record_ids(process)
        self._calls = list(_calls(process))
        self._results = _results(process, self._calls)
        self._tensors = TensorIds(self._calls[-1].id + 1 if self._calls else _first_call(process))
        common = [self._node(call) for call in self._calls if not isinstance(call.what, Exchange)]
        self._common = [b",\n".join(common)] if common else []  # as one, since many ranks may share many nodes

    def write(self, path: Path, groups: Sequence[Group], meetings: Mapping[int, tuple[Group, int]]) -> None:
        """Write the file of one rank, compressed. groups: those that it is a member of. meetings: as `own_meetings` has them."""
        head = {"schema": SCHEMA, "pid": PROCESS, "time": "", "start_ts": 0, "lumos": EMULATED.said}
        nodes = [*self._pseudo(groups), *self._common]
        exchanges = (call for call in self._calls if call.place in meetings and isinstance(call.what, Exchange))
        nodes += [self._exchange(call, *meetings[call.place]) for call in exchanges]
        with compressed(path) as file:
            file.write(msgspec.json.encode(head)[:-1] + b',"nodes":[\n' + b",\n".join(nodes) + b'\n],"finish_ts":0}\n')

    def _pseudo(self, groups: Sequence[Group]) -> Iterator[bytes]:
        """The nodes of the process, its threads and its groups."""
        empty = self._tensors.written(())
        yield _encoded(1, _PROCESS, 1, empty, empty, _attributes(0, _USER, 0))
        for thread in range(len(self.process.threads)):
            yield _encoded(2 + thread, _THREAD, 1, empty, empty, _attributes(0, _USER, thread + 1))
        if groups:
            names = "pg_name", "pg_desc", "ranks", "group_size", "group_count"
            facts = ((group.name, group.description, group.ranks, len(group.ranks), len(groups)) for group in groups)
            listed = [dict(zip(names, group_facts, strict=True)) for group_facts in facts]
            given = self._tensors.written([msgspec.json.encode(listed).decode()])
            yield _encoded(2 + len(self.process.threads), _GROUPS, 2, given, empty, _attributes(0, _USER, 1))

    def _node(self, call: _Call) -> bytes:
        what = call.what
        if isinstance(what, Mark):
            empty = self._tensors.written(())
            return _encoded(call.id, what.name, call.parent, empty, empty, _attributes(self._ids[1] + call.place, _USER, what.thread + 1))
        assert isinstance(what, Operator)
        attributes = _attributes(
            self._ids[0] + call.place, _BACKWARD if what.forward_thread >= 0 and "::engine::" not in what.name else _FUNCTION,
            what.thread + 1, sequence=what.sequence, forward=what.forward_thread + 1,
            schema=self.process.schemas.get(signature(what), ""),
        )  # fmt: skip
        inputs, outputs = self._tensors.written(what.inputs), self._tensors.written(self._results[call.place])
        return _encoded(call.id, what.name, call.parent, inputs, outputs, attributes)

    def _exchange(self, call: _Call, group: Group, peer: int) -> bytes:
        """The node in which torch says what a collective does, below the operator that asked for it."""
        exchange = call.what
        assert isinstance(exchange, Exchange)
        name = {CollectiveKind.SEND: "send", CollectiveKind.RECEIVE: "recv"}.get(exchange.kind, exchange.name)
        start, stride = group.ranks[0], _stride(group.ranks)
        given: list[Argument] = [exchange.sequence, [group.name, group.description], peer, name]
        given += [list(exchange.input_splits), list(exchange.output_splits), start, stride, len(group.ranks)]
        attributes = _attributes(self._ids[2] + call.place, _FUNCTION, exchange.thread + 1) + _written(
            "string", collective_name=name, dtype=type_word(exchange.dtype), in_split_size=str(exchange.input_splits),
            out_split_size=str(exchange.output_splits), pg_name=group.name, pg_desc=group.description,
        ) + _written(
            "uint64", in_msg_nelems=exchange.input_elements, out_msg_nelems=exchange.output_elements, global_rank_start=start,
            pg_size=len(group.ranks),
        ) + _written("int64", global_rank_stride=stride)  # fmt: skip
        return _encoded(call.id, "record_param_comms", call.parent, self._tensors.written(given), self._tensors.written(()), attributes)


def _first_call(process: Process) -> int:
    """The id of the first node after those of the process, its threads and its groups."""
    return 3 + len(process.threads)


def _calls(process: Process) -> Iterator[_Call]:
    """Everything that the record has but calls of modules, which torch's observer does not see, in the order in which it began, each with
    its caller on its thread."""
    lists: tuple[Sequence[Operator | Mark | Exchange], ...] = (process.marks, process.operators, process.exchanges)
    every = [(kind, position, entry) for kind, things in enumerate(lists) for position, entry in enumerate(things)]
    every = [each for each in every if not (isinstance(each[2], Mark) and each[2].name.startswith(MODULE_PREFIX))]
    every.sort(key=lambda one: (one[2].begin, -one[2].end, *one[:2]))
    around = dict(enclosed((entry.thread, entry.begin, entry.end, number) for number, (_, _, entry) in enumerate(every)))
    first = _first_call(process)
    for number, (_, position, entry) in enumerate(every):
        yield _Call(first + number, first + around[number][-1] if around[number] else 2 + entry.thread, entry, position)


def _results(process: Process, calls: Sequence[_Call]) -> list[list[Argument]]:
    """What each operator of the record gives."""
    place_of = {call.id: call.place for call in calls if isinstance(call.what, Operator)}
    results: list[list[Argument]] = [[] for _ in process.operators]
    last: dict[int, list[Argument]] = {}  # by place: the results of the last operator that it called
    for call in reversed(calls):
        if isinstance(call.what, Operator):
            results[call.place] = _given(call.what, process.schemas.get(signature(call.what), ""), last.pop(call.place, []))
            caller = place_of.get(call.parent, -1)
            if caller >= 0 and results[call.place]:
                last.setdefault(caller, results[call.place])
    return results


def _given(operator: Operator, schema: str, of_last: list[Argument]) -> list[Argument]:
    returns = schema.rpartition(" -> ")[2]
    if operator.outputs or returns in ("", "()"):
        return operator.outputs
    count = 1 + returns.count(",") if returns.startswith("(") else 1
    return (of_last or operator.inputs[:1])[:count]


def _stride(ranks: Sequence[int]) -> int:
    """The distance between the ranks of a group where it is always the same, otherwise -1."""
    steps = {other - one for one, other in itertools.pairwise(ranks)}
    return steps.pop() if len(steps) == 1 else -1 if steps else 0


def _written(kind: str, **values: Any) -> list[dict[str, Any]]:
    """Attributes of one type."""
    return [{"name": name, "type": kind, "value": value} for name, value in values.items()]


def _attributes(record: int, scope: int, thread: int, sequence: int = -1, forward: int = 0, schema: str = "") -> list[dict[str, Any]]:
    numbers = _written("uint64", rf_id=record, fw_parent=0, scope=scope, tid=thread, fw_tid=forward) + _written("int64", seq_id=sequence)
    return numbers + _written("string", op_schema=schema, kernel_backend="", kernel_file="", tensor_range="")


def _encoded(number: int, name: str, parent: int, inputs: Any, outputs: Any, attributes: list[dict[str, Any]]) -> bytes:
    node = {"id": number, "name": name, "ctrl_deps": parent, "inputs": inputs, "outputs": outputs, "attrs": attributes}
    return msgspec.json.encode(node)
