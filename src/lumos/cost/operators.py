"""What the operators of a trace did: name, input shapes and dtypes, and the time of the device work launched from each.

Device work belongs to the innermost operator around its launch call among those that carry shapes (record_shapes=True),
so an operator's work is counted once, by the operator closest to the kernel.
"""

from __future__ import annotations

import json
import math
from typing import NamedTuple

import numpy as np

from lumos.analyze.attribution import innermost
from lumos.trace.table import ABSENT, Category, Int64, Trace

Shape = tuple[int, ...]


class OperatorTime(NamedTuple):
    """One operator call. shapes and dtypes: of its inputs, () and "" where an input is no tensor; device_ns: its work."""

    name: str
    shapes: tuple[Shape, ...]
    dtypes: tuple[str, ...]
    device_ns: int
    kernels: int


def operator_times(trace: Trace) -> tuple[OperatorTime, ...]:
    """Every operator with shapes that launched kernels (copies between memories apart), in file order.

    Empty where the trace has no shapes.
    """
    dims, types = trace.args.get("Input Dims"), trace.dense("Input type")
    if dims is None:
        return ()
    chosen = trace.category[dims.rows] == Category.OPERATOR
    rows = dims.rows[chosen].astype(np.int64)
    text_of = dict(zip(rows.tolist(), dims.values[chosen].tolist(), strict=True))
    work = np.flatnonzero(trace.is_any(Category.KERNEL))
    owner = _owners(trace, work, rows)
    linked = owner >= 0
    spent = np.bincount(owner[linked], trace.duration[work[linked]], minlength=len(trace))
    count = np.bincount(owner[linked], minlength=len(trace))
    found = []
    for row in np.flatnonzero(count).tolist():
        shapes = _shapes(trace.strings[text_of[row]])
        names = tuple(map(str, json.loads(trace.strings[int(types[row])]))) if types[row] >= 0 else ()
        names += ("",) * (len(shapes) - len(names))
        found.append(OperatorTime(trace.strings[trace.name[row]], shapes, names[: len(shapes)], int(spent[row]), int(count[row])))
    return tuple(found)


def _owners(trace: Trace, work: Int64, operators: Int64) -> Int64:
    """The operator of each piece of device work: by its launch call's place, else by external id; -1 where neither."""
    launches = np.flatnonzero(trace.is_any(Category.RUNTIME) & (trace.correlation != ABSENT))
    by_correlation = dict(zip(trace.correlation[launches].tolist(), launches.tolist(), strict=True))
    calls = np.array([by_correlation.get(c, -1) for c in trace.correlation[work].tolist()], np.int64)
    owner = np.full(len(work), -1, np.int64)
    known = calls >= 0
    owner[known] = innermost(trace, operators, calls[known])
    ids = trace.external_id[operators]
    by_id = dict(zip(ids[ids != ABSENT].tolist(), operators[ids != ABSENT].tolist(), strict=True))
    for i in np.flatnonzero(owner < 0).tolist():
        owner[i] = by_id.get(int(trace.external_id[work[i]]), -1)
    return owner


def _shapes(text: str) -> tuple[Shape, ...]:
    """Input shapes; a list of tensors contributes its members."""
    out: list[Shape] = []
    for entry in json.loads(text):
        nested = [e for e in entry if isinstance(e, list)]
        out += [tuple(e) for e in nested] if nested else [tuple(entry)]
    return tuple(out)


def elements(shape: Shape) -> int:
    """Elements of a tensor of that shape."""
    return math.prod(shape)
