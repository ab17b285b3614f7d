"""Arguments of some rows: text, integers, and the bytes of inputs."""

from __future__ import annotations

import json
import re
from functools import lru_cache

import numpy as np

from lumos.trace.table import ABSENT, Int32, Int64, Trace
from lumos.vocabulary import DType

#: The arguments that hold the shapes and the types of a row's inputs.
SHAPES = ("Input Dims", "Input type")


def shape_bytes(trace: Trace, row: int) -> int:
    """Bytes of a row's first input, from its shapes and types; ABSENT where the trace has none."""
    dims, types = (text(trace, row, key) for key in SHAPES)
    return ABSENT if dims is None or types is None else _first_input_bytes(dims, types)


@lru_cache(maxsize=4096)  # a job repeats the same few shapes in every step
def _first_input_bytes(dims: str, types: str) -> int:
    """Bytes of the first of the inputs with these shapes and types, both as JSON; ABSENT where they do not say."""
    shapes, names = json.loads(dims), json.loads(types)
    if not shapes or not names:
        return ABSENT
    first = shapes[0] if shapes[0] and isinstance(shapes[0][0], list) else [shapes[0]]  # a list of tensors, or one
    dtype = DType.FP32 if names[0] == "TensorList" else DType.parse(str(names[0]))  # a list's element type is not recorded
    if dtype is None or not all(isinstance(d, int) for shape in first for d in shape):
        return ABSENT
    return sum(int(np.prod(shape, dtype=np.int64)) for shape in first) * dtype.bytes


def shape_elements(trace: Trace, row: int) -> int:
    """Elements of a row's first input that is a tensor or a list of tensors, from its shapes and types; ABSENT where it has none."""
    dims, types = (text(trace, row, key) for key in SHAPES)
    return ABSENT if dims is None or types is None else _first_tensor_elements(dims, types)


@lru_cache(maxsize=4096)
def _first_tensor_elements(dims: str, types: str) -> int:
    for shape, name in zip(json.loads(dims), json.loads(types), strict=False):
        tensors = shape if shape and isinstance(shape[0], list) else [shape]
        if name == "TensorList" or DType.parse(str(name)) is not None:
            whole = all(isinstance(size, int) for one in tensors for size in one)
            return sum(int(np.prod(one, dtype=np.int64)) for one in tensors) if whole else ABSENT
    return ABSENT


def integer(trace: Trace, row: int, key: str) -> int:
    """Argument `key` of a row as a whole number; ABSENT where the row lacks it or has none."""
    value = text(trace, row, key)
    return int(value) if value is not None and re.fullmatch(r"-?\d{1,18}", value) else ABSENT


def column_of(trace: Trace, rows: Int32 | Int64, key: str) -> Int64:
    """Argument `key` of each row, int64[rows], as its column holds it; ABSENT where the row lacks it."""
    out = np.full(len(rows), ABSENT, np.int64)
    column = trace.args.get(key)
    if column is not None and len(column.rows):
        at = np.minimum(np.searchsorted(column.rows, rows.astype(np.int32)), len(column.rows) - 1)
        there = column.rows[at] == rows
        out[there] = column.values[at[there]]
    return out


def text(trace: Trace, row: int, key: str) -> str | None:
    """Argument `key` of a row as text; None where the row lacks it."""
    column = trace.args.get(key)
    if column is None:
        return None
    at = int(column.rows.searchsorted(np.int32(row)))  # a plain int would convert the whole column at every call
    if at >= len(column.rows) or column.rows[at] != row:
        return None
    value = int(column.values[at])
    return trace.strings[value] if column.kind == "string" else str(value)
