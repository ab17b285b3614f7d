"""Element types: the names that profilers print for them, as torch's own names and sizes."""

from __future__ import annotations

#: Printed name (Kineto's `Input type`, an execution trace's `Tensor(…)`, a collective's `dtype`) -> torch name.
TORCH_NAME = {
    "float": "float32", "double": "float64", "int": "int32", "long int": "int64", "long": "int64", "bool": "bool",
    "c10::half": "float16", "half": "float16", "c10::bfloat16": "bfloat16", "bfloat16": "bfloat16",
    "unsigned char": "uint8", "byte": "uint8", "signed char": "int8", "char": "int8", "short int": "int16", "short": "int16",
    "c10::complex<float>": "complex64", "c10::complex<double>": "complex128",
    "c10::float8_e4m3fn": "float8_e4m3fn", "c10::float8_e5m2": "float8_e5m2", "float8_e4m3fn": "float8_e4m3fn",
    "float8_e5m2": "float8_e5m2", "c10::float8_e4m3fnuz": "float8_e4m3fnuz", "c10::float8_e5m2fnuz": "float8_e5m2fnuz",
    "unsigned short": "uint16", "unsigned int": "uint32", "unsigned long": "uint64",
    "float16": "float16", "float32": "float32", "float64": "float64", "int8": "int8", "uint8": "uint8", "int16": "int16",
    "int32": "int32", "int64": "int64",
}  # fmt: skip

#: Bytes of an element by torch name.
BYTES = {
    "float32": 4, "float64": 8, "int32": 4, "int64": 8, "bool": 1, "float16": 2, "bfloat16": 2, "uint8": 1, "int8": 1, "int16": 2,
    "complex64": 8, "complex128": 16, "float8_e4m3fn": 1, "float8_e5m2": 1, "float8_e4m3fnuz": 1, "float8_e5m2fnuz": 1,
    "uint16": 2, "uint32": 4, "uint64": 8,
}  # fmt: skip

#: Types whose values can be an index.
INTEGERS = frozenset({"int64", "int32", "int16", "int8", "uint8", "uint16", "uint32", "uint64"})


def torch_name(printed: str) -> str | None:
    """torch's name of an element type as a profiler printed it; None where it is none."""
    return TORCH_NAME.get(printed.strip().lower())


def contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Row-major strides of a shape, in elements."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def extent(shape: tuple[int, ...], strides: tuple[int, ...]) -> int:
    """Elements from the first to the last that a strided view touches; 0 where it has none."""
    if 0 in shape:
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
