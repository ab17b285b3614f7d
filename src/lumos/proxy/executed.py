"""Operators from a PyTorch execution trace: exact arguments, the identity of tensors, and what each operator returned.

An execution trace has no times. Where the profiler's rows of the same step are given too, their operators are matched with those of
the execution trace and take their arguments from it. Alone, an execution trace gives a program without times.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from lumos.errors import UsageError
from lumos.operators.sequences import align_names
from lumos.proxy.arguments import BYTES, INTEGERS, contiguous, extent, is_sizes, torch_name
from lumos.proxy.compiled import compiled_kernel, put_compiled_code_between
from lumos.proxy.indices import KEEPS_VALUES, NEEDS_NON_NEGATIVE, Arguments, bounds
from lumos.proxy.program import (
    NON_NEGATIVE,
    OUTPUT_FIRST,
    RankProgram,
    RecordedCollective,
    RecordedOperator,
    StandIn,
    Storage,
    lift_transfers,
    tensors_among,
)
from lumos.trace.collectives import listed_numbers
from lumos.trace.kineto_values import Size
from lumos.vocabulary import CollectiveKind

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from lumos.trace.execution_trace import ExecutionTrace

#: The name of the step of a recording without step marks.
_WHOLE = "whole trace"

#: Where c10d::alltoall_base_ takes the elements from each rank and to each rank.
_OUTPUT_SPLITS, _INPUT_SPLITS = 3, 4


@dataclass(slots=True)
class _Tensors:
    """The tensors of an execution trace.

    numbers: index into `tensors` by identity, which is (tensor id, storage id, offset, type, shape, strides) because torch uses ids
    again. storage_numbers: index into `storages` by (storage id, type, device). same_values: by storage, another one that holds
    the same integers, so that they have the same bound.
    """

    tensors: list[StandIn] = field(default_factory=list)
    storages: list[Storage] = field(default_factory=list)
    numbers: dict[tuple[Any, ...], int] = field(default_factory=dict)
    storage_numbers: dict[tuple[Any, ...], int] = field(default_factory=dict)
    same_values: dict[int, int] = field(default_factory=dict)

    def take(self, value: Sequence[Any], shape: tuple[int, ...], strides: tuple[int, ...], dtype: str) -> int:
        """The index of a tensor. value: as recorded, (tensor id, storage id, offset, elements, bytes of an element, device)."""
        identity, storage, offset, _, _, device = value
        side = "cpu" if str(device).startswith("cpu") else "accelerator"
        memory = self.storage_numbers.setdefault((storage, dtype, side), len(self.storages))
        if memory == len(self.storages):
            self.storages.append(Storage(0, side))
        number = self.numbers.setdefault((identity, storage, offset, dtype, shape, strides), len(self.tensors))
        if number == len(self.tensors):
            self.tensors.append(StandIn(dtype, shape, strides, int(offset), memory))
            end = (int(offset) + extent(shape, strides)) * BYTES[dtype]
            self.storages[memory].nbytes = max(self.storages[memory].nbytes, end)
        return number

    def root(self, storage: int) -> int:
        """The storage that represents all those with the same values."""
        while (up := self.same_values.get(storage, storage)) != storage:
            storage = up
        return storage

    def join(self, one: int, other: int) -> None:
        """Note that two tensors hold the same values."""
        one, other = self.root(self.tensors[one].storage), self.root(self.tensors[other].storage)
        if one != other:
            self.same_values[one] = other
            self.limit(other, self.storages[one].bound)

    def limit(self, storage: int, bound: int) -> None:
        """Limit the values of a storage; the smallest bound of several counts."""
        at = self.storages[self.root(storage)]
        if bound != 1 and (at.bound == 1 or abs(bound) < abs(at.bound)):
            at.bound = bound

    def settle(self) -> None:
        """Give all storages with the same values the same bound."""
        for number, storage in enumerate(self.storages):
            storage.bound = self.storages[self.root(number)].bound


def executed_rank(trace: ExecutionTrace, rank: int, groups: Mapping[str, int], step: str | None = None) -> RankProgram:
    """The program of an execution trace alone. It has no times, so there is no recorded step to compare with."""
    tensors = _Tensors()
    operators, name = _operators(trace, groups, step, tensors)
    on_accelerator = any(storage.device == "accelerator" for storage in tensors.storages)
    if not on_accelerator:
        put_compiled_code_between(operators)
    return RankProgram(rank, name, -1, on_accelerator, 0, operators, tensors.tensors, tensors.storages)


def lend_arguments(program: RankProgram, trace: ExecutionTrace, groups: Mapping[str, int]) -> float:
    """Give the operators of a profiled rank the arguments of the same operators in its execution trace.

    Operators are aligned in call order by their names. Returns the share of the profiled operators that were paired; the
    others keep the arguments that the profiler printed. The program is changed in place.
    """
    operators, _ = _operators(trace, groups, program.step, _Tensors(program.tensors, program.storages))
    every = [o for root in operators for o in root.walk()]
    compiled = {o.name for o in every if o.compiled}
    executed = [o for o in every if "::" in o.name or o.name in compiled]
    profiled = [o for o in program.walk() if "::" in o.name or o.name in compiled]
    numbers: dict[str, int] = {}
    names = [np.array([numbers.setdefault(o.name, len(numbers)) for o in of_rank], np.int32) for of_rank in (profiled, executed)]
    partner = align_names(*names)
    for operator, other in zip(profiled, partner.tolist(), strict=True):
        if other >= 0:
            source = executed[other]
            operator.schema, operator.compiled = source.schema, source.compiled
            operator.inputs, operator.outputs = source.inputs, source.outputs
            operator.collective = _lent(operator.collective, source.collective)
    return float((partner >= 0).mean()) if profiled else 1.0


def _lent(profiled: RecordedCollective | None, executed: RecordedCollective | None) -> RecordedCollective | None:
    """A profiled transfer with the sizes and parts of the same transfer in the execution trace, where that has them."""
    if profiled is None or executed is None or not executed.elements_in:
        return profiled
    sizes = {name: getattr(executed, name) for name in ("dtype", "elements_in", "elements_out", "splits_in", "splits_out")}
    return replace(profiled, **sizes)


def _operators(trace: ExecutionTrace, groups: Mapping[str, int], step: str | None, tensors: _Tensors) -> tuple[list[RecordedOperator], str]:
    """The operators of one step that no other called, with those that they called; and the name of the step. Adds their tensors."""
    low, high, name = _window(trace, step)
    pseudo = trace.is_pseudo()
    made: dict[int, RecordedOperator] = {}
    roots: list[RecordedOperator] = []
    for node in range(low, high):
        if pseudo[node]:
            continue
        made[node] = operator = _operator(trace, node, tensors, groups)
        above = made.get(int(trace.parent[node]))
        (above.children if above is not None else roots).append(operator)
    for operator in (o for root in roots for o in root.walk()):
        _limits(operator, tensors)
        lift_transfers(operator)
    tensors.settle()
    return roots, name


def _window(trace: ExecutionTrace, step: str | None) -> tuple[int, int, str]:
    """The range of nodes from one step mark to the next, and the step's name. All nodes where no step is marked in either trace."""
    marks = [i for i in range(len(trace)) if trace.strings[trace.name[i]].startswith("ProfilerStep")]
    if not marks or step == _WHOLE:
        return 0, len(trace), _WHOLE
    names = [trace.strings[trace.name[i]] for i in marks]
    wanted = [at for at, n in enumerate(names) if step is not None and step in (n, n.removeprefix("ProfilerStep#"))]
    if step is not None and not wanted and not step.startswith("ProfilerStep"):
        raise UsageError(f"--step {step}: no such step; the execution trace has {', '.join(names)}")
    at = wanted[0] if wanted else (len(marks) - 1) // 2
    return marks[at] + 1, marks[at + 1] if at + 1 < len(marks) else len(trace), names[at]


