"""The operators of a trace with the shapes of their inputs, each distinct one once; the same as a program, and the axes of their inputs
(`operators.inference`).

Steps that call the same operators with the same inputs in the same order are one program, which is run once. A step is its threads one
after the other, in the order in which they began: the forward pass comes before the backward pass, whichever way they overlap.
"""

from __future__ import annotations

import json
import re
from functools import cache
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakValueDictionary

import numpy as np

from lumos.graph.kernel_names import KernelClass, kernel_class
from lumos.graph.lists import equal_rows, numbered
from lumos.graph.places import innermost
from lumos.operators.calls import OperatorCall
from lumos.operators.inference import Axes, infer
from lumos.operators.shaped import ShapedOperator, factors
from lumos.operators.symbols import Axis
from lumos.operators.table import own_name, views
from lumos.trace.autograd import autograd_numbers
from lumos.trace.nesting import callers
from lumos.trace.once import once_a_trace
from lumos.trace.table import ABSENT, Category, Int64, Trace, unique

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from lumos.operators.table import Shape

class Shapes:
    """The operators of a trace by row; equal ones are parsed once.

    operators: the distinct ones. of_row: int32, for every row of the trace its index in `operators`, -1 without shapes. rows: int64, those
    of operators with shapes, in file order. own: int64, those of the multiplications and look-ups that no other of them contains, which
    launch the kernels. PyTorch's DTensor dispatches an operator on what ranks share again on the rank's own part: a row of the whole holds
    one of the part.
    """

    def __init__(self, trace: Trace) -> None:
        self.of_row = np.full(len(trace), -1, np.int32)
        self.operators: tuple[ShapedOperator, ...] = ()
        column = trace.args.get("Input Dims")
        if column is not None and len(column.rows):
            types = trace.dense("Input type")[column.rows]
            keys = np.stack((trace.name[column.rows].astype(np.int64), column.values.astype(np.int64), types))
            order = np.lexsort(keys)
            new = np.append(True, (np.diff(keys[:, order], axis=1) != 0).any(axis=0))
            self.of_row[column.rows[order]] = np.cumsum(new) - 1
            products = multiplying(trace)
            self.operators = tuple(
                _parse(trace, name, dims, kinds, name in products) for name, dims, kinds in keys[:, order[new]].T.tolist()
            )
        self.rows: Int64 = np.flatnonzero((self.of_row >= 0) & (trace.category == Category.OPERATOR))
        self.own = self._own(trace)
        for column_of in (self.of_row, self.rows, self.own):
            column_of.setflags(write=False)

    def __getitem__(self, row: int) -> ShapedOperator | None:
        """None where the row has no shapes."""
        index = int(self.of_row[row])
        return self.operators[index] if index >= 0 else None

    def counted(self, rows: Int64 | None = None) -> Iterator[tuple[ShapedOperator, int]]:
        """Every distinct operator, with the number of its rows among `rows` (default: all)."""
        counts = np.bincount(self.of_row[self.rows if rows is None else rows], minlength=len(self.operators))
        return ((o, count) for o, count in zip(self.operators, counts.tolist(), strict=True) if count)

    def _own(self, trace: Trace) -> Int64:
        working = np.array([o.name == "aten::embedding" or factors(o) is not None for o in self.operators] or [False], bool)
        rows = self.rows[working[self.of_row[self.rows]]]
        order = rows[np.lexsort((-trace.duration[rows], trace.start[rows], trace.lane[rows]))]
        lane, start, end = trace.lane[order], trace.start[order], trace.start[order] + trace.duration[order]
        holds = np.append((lane[1:] == lane[:-1]) & (start[1:] < end[:-1]), False)[: len(order)]
        innermost: Int64 = order[~holds]
        return innermost[_launch(trace, innermost)]


def _launch(trace: Trace, rows: Int64) -> NDArray[np.bool_]:
    """Which of the operators in `rows` a kernel belongs to, or to an operator in them; all where no kernel has an operator."""
    kernels = unique(trace.external_id[trace.category == Category.KERNEL])
    launching = np.flatnonzero((trace.category == Category.OPERATOR) & (trace.external_id >= 0) & np.isin(trace.external_id, kernels))
    if not len(launching):
        return np.ones(len(rows), bool)
    holding = innermost(trace, rows, launching)
    return np.isin(rows, holding) | np.isin(trace.external_id[rows], kernels)


@once_a_trace
def shapes_of(trace: Trace) -> Shapes:
    """The operators of a trace, parsed once."""
    return Shapes(trace)


