"""The operators of a trace: name, input shapes and dtypes, and the time of the work of each.

Device work belongs to the innermost operator with shapes (record_shapes=True) around its launch call, so that it counts for one
operator only, the one closest to the kernel. In a trace without device work, an operator's work is its own time: its duration
without the operators inside it.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.graph.places import innermost
from lumos.operators.shaped import has_causal_mask, is_attention
from lumos.trace.nesting import callers
from lumos.trace.table import ABSENT, DEVICE_WORK, Category, Int64, Trace

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lumos.operators.table import Shape


class OperatorTime(NamedTuple):
    """One call of an operator. shapes, dtypes: of its inputs; () and "" for an input that is not a tensor. work_ns: the time of
    its kernels, or its own time on the CPU. kernels: how many there are (1 on the CPU). causal: whether it is an attention whose call says
    that no query sees a later key."""

    name: str
    shapes: tuple[Shape, ...]
    dtypes: tuple[str, ...]
    work_ns: int
    kernels: int
    causal: bool = False


def operator_times(trace: Trace) -> tuple[OperatorTime, ...]:
    """Every operator with shapes that did work, in file order; copies between memories do not count as work.

    Empty where the trace has no shapes.
    """
    dims, types, values = trace.args.get("Input Dims"), trace.dense("Input type"), trace.dense("Concrete Inputs")
    if dims is None:
        return ()
    chosen = trace.category[dims.rows] == Category.OPERATOR
    rows = dims.rows[chosen].astype(np.int64)
    text_of = dict(zip(rows.tolist(), dims.values[chosen].tolist(), strict=True))
    work = np.flatnonzero(trace.is_any(Category.KERNEL))
    if len(work):
        operator = launched_by(trace, work, rows)
        linked = operator >= 0
        spent = np.bincount(operator[linked], trace.duration[work[linked]], minlength=len(trace))
        count = np.bincount(operator[linked], minlength=len(trace))
    else:
        spent, count = _own_times(trace, rows)
    out = []
    for row in np.flatnonzero(count).tolist():
        shapes = _shapes(trace.strings[text_of[row]])
        names = tuple(map(str, json.loads(trace.strings[int(types[row])]))) if types[row] >= 0 else ()
        names += ("",) * (len(shapes) - len(names))
        name = trace.strings[trace.name[row]]
        causal = is_attention(name) and values[row] >= 0 and has_causal_mask(name, json.loads(trace.strings[int(values[row])]))
        out.append(OperatorTime(name, shapes, names[: len(shapes)], int(spent[row]), int(count[row]), bool(causal)))
    return tuple(out)


def device_work_of(trace: Trace, operators: Int64) -> Iterator[tuple[int, int]]:
    """The rows of device work, copies included, that belong to one of `operators` (rows), each with the row of its operator."""
    work = np.flatnonzero(trace.is_any(*DEVICE_WORK))
    pairs = zip(work.tolist(), launched_by(trace, work, operators).tolist(), strict=True)
    return ((row, operator) for row, operator in pairs if operator >= 0)


def launched_by(trace: Trace, work: Int64, operators: Int64) -> Int64:
    """The operator of each row of device work: the innermost around its launch call, else that of its external id; -1 for none, and for
    other rows."""
    launches = np.flatnonzero(trace.is_any(Category.RUNTIME) & (trace.correlation != ABSENT))
    by_correlation = dict(zip(trace.correlation[launches].tolist(), launches.tolist(), strict=True))
    calls = np.array([by_correlation.get(c, -1) for c in trace.correlation[work].tolist()], np.int64)
    operator = np.full(len(work), -1, np.int64)
    on_device = np.isin(trace.category[work], DEVICE_WORK)
    known = on_device & (calls >= 0)
    operator[known] = innermost(trace, operators, calls[known])
    ids = trace.external_id[operators]
    by_id = dict(zip(ids[ids != ABSENT].tolist(), operators[ids != ABSENT].tolist(), strict=True))
    for i in np.flatnonzero(on_device & (operator < 0)).tolist():
        operator[i] = by_id.get(int(trace.external_id[work[i]]), -1)
    return operator


def _own_times(trace: Trace, operators: Int64) -> tuple[Int64, Int64]:
    """Two arrays over all rows of the trace: the duration of each operator without the operators inside it, and 1 for each row of
    `operators`."""
    spent, count = np.zeros(len(trace), np.int64), np.zeros(len(trace), np.int64)
    inside = np.flatnonzero(trace.is_any(Category.OPERATOR))
    caller = callers(trace, inside)
    np.add.at(spent, inside, trace.duration[inside])
    np.subtract.at(spent, inside[caller[caller >= 0]], trace.duration[inside[caller >= 0]])
    count[operators] = 1
    return spent, count


def _shapes(text: str) -> tuple[Shape, ...]:
    """Input shapes; a list of tensors contributes the shape of each."""
    out: list[Shape] = []
    for entry in json.loads(text):
        nested = [e for e in entry if isinstance(e, list)]
        out += [tuple(e) for e in nested] if nested else [tuple(entry)]
    return tuple(out)