def _operator(trace: ExecutionTrace, node: int, tensors: _Tensors, groups: Mapping[str, int]) -> RecordedOperator:
    attrs = trace.attrs[node]
    name = trace.strings[trace.name[node]]
    schema = attrs.get("op_schema")
    operator = RecordedOperator(name, schema=schema if isinstance(schema, str) else "", kernel=bool(attrs.get("kernel_backend")))
    operator.compiled, operator.inputs = compiled_kernel(attrs, _values(trace.inputs[node], trace.input_strides[node], tensors))
    outputs = _values(trace.outputs[node], trace.output_strides[node], tensors)
    operator.outputs = list(tensors_among(outputs)) if outputs is not None else None
    if name == "record_param_comms" or name.startswith(("c10d::", "_c10d_functional::")):
        operator.collective = _collective(operator, attrs, tensors, groups)
    return operator


def _values(texts: tuple[str, str, str], strides_text: str, tensors: _Tensors) -> list[Any] | None:
    """The arguments or results of a node; None where the file contradicts itself."""
    try:
        values, shapes, types, strides = (json.loads(text) for text in (*texts, strides_text))
    except ValueError:
        return None
    if not all(isinstance(part, list) for part in (values, shapes, types)) or len(types) != len(values):
        return None
    count = len(values)
    return [_value(*one, tensors) for one in zip(values, _padded(shapes, count), _padded(strides, count), types, strict=True)]


