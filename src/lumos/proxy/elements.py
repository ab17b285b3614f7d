"""Element types: the names that profilers print for them, as torch's own names and sizes."""

from __future__ import annotations

from lumos.vocabulary import DType

#: Bytes of an element by torch name.
BYTES = {dtype.torch_name: dtype.bytes for dtype in DType}

#: Types whose values can be an index, by torch name.
INTEGERS = frozenset(dtype.torch_name for dtype in DType if dtype.is_integer)


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
