"""The arguments of a profiled operator, as the profiler printed them: shapes, types, strides and plain values."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lumos.vocabulary import DType

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lumos.trace.table import Trace

#: Bytes of an element by torch name.
BYTES = {dtype.torch_name: dtype.bytes for dtype in DType}

#: Types whose values can be an index, by torch name.
INTEGERS = frozenset(dtype.torch_name for dtype in DType if dtype.is_integer)

_INTEGER = re.compile(r"-?[0-9]{1,18}\Z")
_FLOAT = re.compile(r"-?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?\Z")


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """What is known about a tensor argument. dtype: torch's name. strides: in elements."""

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def read_arguments(types: str, dims: str, strides: str | None, concrete: str | None) -> list[Any] | None:
    """The arguments of one operator from the texts of its row: each a `TensorSpec`, a list of these, or a plain value.

    None is an argument that is absent or whose value was not printed; the texts do not distinguish the two. None for all where the texts
    contradict each other or do not describe a tensor.
    """
    try:
        kinds, shapes = json.loads(types), json.loads(dims)
        steps = json.loads(strides) if strides else [None] * len(kinds)
        values = json.loads(concrete) if concrete else [""] * len(kinds)
        columns = (kinds, shapes, steps, values)
        if not all(isinstance(column, list) for column in columns) or not all(isinstance(kind, str) for kind in kinds):
            return None
        return [_argument(*one) for one in zip(*columns, strict=True)]
    except (ValueError, TypeError):  # no JSON, a number in place of a list, other numbers of them, or shapes that are none
        return None


def _argument(kind: str, shape: Any, steps: Any, value: Any) -> Any:
    if kind == "TensorList":
        return _tensor_list(shape, steps)
    if kind in ("Scalar", "ScalarList", ""):
        return plain_value(value)
    dtype = torch_name(kind)
    return None if dtype is None else _tensor(dtype, shape, steps)


def _tensor(dtype: str, shape: Any, steps: Any) -> TensorSpec:
    if not is_sizes(shape):
        raise ValueError("a tensor's shape is not a list of sizes")
    sizes = tuple(shape)
    known = is_sizes(steps) and len(steps) == len(shape)
    return TensorSpec(dtype, sizes, tuple(steps) if known else contiguous(sizes))


def _tensor_list(shape: Any, steps: Any) -> list[TensorSpec]:
    """The profiler prints a list's shapes and strides but not its types. float32 is taken, because most such lists have it."""
    if not isinstance(shape, list) or not shape:
        raise ValueError("the tensors of a list were not recorded")
    strides = steps if isinstance(steps, list) and len(steps) == len(shape) else [None] * len(shape)
    return [_tensor("float32", one, step) for one, step in zip(shape, strides, strict=True)]


def is_sizes(value: Any) -> bool:
    """Whether a value is a list of sizes."""
    return isinstance(value, list) and all(isinstance(size, int) and size >= 0 for size in value)


def plain_value(text: Any) -> Any:
    """A plain argument from its printed form: a bool, int, float, list of these, or text; None where nothing was printed.

    Numbers that JSON cannot represent become {"float": text}.
    """
    if not isinstance(text, str):
        return text
    text = text.strip()
    if text in ("", "None"):
        return None
    if text in ("True", "False"):
        return text == "True"
    if _INTEGER.match(text):
        return int(text)
    if _FLOAT.match(text) or text.lower().lstrip("-") in ("inf", "nan"):
        number = float(text)
        return number if math.isfinite(number) else {"float": str(number)}
    if text.startswith("[") and text.endswith("]"):
        return [plain_value(item) for item in text[1:-1].split(",")] if text[1:-1].strip() else []
    return text


def map_tensors(arguments: list[Any], replacement: Callable[[int, TensorSpec], Any]) -> list[Any]:
    """The arguments with every tensor replaced by replacement(position, tensor), also inside lists."""

    def one(position: int, argument: Any) -> Any:
        if isinstance(argument, TensorSpec):
            return replacement(position, argument)
        if isinstance(argument, list):
            return [one(position, item) for item in argument]
        return argument

    return [one(position, argument) for position, argument in enumerate(arguments)]


def recorded_arguments(trace: Trace, key: Sequence[int]) -> list[Any] | None:
    """The arguments of an operator, None where they are unknown. key: types, shapes, strides and plain values, as indices of strings."""
    types, dims, strides, concrete = (trace.strings[i] if i >= 0 else None for i in key)
    return None if types is None or dims is None else read_arguments(types, dims, strides, concrete)


def torch_name(printed: str) -> str | None:
    """torch's name of an element type as a profiler printed it; None where it is not an element type."""
    dtype = DType.parse(printed)
    return None if dtype is None else dtype.torch_name


def contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Row-major strides of a shape, in elements."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def extent(shape: tuple[int, ...], strides: tuple[int, ...]) -> int:
    """Number of elements of memory from the first to the last element of a strided view; 0 where it has no elements."""
    if 0 in shape:
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
