"""Arguments of some rows: text, integers, and the bytes of inputs."""

import json
import re
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from lumos.trace.table import ABSENT, Int32, Int64, Trace
from lumos.vocabulary import DType

#: The arguments that hold the shapes and the types of a row's inputs.
SHAPES = ("Input Dims", "Input type")


def shape_bytes(trace: Trace, row: int) -> int:
    """Bytes of a row's first input, from its shapes and types; ABSENT where the trace has none, or it is no tensor."""
    first = _tensor(trace, row)
    return first.elements * first.dtype.bytes if first.place == 0 and first.elements != ABSENT else ABSENT


def shape_elements(trace: Trace, row: int) -> int:
    """Elements of a row's first input that is a tensor or a list of tensors, from its shapes and types; ABSENT where it has none."""
    return _tensor(trace, row).elements


class _Tensor(NamedTuple):
    """The first input that is a tensor or a list of tensors. place: among the inputs. elements: ABSENT where its shape does not say."""

    place: int = ABSENT
    elements: int = ABSENT
    dtype: DType = DType.FP32  # that of a list is not recorded


def _tensor(trace: Trace, row: int) -> _Tensor:
    dims, types = (text(trace, row, key) for key in SHAPES)
    return _Tensor() if dims is None or types is None else _first_tensor(dims, types)


@lru_cache(maxsize=4096)  # a job repeats the same few shapes in every step
def _first_tensor(dims: str, types: str) -> _Tensor:
    for position, (shape, name) in enumerate(zip(json.loads(dims), json.loads(types), strict=False)):
        dtype = DType.FP32 if name == "TensorList" else DType.parse(str(name))
        if dtype is not None:
            tensors = shape if shape and isinstance(shape[0], list) else [shape]
            whole = all(isinstance(size, int) for one in tensors for size in one)
            return _Tensor(position, sum(int(np.prod(one, dtype=np.int64)) for one in tensors) if whole else ABSENT, dtype)
    return _Tensor()


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