def _parse(trace: Trace, name: int, dims: int, types: int, multiplies: bool) -> ShapedOperator:
    values = json.loads(trace.strings[dims])
    kinds = list(map(str, json.loads(trace.strings[types]))) if types >= 0 else []
    kinds += [""] * (len(values) - len(kinds))
    inputs = [(shape, kind) for value, kind in zip(values, kinds, strict=False) for shape in _shapes(value)]
    shapes, dtypes = tuple(shape for shape, _ in inputs), tuple(kind for _, kind in inputs)
    return ShapedOperator(trace.strings[name], shapes, dtypes, multiplies)


def _shapes(value: object) -> list[Shape]:
    """The shapes of one input: one of a tensor, one for each tensor of a list."""
    if not isinstance(value, list) or all(isinstance(v, int) for v in value):
        return [tuple(value) if isinstance(value, list) else ()]
    return [tuple(v) if isinstance(v, list) and all(isinstance(x, int) for x in v) else () for v in value]


def multiplying(trace: Trace) -> frozenset[int]:
    """Names, as indices of the trace's strings, of the operators that launch a multiplication and are none of PyTorch's."""
    kernels = np.flatnonzero(trace.category == Category.KERNEL)
    names = unique(trace.name[kernels])
    products = names[[kernel_class(trace.strings[i]) is KernelClass.GEMM for i in names.tolist()]] if len(names) else names
    ids = unique(trace.external_id[kernels[np.isin(trace.name[kernels], products)]])
    operators = np.flatnonzero((trace.category == Category.OPERATOR) & (trace.external_id >= 0))
    launching = unique(trace.name[operators[np.isin(trace.external_id[operators], ids)]])
    return frozenset(i for i in launching.tolist() if not trace.strings[i].startswith("aten::"))


#: How the ranges begin that mark the steps of a recording.
_STEP = re.compile(r"ProfilerStep#\d+$")


class TraceProgram(NamedTuple):
    """The calls of a trace's operators, those of equal steps once. rows: of each call. copies: for each row of a step that is not run
    itself the row, and the call that it equals."""

    calls: tuple[OperatorCall, ...]
    rows: Int64
    copies: tuple[Int64, Int64]

    def number_of_row(self, rows: int) -> Int64:
        """For each of so many rows of the trace the call that it is, or equals; -1 for none."""
        out = np.full(rows, -1, np.int64)
        out[self.rows] = np.arange(len(self.rows))
        out[self.copies[0]] = self.copies[1]
        return out


class ShapedAxes(Shapes):
    """The operators of a trace whose inputs have shapes, by their axes as well: operators of one name and shape are several where their
    axes are others, and those of whose axes nothing is known are left out.

    axes: of the inputs of each of `operators`, as `ShapedOperator.shapes` has them.
    """

    def __init__(self, trace: Trace) -> None:
        shaped = shapes_of(trace)
        self.rows, self.own = shaped.rows, shaped.own
        self.program = program(trace)
        same = _RUN.get(self.program.calls)
        self.inferred: Axes = infer(self.program.calls) if same is None else same.inferred
        _RUN[self.program.calls] = self
        self.symbols = self.inferred.symbols
        kinds: dict[tuple[object, ...], int] = {}
        axes: list[tuple[tuple[Axis, ...], ...]] = []
        operators: list[ShapedOperator] = []
        of_call = np.full(len(self.program.calls), -1, np.int32)
        index, known = shaped.of_row[self.program.rows], shaped.operators
        for number in np.flatnonzero(index >= 0).tolist():
            input_axes = self._axes(number)
            key = (int(index[number]), *(tuple(map(self.symbols.key, one_input)) for one_input in input_axes))
            if key not in kinds:
                kinds[key] = len(kinds)
                axes.append(input_axes)
                operators.append(known[int(index[number])])
            of_call[number] = kinds[key]
        self.axes, self.operators = tuple(axes), tuple(operators)
        self.of_row = np.append(of_call, np.int32(-1))[self.program.number_of_row(len(trace))]
        self.rows, self.own = self.rows[self.of_row[self.rows] >= 0], self.own[self.of_row[self.own] >= 0]
        for column in (self.of_row, self.rows, self.own):
            column.setflags(write=False)

    def _axes(self, number: int) -> tuple[tuple[Axis, ...], ...]:
        """The axes of a call's inputs, one after the other; those of an input of which nothing is known are numbers."""
        out: list[tuple[Axis, ...]] = []
        for argument, several in enumerate(self.program.calls[number].inputs):
            known = self.inferred.of.get((number, argument))
            if known is not None and len(known) == len(several):
                out += known
            else:
                out += [tuple(Axis(size) for size in shape) for shape in several] or [()]
        return tuple(out)


#: The axes of programs, as long as somebody holds them: ranks mostly run the same one.
_RUN: WeakValueDictionary[tuple[OperatorCall, ...], ShapedAxes] = WeakValueDictionary()