def _padded(value: Any, count: int) -> list[Any]:
    """A list of `count` entries, None where there are fewer: the observer leaves out the shapes of values that have none."""
    known = value if isinstance(value, list) else []
    return (known + [None] * count)[:count]


def _value(value: Any, shape: Any, steps: Any, kind: Any, tensors: _Tensors) -> Any:
    """One argument: `{"tensor": i}`, a list, or a plain value; None where it is absent or its type is not known."""
    if not isinstance(kind, str):
        return None
    if kind.startswith("Tensor("):
        dtype = torch_name(kind[7:-1])
        known = isinstance(value, list) and len(value) == 6 and is_sizes(value[:5]) and is_sizes(shape)
        if not dtype or not known:
            return None
        strided = is_sizes(steps) and len(steps) == len(shape)
        return {"tensor": tensors.take(value, tuple(shape), tuple(steps) if strided else contiguous(tuple(shape)), dtype)}
    if kind.startswith(("GenericList[", "Tuple[")):
        kinds = list(_split(kind[kind.index("[") + 1 : -1]))
        if not isinstance(value, list):
            return None
        count = len(value)
        kinds = (kinds + kinds[-1:] * count)[:count]
        if len(kinds) < count:
            return None
        return [_value(*one, tensors) for one in zip(value, _padded(shape, count), _padded(steps, count), kinds, strict=True)]
    if kind == "Device":
        return "cpu" if str(value).startswith("cpu") else "accelerator"
    if kind in ("Int", "SymInt", "Double", "Bool", "String", "Scalar", "Complex"):
        if kind == "Double" and isinstance(value, str):
            return {"float": value} if value.strip("<>-").lower() in ("inf", "nan") else None
        return value
    return None


def _split(kinds: str) -> Iterator[str]:
    """The parts of a text such as "Tensor(float),GenericList[Int,Int],Int", split at the outer commas."""
    depth, begin = 0, 0
    for at, letter in enumerate(kinds):
        depth += (letter in "[(") - (letter in "])")
        if letter == "," and depth == 0:
            yield kinds[begin:at]
            begin = at + 1
    if kinds[begin:]:
        yield kinds[begin:]


