"""The operators of a recording as an emulated run would have them, each with the time of the device work that it launched."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from lumos.cost.operators import device_work_of
from lumos.emulate.record import Argument, Operator, Tensor
from lumos.trace.table import Category

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lumos.trace.table import Trace

_KEYS = ("Input Dims", "Input type", "Input Strides", "Concrete Inputs")


class Measured(NamedTuple):
    """An operator with shapes, and the ns of its device work."""

    operator: Operator
    ns: int


def measured_operators(trace: Trace) -> Iterator[Measured]:
    """Every operator with shapes around a launch. A recording has no results, and lists of tensors without their shapes: such an
    operator is left out."""
    dims = trace.args["Input Dims"]
    rows = dims.rows[trace.category[dims.rows] == Category.OPERATOR].astype(np.int64)
    columns = {key: trace.dense(key) for key in _KEYS}
    spent: dict[int, int] = defaultdict(int)
    for work, row in device_work_of(trace, rows):
        spent[row] += int(trace.duration[work])
    for row, ns in spent.items():
        values = [
            json.loads(trace.strings[column[row]].replace("inf", "Infinity")) if column[row] >= 0 else [] for column in columns.values()
        ]
        if "TensorList" not in values[1] or all(values[0]):
            yield Measured(Operator(name=trace.strings[trace.name[row]], thread=0, begin=0, end=0, inputs=_inputs(*values), leaf=True), ns)


def _inputs(dims: list[Any], types: list[str], strides: list[Any], concrete: list[str]) -> list[Argument]:
    out: list[Argument] = []
    for i, (shape, kind) in enumerate(zip(dims, types, strict=False)):
        step = strides[i] if i < len(strides) else []
        if kind in ("", "Scalar", "ScalarList"):
            out.append(_value(concrete[i] if i < len(concrete) else ""))
        elif shape and isinstance(shape[0], list):
            out.append([Tensor(tuple(one), "float32", (), -1, "cuda") for one in shape])
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