@once_a_trace
def axes_of(trace: Trace) -> ShapedAxes:
    """The axes of a trace's operators, inferred once."""
    return ShapedAxes(trace)


def program(trace: Trace) -> TraceProgram:
    """The calls of a trace."""
    rows = np.flatnonzero(trace.category == Category.OPERATOR)
    rows = rows[np.lexsort((-trace.duration[rows], trace.start[rows]))]
    parent = callers(trace, rows)
    steps = _steps(trace, rows, parent)
    texts = [trace.dense(key) for key in ("Input Dims", "Concrete Inputs", "Input Strides")]
    columns = [*texts, autograd_numbers(trace), trace.dense("Fwd thread id")]
    by_value = trace.named(lambda name: own_name(name) in views())[rows]  # elsewhere a value that changes decides nothing
    text = [columns[0][rows], np.where(by_value, columns[1][rows], ABSENT)]
    kinds = numbered(trace.name[rows], *text)
    chosen: list[Int64] = []
    known: dict[bytes, int] = {}
    copies: list[tuple[Int64, int]] = []
    offset = 0
    position = np.empty(len(rows), np.int64)
    for members in steps:
        position[members] = np.arange(len(members))
        inner = np.where(parent[members] >= 0, position[parent[members]], -1)
        key = np.stack((kinds[members], inner)).tobytes()
        if key in known:
            copies.append((members, known[key]))
            continue
        known[key] = offset
        chosen.append(members)
        offset += len(members)
    order = np.concatenate(chosen) if chosen else np.empty(0, np.int64)
    number = np.full(len(rows), -1, np.int64)
    number[order] = np.arange(len(order))
    calls = tuple(
        _call(trace, int(rows[i]), int(number[parent[i]]) if parent[i] >= 0 else -1, columns) for i in order.tolist()
    )
    copied = np.concatenate([rows[members] for members, _ in copies]) if copies else np.empty(0, np.int64)
    of = np.concatenate([first + np.arange(len(members)) for members, first in copies]) if copies else np.empty(0, np.int64)
    return TraceProgram(calls, rows[order], (copied, of))


def _steps(trace: Trace, rows: Int64, parent: Int64) -> list[Int64]:
    """The positions in `rows` of each step, and of what is before the first mark; all in one without marks. A row in another one belongs to
    the step of that."""
    marks = np.sort(trace.start[np.flatnonzero((trace.category == Category.ANNOTATION) & trace.named(_STEP.match))])
    step = np.searchsorted(marks, trace.start[rows], "right")
    for i in np.flatnonzero((parent >= 0) & (step != step[parent])).tolist():
        step[i] = step[parent[i]]
    out = []
    for members in equal_rows(step):
        lanes, first = np.unique(trace.lane[rows[members]], return_index=True)
        began = np.empty(int(lanes.max(initial=0)) + 1, np.int64)
        began[lanes] = first
        out.append(members[np.argsort(began[trace.lane[rows[members]]], kind="stable")])
    return out


def _call(trace: Trace, row: int, parent: int, columns: Sequence[Int64]) -> OperatorCall:
    dims, values, strides, sequence, thread = (int(column[row]) for column in columns)
    nothing: tuple[tuple[tuple[Shape, ...], ...], frozenset[int]] = ((), frozenset())
    inputs, lists = _inputs(trace.strings[dims]) if dims != ABSENT else nothing
    texts = _texts(trace.strings[values]) if values != ABSENT else ()
    apart = _strides(trace.strings[strides]) if strides != ABSENT else ()
    return OperatorCall(trace.strings[trace.name[row]], inputs, lists, texts, parent, max(sequence, -1), thread in (ABSENT, 0), apart)


@cache
def _inputs(text: str) -> tuple[tuple[tuple[Shape, ...], ...], frozenset[int]]:
    """The shapes of the tensors in each argument, and which arguments are lists of tensors."""
    out: list[tuple[Shape, ...]] = []
    lists = set()
    for argument, value in enumerate(json.loads(text)):
        if isinstance(value, list) and value and isinstance(value[0], list):
            lists.add(argument)
            out.append(tuple(tuple(x for x in shape if isinstance(x, int)) for shape in value))
        else:
            out.append((tuple(value),) if isinstance(value, list) and value else ())
    return tuple(out), frozenset(lists)


@cache
def _strides(text: str) -> tuple[Shape, ...]:
    """The strides of each argument that is a tensor; () of any other."""
    strides = (value if isinstance(value, list) and all(type(x) is int for x in value) else () for value in json.loads(text))
    return tuple(map(tuple, strides))


@cache
def _texts(text: str) -> tuple[str, ...]:
    return tuple(map(str, json.loads(text)))
