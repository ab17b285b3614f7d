"""A piece of device work that an operator launches, and the memory that an operator's tensors take.

Bytes are those in memory: an expanded dimension (stride 0) counts once, and a view counts only the elements that it shows.
"""

from __future__ import annotations

import math
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from lumos.emulation.record import Tensor
from lumos.operators.shaped import ShapedOperator
from lumos.vocabulary import DType

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from lumos.blocks.work import Work
    from lumos.emulation.record import Argument, Operator

#: Bytes of a cache line of the device, and of a sector of it: what memory moves at least.
_LINE = 128
SECTOR = 32
#: Bytes of an element of a type that no part of Lumos knows, such as a quantised one of a user's own kernel.
_UNKNOWN_BYTES = 4


class DeviceEngine(StrEnum):
    """What does the work. The value is the category that a profiler gives the row."""

    KERNEL = "kernel"
    COPY = "gpu_memcpy"
    FILL = "gpu_memset"


class Launch(NamedTuple):
    """One piece of work of one launch call. name: of the kernel, as the row of a trace shows it."""

    name: str
    work: Work
    engine: DeviceEngine = DeviceEngine.KERNEL


def shaped_operator(operator: Operator) -> ShapedOperator:
    """The operator with the shape of each argument that is one tensor."""
    tensors = [argument if isinstance(argument, Tensor) else None for argument in operator.inputs]
    return ShapedOperator(
        operator.name, tuple(() if t is None else tuple(t.shape) for t in tensors), tuple("" if t is None else t.dtype for t in tensors)
    )


def tensors_of(arguments: Sequence[Argument]) -> Iterator[Tensor]:
    """The tensors among arguments, those in lists included, in order."""
    for argument in arguments:
        if isinstance(argument, Tensor):
            yield argument
        elif isinstance(argument, list):
            yield from tensors_of(argument)


def tensor_list(argument: Argument) -> list[Tensor]:
    """The tensors of a list of tensors; none for anything else."""
    tensors = [element for element in argument if isinstance(element, Tensor)] if isinstance(argument, list) else []
    return tensors if isinstance(argument, list) and len(tensors) == len(argument) else []


def results_of(operator: Operator) -> list[Tensor]:
    """The tensors that the operator wrote. A recording without results (a profiler's) gives the shape that its inputs broadcast to,
    or the first input where the operator works in place."""
    if operator.outputs:
        return list(tensors_of(operator.outputs))
    inputs = list(tensors_of(operator.inputs))
    if not inputs:
        return []
    first = inputs[0]
    if operator.name.endswith("_"):
        return [first]
    shape = joint_shape(inputs)
    return [first if shape is None else Tensor(shape, first.dtype, (), -1, first.device)]


def joint_shape(operands: Sequence[Tensor]) -> tuple[int, ...] | None:
    """What the operands' shapes broadcast to; None where they do not, as with an operator that halves a dimension."""
    width = max((len(tensor.shape) for tensor in operands), default=0)
    aligned = [(1,) * (width - len(tensor.shape)) + tensor.shape for tensor in operands]
    shape = tuple(map(max, zip(*aligned, strict=True)))
    fits = all(length in (1, whole) for lengths in aligned for length, whole in zip(lengths, shape, strict=True))
    return shape if fits else None


def shown_elements(tensor: Tensor) -> int:
    """Elements that lie in memory: those of expanded dimensions once."""
    if len(tensor.stride) != len(tensor.shape):
        return math.prod(tensor.shape)
    return math.prod(size for size, step in zip(tensor.shape, tensor.stride, strict=True) if step or not size)


def width(dtype: str) -> int:
    """Bytes of one element."""
    known = DType.parse(dtype)
    return _UNKNOWN_BYTES if known is None else known.bytes


def nbytes(tensor: Tensor) -> int:
    """Bytes that the tensor takes in memory."""
    return shown_elements(tensor) * width(tensor.dtype)


def dense(tensor: Tensor) -> bool:
    """Whether the elements lie one after the other in some order of the dimensions. True where the strides are not known."""
    if len(tensor.stride) != len(tensor.shape):
        return True
    expected = 1
    for step, size in sorted((step, size) for step, size in zip(tensor.stride, tensor.shape, strict=True) if size != 1):
        if step != expected:
            return False
        expected *= size
    return True


def has_channels_last(image: Tensor) -> bool:
    """Whether the channels of one position lie beside each other. False where the strides are not known."""
    return len(image.stride) == len(image.shape) > 1 and image.stride[1] == 1 and image.shape[1] > 1


def same_layout(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors of one shape have their elements in the same order in memory, without gaps."""
    if one.shape != other.shape:
        return False
    steps = [_steps(tensor) for tensor in (one, other) if len(tensor.stride) == len(tensor.shape)]
    return dense(one) and dense(other) and (len(steps) < 2 or steps[0] == steps[1])


def _steps(tensor: Tensor) -> tuple[int, ...]:
    """The strides of the dimensions that have more than one element; those of others mean nothing."""
    return tuple(step for step, size in zip(tensor.stride, tensor.shape, strict=True) if size != 1)


def in_lines(tensors: Iterable[Tensor]) -> bool:
    """Whether a cache line or more of each tensor lies beside each other when the elements are visited in the order of the shape, so that
    copying them takes as long as element-wise work does. True where the strides are not known."""
    return all(beside(tensor) * width(tensor.dtype) >= min(_LINE, nbytes(tensor)) for tensor in tensors)


def beside(tensor: Tensor) -> int:
    """Elements that lie beside each other, from the innermost dimension on; all of them where the strides are not known."""
    if len(tensor.stride) != len(tensor.shape):
        return math.prod(tensor.shape)
    elements = 1
    for size, step in zip(reversed(tensor.shape), reversed(tensor.stride), strict=True):
        if size != 1 and step != elements:
            break
        elements *= size
    return elements
