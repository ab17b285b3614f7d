"""The arguments of an operator as a profiler writes them: shapes, types, strides and values of its inputs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from lumos.emulation.record import Tensor
from lumos.vocabulary import DType

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lumos.emulation.record import Argument, Operator

#: The types of C++ that a profiler names, by torch's name of the type of an element.
_CPP = {
    "float16": "c10::Half",
    "bfloat16": "c10::BFloat16",
    "float32": "float",
    "float64": "double",
    "int8": "signed char",
    "uint8": "unsigned char",
    "int16": "short int",
    "int32": "int",
    "int64": "long int",
    "bool": "bool",
    "complex64": "c10::complex<float>",
    "complex128": "c10::complex<double>",
    "float8_e4m3fn": "c10::Float8_e4m3fn",
    "float8_e5m2": "c10::Float8_e5m2",
}
#: The types of tensors as the arguments of collectives name them.
_SCALAR_TYPES = {
    "float16": "Half",
    "bfloat16": "BFloat16",
    "float32": "Float",
    "float64": "Double",
    "int8": "Char",
    "uint8": "Byte",
    "int16": "Short",
    "int32": "Int",
    "int64": "Long",
    "bool": "Bool",
}


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
    return _SCALAR_TYPES.get(dtype if known is None else known.torch_name, "Byte")


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
