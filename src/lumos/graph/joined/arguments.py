"""Arguments of single rows: text, integers, and the bytes of inputs."""

from __future__ import annotations

import json
import re
from functools import lru_cache

import numpy as np

from lumos.trace.table import ABSENT, Trace
from lumos.vocabulary import DType


def shape_bytes(trace: Trace, row: int) -> int:
    """Bytes of a row's first input, from its shapes and types; ABSENT where the trace has none."""
    dims, types = text(trace, row, "Input Dims"), text(trace, row, "Input type")
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


def integer(trace: Trace, row: int, key: str) -> int:
    """Argument `key` of a row as a whole number; ABSENT where the row lacks it or has none."""
    value = text(trace, row, key)
    return int(value) if value is not None and re.fullmatch(r"-?\d{1,18}", value) else ABSENT


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
