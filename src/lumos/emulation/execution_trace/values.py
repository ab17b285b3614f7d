"""Arguments and results of operators as torch's profiler and its execution trace observer write them: values, shapes, types, strides.

To the observer, a tensor's value is its id, the id of its storage, the offset of its first element, its elements, bytes of an element and
device. Types of elements, layouts and memory formats are the numbers of torch's enumerations.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from lumos.emulation.device.launch import width
from lumos.emulation.record import Tensor
from lumos.vocabulary import DType

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from lumos.emulation.record import Argument, Operator

#: torch's names in the order of the numbers that they have in c10::ScalarType, c10::Layout and c10::MemoryFormat of torch 2.13.
_SCALAR_TYPES = (
    "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64", "complex32", "complex64", "complex128", "bool", "qint8",
    "quint8", "qint32", "bfloat16", "quint4x2", "quint2x4", "bits1x8", "bits2x4", "bits4x2", "bits8", "bits16", "float8_e5m2",
    "float8_e4m3fn", "float8_e5m2fnuz", "float8_e4m3fnuz", "uint16", "uint32", "uint64",
)  # fmt: skip
_LAYOUTS = ("strided", "sparse_coo", "sparse_csr", "_mkldnn", "sparse_csc", "sparse_bsr", "sparse_bsc", "jagged")
_FORMATS = ("contiguous_format", "preserve_format", "channels_last", "channels_last_3d")
_NUMBERS = {f"torch.{name}": place for names in (_SCALAR_TYPES, _LAYOUTS, _FORMATS) for place, name in enumerate(names)}

_DEVICE = re.compile(r"(cpu|cuda|meta)(:\d+)?")
#: What a value is where the record keeps none of it.
_NOTHING = "<None>"


class WrittenValue(NamedTuple):
    """One argument in the four forms in which the observer writes it."""

    value: Any
    shape: Any
    type: str
    stride: Any


class TensorIds:
    """Gives every tensor and every storage of a process an id. Two tensors are the same where they show the same part of a storage in the
    same way. first: the first id that is free."""

    def __init__(self, first: int) -> None:
        self._next = first
        self._tensors: dict[Tensor, int] = {}
        self._storages: dict[int, int] = {}

    def written(self, arguments: Iterable[Argument]) -> dict[str, Any]:
        """The object that a node has for its inputs or outputs."""
        each = [self._one(argument) for argument in arguments]
        return {
            "values": [one.value for one in each],
            "shapes": [one.shape for one in each],
            "types": [one.type for one in each],
            "strides": [one.stride for one in each],
        }

    def _one(self, argument: Argument) -> WrittenValue:
        if isinstance(argument, Tensor):
            return self._tensor(argument)
        if isinstance(argument, list):
            inner = [self._one(one) for one in argument]
            types = f"GenericList[{','.join(one.type for one in inner)}]"
            return WrittenValue([one.value for one in inner], [one.shape for one in inner], types, [one.stride for one in inner])
        return WrittenValue(*_plain(argument))

    def _tensor(self, tensor: Tensor) -> WrittenValue:
        storage = self._id(self._storages, tensor.storage)
        count = math.prod(tensor.shape)
        value = [self._id(self._tensors, tensor), storage, tensor.offset, count, width(tensor.dtype), _device(tensor.device)]
        return WrittenValue(value, tensor.shape, f"Tensor({cpp_type(tensor.dtype)})", tensor.stride)

    def _id(self, known: dict[Any, int], key: Any) -> int:
        if key not in known:
            known[key] = self._next
            self._next += 1
        return known[key]


def _device(kind: str) -> str:
    """A device with its number: a process has one accelerator, and calls it 0."""
    return "cuda:0" if kind == "cuda" else kind


def _plain(value: bool | float | str | None) -> tuple[Any, list[Any], str, list[Any]]:
    """The forms of an argument that is neither a tensor nor a list."""
    if value is None:
        return _NOTHING, [], "None", []
    if isinstance(value, bool):
        return value, [], "Bool", []
    if isinstance(value, int):
        return value, [], "Int", []
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value), [], "Double", []
    if value in _NUMBERS:
        return _NUMBERS[value], [], "Int", []
    if _DEVICE.fullmatch(value):
        return _device(value), [], "Device", []
    return ("<Object>", [], "Object", []) if value.startswith("<") else (value, [], "String", [])


#: The types of C++ that a profiler names, by torch's name of the type of an element.
_CPP = {
    "float16": "c10::Half", "bfloat16": "c10::BFloat16", "float32": "float", "float64": "double", "int8": "signed char",
    "uint8": "unsigned char", "int16": "short int", "int32": "int", "int64": "long int", "bool": "bool",
    "complex64": "c10::complex<float>", "complex128": "c10::complex<double>", "float8_e4m3fn": "c10::Float8_e4m3fn",
    "float8_e5m2": "c10::Float8_e5m2",
}  # fmt: skip
#: The types of tensors as the arguments of collectives name them.
_WORDS = {
    "float16": "Half", "bfloat16": "BFloat16", "float32": "Float", "float64": "Double", "int8": "Char", "uint8": "Byte",
    "int16": "Short", "int32": "Int", "int64": "Long", "bool": "Bool",
}  # fmt: skip


def cpp_type(dtype: str) -> str:
    """A type as the profiler and the execution trace name it, by its name in torch."""
    return _CPP.get(dtype, dtype)


def operator_arguments(operator: Operator, number: int) -> str:
    """The members of the JSON object of an operator's row. number: of the row, which device work and the execution trace refer to."""
    inputs = operator.inputs
    out: dict[str, Any] = {"External id": number, "Record function id": number}
    if operator.sequence >= 0:
        out["Sequence number"] = operator.sequence
        out["Fwd thread id"] = max(0, operator.forward_thread)
    if inputs:
        out["Concrete Inputs"] = [_value(argument) for argument in inputs]
        out["Input type"] = [_type(argument) for argument in inputs]
        out["Input Strides"] = [_layout(argument, "stride") for argument in inputs]
        out["Input Dims"] = [_layout(argument, "shape") for argument in inputs]
    out["Ev Idx"] = number
    return msgspec.json.encode(out).decode()[1:-1]


def type_word(dtype: str) -> str:
    """A type as the arguments of collectives name it; "Byte" for one that they have no name for."""
    known = DType.parse(dtype)
    return _WORDS.get(dtype if known is None else known.torch_name, "Byte")


def _tensors(argument: Argument) -> Sequence[Tensor]:
    """The tensors of a list of tensors; none for anything else."""
    if not isinstance(argument, list):
        return ()
    found = [entry for entry in argument if isinstance(entry, Tensor)]
    return found if len(found) == len(argument) else ()


def _layout(argument: Argument, what: str) -> list[Any]:
    if isinstance(argument, Tensor):
        return list(getattr(argument, what))
    return [list(getattr(tensor, what)) for tensor in _tensors(argument)]


def _type(argument: Argument) -> str:
    if isinstance(argument, Tensor):
        return cpp_type(argument.dtype)
    if _tensors(argument):
        return "TensorList"
    if isinstance(argument, list):
        return "ScalarList"
    return "" if argument is None else "Scalar"


def _value(argument: Argument) -> str:
    if argument is None or isinstance(argument, Tensor) or _tensors(argument):
        return ""
    if isinstance(argument, list):
        return f"[{', '.join(map(_value, argument))}]"
    return str(argument)
