"""Joining tensors that lie in memory with gaps or permuted, or that give small pieces of the result in turn.

ATen (aten/src/ATen/native/cuda/Shape.cu) joins up to four dimensions in one kernel, each of whose threads takes one element after the
other. Where the element goes is computed from its number, with a division for each dimension but the outermost, and where it comes from in
the same way. So the kernel is held back by the instructions that its cores issue, and by the latency of memory, as a strided element-wise
kernel is. Memory moves sectors of 32 bytes: a piece of the result that is smaller, or an element whose neighbour lies elsewhere, moves one.
Tensors without gaps that give larger pieces are copied several elements at once: `data/operators.toml` has that kernel.

Instructions of the loop were counted in the code that NVIDIA's compiler (NVRTC 12.4) makes of the same arithmetic for compute capability
9.0, in which the reciprocals of the divisors are computed before the loop. No recording was used for them. What is left out: how long a
thread waits for its own divisions, one after the other.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from lumos.blocks.work import Traffic
from lumos.cost.memory_bound_model import POINTWISE
from lumos.emulation.device.launch import SECTOR, Launch, nbytes, tensors_of, width

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lumos.emulation.record import Operator, Tensor

#: Instructions for an element of tensors of so many dimensions.
_INSTRUCTIONS = {1: 10, 2: 23, 3: 37, 4: 51}


def joined_kernels(name: str, operator: Operator) -> list[Launch] | None:
    """What `cat` launches; None for any other operator, and where the table has the kernel."""
    if name != "cat":
        return None
    inputs = [tensor for tensor in tensors_of(operator.inputs) if math.prod(tensor.shape)]
    if not inputs or len({(tensor.dtype, len(tensor.shape)) for tensor in inputs}) > 1:
        return None
    pieces = _pieces(inputs, operator)
    instructions = _INSTRUCTIONS.get(len(inputs[0].shape))
    if instructions is None or (all(map(_is_contiguous, inputs)) and min(pieces) >= SECTOR):
        return None
    elements = sum(math.prod(tensor.shape) for tensor in inputs)
    is_beside = [not tensor.stride or tensor.stride[-1] <= 1 or tensor.shape[-1] == 1 for tensor in inputs]
    read = sum(nbytes(tensor) if beside else math.prod(tensor.shape) * SECTOR for tensor, beside in zip(inputs, is_beside, strict=True))
    written = sum(
        math.prod(tensor.shape) * width(tensor.dtype) * max(piece, SECTOR) // piece for tensor, piece in zip(inputs, pieces, strict=True)
    )
    work = Traffic(read + written, 1, POINTWISE, elements * instructions, elements)  # sectors count what the order of elements costs
    return [Launch(f"CatArrayBatchedCopy [{name}]", work)]


def _pieces(inputs: Sequence[Tensor], operator: Operator) -> list[int]:
    """Bytes that each tensor puts beside each other into the result."""
    dim = next((each for each in operator.inputs if isinstance(each, int)), 0) % len(inputs[0].shape)
    return [math.prod(tensor.shape[dim:]) * width(tensor.dtype) for tensor in inputs]


def _is_contiguous(tensor: Tensor) -> bool:
    """Whether the elements lie one after the other in the order of the shape. True where the strides are not known."""
    if len(tensor.stride) != len(tensor.shape):
        return True
    expected = 1
    for size, step in zip(reversed(tensor.shape), reversed(tensor.stride), strict=True):
        if size != 1 and step != expected:
            return False
        expected *= size
    return True
