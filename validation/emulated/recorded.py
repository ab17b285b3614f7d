"""The operators of a recording as an emulated run would have them, each with the time of the device work that it launched."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from lumos.cost.operators import device_work_of
from lumos.emulation.record import Argument, Operator, Tensor
from lumos.trace.table import Category

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lumos.trace.table import Trace

#: The size of an element in the names of kernels that join tensors, and a type of that size.
_JOINED = re.compile(r"CatArrayBatchedCopy.*OpaqueType<(\d+)u>")
_TYPES = {1: "bool", 2: "bfloat16", 4: "float32", 8: "int64"}
_KEYS = ("Input Dims", "Input type", "Input Strides", "Concrete Inputs")


class Measured(NamedTuple):
    """An operator with shapes, and the ns of its device work."""

    operator: Operator
    ns: int


def measured_operators(trace: Trace) -> Iterator[Measured]:
    """Every operator with shapes around a launch. A recording has no results, nor the types of tensors in lists, which the name of a kernel
    that joins them tells, and some recordings have no shapes of such tensors: an operator that lacks either is left out."""
    dims = trace.args["Input Dims"]
    rows = dims.rows[trace.category[dims.rows] == Category.OPERATOR].astype(np.int64)
    columns = {key: trace.dense(key) for key in _KEYS}
    spent: dict[int, int] = defaultdict(int)
    joined: dict[int, str] = {}
    for work, row in device_work_of(trace, rows):
        spent[row] += int(trace.duration[work])
        if found := _JOINED.search(trace.strings[trace.name[work]]):
            joined[row] = _TYPES[int(found[1])]
    for row, ns in spent.items():
        values = [
            json.loads(trace.strings[column[row]].replace("inf", "Infinity")) if column[row] >= 0 else [] for column in columns.values()
        ]
        if all(shape and row in joined for shape, kind in zip(values[0], values[1], strict=False) if kind == "TensorList"):
            inputs = _inputs(*values, joined.get(row, ""))
            yield Measured(Operator(name=trace.strings[trace.name[row]], thread=0, begin=0, end=0, inputs=inputs, leaf=True), ns)


def _inputs(dims: list[Any], types: list[str], strides: list[Any], concrete: list[str], joined: str) -> list[Argument]:
    out: list[Argument] = []
    for i, (shape, kind) in enumerate(zip(dims, types, strict=False)):
        step = strides[i] if i < len(strides) else []
        if kind in ("", "Scalar", "ScalarList"):
            out.append(_value(concrete[i] if i < len(concrete) else ""))
        elif shape and isinstance(shape[0], list):
            steps = [tuple(step) if isinstance(step, list) else () for step in step] or [()] * len(shape)
            out.append([Tensor(tuple(one), joined, each, -1, "cuda") for one, each in zip(shape, steps, strict=True)])
        else:
            out.append(Tensor(tuple(shape), kind, tuple(step) if len(step) == len(shape) else (), -2 - i, "cuda"))
    return out


def _value(text: str) -> Argument:
    if text in ("True", "False"):
        return text == "True"
    try:
        return json.loads(text.replace("True", "true").replace("False", "false")) if text else None
    except ValueError:
        return float(text) if text.rstrip(".").replace(".", "").isdigit() else text