def _limits(operator: RecordedOperator, tensors: _Tensors) -> None:
    """Limit the values of the tensors that an operator reads: indices to their range, arguments of roots to non-negative values."""
    inputs = operator.inputs or []
    flat = [next(tensors_among(argument), None) if isinstance(argument, dict) else None for argument in inputs]
    shapes = [tensors.tensors[slot].shape if slot is not None else None for slot in flat]
    for position, bound in bounds(operator.name, Arguments(shapes, inputs)).items():
        slot = flat[position]
        if slot is not None and tensors.tensors[slot].dtype in INTEGERS:
            tensors.limit(tensors.tensors[slot].storage, bound)
    indexes = operator.name.startswith(("aten::index", "aten::_index_put", "aten::_unsafe_index"))
    if indexes and len(inputs) > 1 and isinstance(inputs[1], list) and shapes[0]:
        for size, index in zip(shapes[0], inputs[1], strict=False):
            for slot in tensors_among(index):
                if tensors.tensors[slot].dtype in INTEGERS:
                    tensors.limit(tensors.tensors[slot].storage, size)
    if operator.name in NEEDS_NON_NEGATIVE:
        for slot in tensors_among(inputs[:1]):
            if tensors.tensors[slot].dtype.startswith(("float", "bfloat")):
                tensors.limit(tensors.tensors[slot].storage, NON_NEGATIVE)
    slots = list(tensors_among(inputs[: 2 if operator.name == "aten::copy_" else 1]))
    if operator.name in KEEPS_VALUES or operator.name == "aten::copy_":
        related = [slot for slot in (*slots, *(operator.outputs or ())) if tensors.tensors[slot].dtype in INTEGERS]
        for slot in related[1:]:
            tensors.join(related[0], slot)


def _collective(
    operator: RecordedOperator, attrs: Mapping[str, Any], tensors: _Tensors, groups: Mapping[str, int]
) -> RecordedCollective | None:
    inputs = operator.inputs or []
    text = attrs.get("collective_name") or next(
        (v for v in inputs if isinstance(v, str) and CollectiveKind.in_name(v) is not CollectiveKind.UNKNOWN), operator.name
    )
    kind = CollectiveKind.in_name(str(text))
    if kind is CollectiveKind.UNKNOWN or (operator.name == "record_param_comms" and text == operator.name):
        return None
    both = [tensors.tensors[slot] for slot in tensors_among(inputs)]
    read, written = both, [tensors.tensors[slot] for slot in operator.outputs or ()]
    if operator.name.endswith(OUTPUT_FIRST) and len(both) > 1:
        written, read = both[:1], both[1:2]
    parts_out, parts_in = _parts(operator)
    dtype = torch_name(str(attrs.get("dtype", ""))) or (read[0].dtype if read else "float32")
    named = attrs.get("pg_name") or next((v[0] for v in inputs if isinstance(v, list) and len(v) == 2 and isinstance(v[0], str)), "")
    return RecordedCollective(
        kind=kind,
        dtype=dtype,
        elements_in=_attribute(attrs, "in_msg_nelems", sum(math.prod(t.shape) for t in read)),
        elements_out=_attribute(attrs, "out_msg_nelems", sum(math.prod(t.shape) for t in written)),
        group=groups.get(str(named), groups.get("", -1)),
        peer=_peer(operator),
        splits_in=listed_numbers(attrs.get("in_split_size"), Size) or parts_in,
        splits_out=listed_numbers(attrs.get("out_split_size"), Size) or parts_out,
    )


def _peer(operator: RecordedOperator) -> int:
    """The root, source or destination as a rank of the group, the first whole number among the arguments; -1 for none."""
    if operator.name not in ("c10d::send", "c10d::recv_", "c10d::broadcast_", "c10d::reduce_"):
        return -1
    return next((value for value in operator.inputs or () if type(value) is int and value >= 0), -1)


def _parts(operator: RecordedOperator) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Elements from and to each rank; empty for equal parts. c10d::alltoall_base_ takes them as its fourth and fifth argument,
    record_param_comms the other way round behind the name of the transfer."""
    inputs = operator.inputs or []
    if operator.name == "c10d::alltoall_base_" and len(inputs) > _INPUT_SPLITS:
        return listed_numbers(inputs[_OUTPUT_SPLITS], Size), listed_numbers(inputs[_INPUT_SPLITS], Size)
    named = next((at for at, value in enumerate(inputs) if isinstance(value, str)), len(inputs))
    if operator.name == "record_param_comms" and len(inputs) > named + 2:
        return listed_numbers(inputs[named + 2], Size), listed_numbers(inputs[named + 1], Size)
    return (), ()


def _attribute(attrs: Mapping[str, Any], name: str, default: int) -> int:
    value = attrs.get(name)
    return value if isinstance(value, int) and value >= 0 else default
