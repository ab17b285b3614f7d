"""The operators of a trace with the shapes of their inputs, each distinct one once."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np

from lumos.graph.kernel_names import KernelClass, kernel_class
from lumos.graph.places import innermost
from lumos.operators.shaped import ShapedOperator, factors
from lumos.trace.once import once_a_trace
from lumos.trace.table import Category, Int64, Trace, unique

if TYPE_CHECKING:
    from collections.abc import Iterator

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
