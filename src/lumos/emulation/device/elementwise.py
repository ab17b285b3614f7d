"""Element-wise kernels: which of ATen's three forms runs, and how many instructions it takes for an element.

    contiguous    every operand lies in memory in the same order, without gaps, in the type that the function computes with. A thread
                  loads several elements at once
    cast          as above, but types differ: the type of each operand is looked up for each element while the kernel runs
    strided       where an operand lies in memory is computed for each element, one dimension after the other, with a division for each.
                  Neighbouring dimensions that all operands walk through alike are one dimension

The last two are held back by how fast a core issues instructions, and by the latency of memory. The rules are those of PyTorch
(aten/src/ATen/native/cuda, Loops.cuh, CUDALoops.cuh and Copy.cu; TensorIterator.cpp). Instructions were counted in the code that NVRTC 12.4
makes of the same loops for compute capability 9.0, without a recording; a function that was not counted takes those of an addition.

Operators over lists of tensors are those of optimizers (`_foreach_…`, `_fused_…`). A launch takes 320 chunks of 65,536 elements at most,
from as many tensors as fit into its argument (MultiTensorApply.cuh). Lists whose types differ, or whose tensors are not dense, take one
launch a tensor.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from lumos.blocks.work import Traffic
from lumos.cost.memory_bound_model import POINTWISE, REDUCTION, STRIDED
from lumos.emulation.device.launch import Launch, dense, joint_shape, nbytes, shown_elements, tensor_list
from lumos.vocabulary import DType

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lumos.emulation.record import Operator, Tensor

#: Instructions for an element of a contiguous kernel with its share of the wide loads, of an operand whose type is looked up, and
#: of the strided kernel: for itself and for each operand, then for each dimension the same.
_CONTIGUOUS = 4
_CAST = 22
_STRIDED, _STRIDED_OPERAND = 10, 5
_DIMENSION, _DIMENSION_OPERAND = 8, 2
#: What a lookup of the type adds to an operand of the strided kernel, which has its address already.
_STRIDED_CAST = 12
#: Instructions of the functions themselves: of an addition of numbers in 16 bits, which turns them into fp32 and back, and of those that
#: need more, without what rare values take.
_FEW = 4
_FUNCTIONS = {
    "copy": 0, "_to_copy": 0, "clone": 0, "gelu": 32, "gelu_backward": 46, "silu": 20, "silu_backward": 24, "sigmoid": 20, "tanh": 23,
    "exp": 10, "expm1": 36, "elu": 36, "erf": 30, "log": 28, "log1p": 33, "softplus": 43, "sqrt": 10, "reciprocal": 10, "div": 10,
}  # fmt: skip
#: Copies of fp32 to these types have a kernel of their own, which looks nothing up.
_FROM_FP32 = frozenset({DType.BF16, DType.FP16, DType.FP8})


def elementwise(name: str, size: int, results: Sequence[Tensor], inputs: Sequence[Tensor]) -> Traffic:
    """The work of one element-wise kernel that moves `size` bytes. name: the operator's, without namespace."""
    operands = [*results, *(tensor for tensor in inputs if len(tensor.shape) and math.prod(tensor.shape) != 1)]
    shape = joint_shape(operands)
    if shape is None:
        return Traffic(size, 1, STRIDED)
    elements, steps = math.prod(shape), _iterated(operands, shape)
    contiguous = len(steps) < 2 and all(step == 1 for dimension in steps for step in dimension)
    casts, count = _casts(name, operands), len(operands)
    function = _FUNCTIONS.get(name, _FEW)
    if contiguous and not casts:
        return Traffic(size, 1, POINTWISE, elements * (_CONTIGUOUS + function) if function > _FEW else 0)
    issued = function + count * (_CAST if contiguous else _STRIDED_OPERAND + casts * _STRIDED_CAST)
    if not contiguous:
        issued += _STRIDED + len(steps) * (_DIMENSION + _DIMENSION_OPERAND * count)
    beside = all(step in (0, 1) for dimension in steps[:1] for step in dimension)
    return Traffic(size, 1, POINTWISE if beside else STRIDED, elements * issued, elements)


def _casts(name: str, operands: Sequence[Tensor]) -> bool:
    """Whether types are looked up: those of a copy differ, or those of floating-point operands."""
    types = [DType.parse(tensor.dtype) for tensor in operands]
    if name in ("copy", "_to_copy"):
        return types[0] != types[-1] and not (types[-1] is DType.FP32 and types[0] in _FROM_FP32)
    return len({dtype for dtype in types if dtype in (DType.FP64, DType.FP32, DType.BF16, DType.FP16)}) > 1


def _iterated(operands: Sequence[Tensor], shape: tuple[int, ...]) -> list[tuple[int, ...]]:
    """The dimensions that a kernel iterates over, from the innermost: of each, how many elements every operand steps on."""
    known = [_steps(tensor, shape) for tensor in operands]
    dims = [dim for dim, length in enumerate(shape) if length != 1]
    order = next((strides for strides in known if strides is not None and all(strides[dim] for dim in dims)), None)
    dims.sort(key=lambda dim: -dim if order is None else order[dim])
    out: list[tuple[int, ...]] = []
    ends: tuple[int, ...] = ()  # where each operand would step on, if the dimension continued the one before
    dense = 1  # a tensor whose layout is not known follows the order of the others without gaps
    for dim in dims:
        step = tuple(dense if strides is None else strides[dim] for strides in known)
        if not out or step != ends:
            out.append(step)
        ends = tuple(one * shape[dim] for one in step)
        dense *= shape[dim]
    return out


def _steps(tensor: Tensor, shape: tuple[int, ...]) -> tuple[int, ...] | None:
    """Its strides in `shape`, 0 where it is broadcast; None where they are not known."""
    if len(tensor.stride) != len(tensor.shape):
        if shown_elements(tensor) == math.prod(shape):
            return None
        lengths = tensor.shape
        strides = tuple(math.prod(lengths[dim + 1 :]) for dim in range(len(lengths)))
    else:
        strides = tensor.stride
    short = len(shape) - len(tensor.shape)
    own = (0 if length == 1 else step for length, step in zip(tensor.shape, strides, strict=True))
    return (*(0,) * short, *own)


#: Elements of a chunk, chunks of a launch, and tensors of a launch by the number of lists (1 to 5).
CHUNK, CHUNKS, TENSORS = 65_536, 320, (110, 64, 48, 36, 30)
#: Operators of lists that read whole tensors and give back one value each.
_REDUCED = ("_foreach_norm", "_foreach_max")


def of_lists(name: str, operator: Operator) -> list[Launch] | None:
    """What an operator over lists of this base name launches; None where it is none."""
    if not name.startswith(("_foreach_", "_fused_adam", "_fused_sgd", "_fused_adagrad", "_amp_foreach_")):
        return None
    lists = [listed for argument in operator.inputs if (listed := tensor_list(argument))]
    # whole tensors, rather than one number each, such as the steps of an optimizer
    depth = [tensors for tensors in lists if len(tensors) == len(lists[0]) and any(shown_elements(tensor) > 1 for tensor in tensors)]
    if not depth:
        return []
    results = [listed for argument in operator.outputs if (listed := tensor_list(argument))]
    separate = bool(results) and results[0][0].storage != lists[0][0].storage
    moved = _traffic(name, depth)
    all_dense = all(dense(tensor) for tensors in (*depth, *(results if separate else [])) for tensor in tensors)
    alike = all_dense and len({tensor.dtype for tensors in depth for tensor in tensors}) == 1
    alone = [[(i, 1.0)] for i, tensor in enumerate(depth[0]) if shown_elements(tensor)]
    parts = chunked(depth[0], len(depth) + separate) if alike else alone
    kernel_class = REDUCTION if name in _REDUCED else POINTWISE
    label = f"multi_tensor_apply_kernel [{name}]"
    return [Launch(label, Traffic(sum(round(share * moved[i]) for i, share in part), 1, kernel_class)) for part in parts]


def chunked(tensors: Sequence[Tensor], depth: int) -> list[list[tuple[int, float]]]:
    """How the tensors of one list spread over launches, with `depth` lists: for each launch, tensors and the share of each."""
    most = TENSORS[min(depth, len(TENSORS)) - 1]
    out: list[list[tuple[int, float]]] = [[]]
    chunks = 0
    for i, tensor in enumerate(tensors):
        total = -(-shown_elements(tensor) // CHUNK)
        left = total
        while left:
            if chunks == CHUNKS or len(out[-1]) == most:
                out.append([])
                chunks = 0
            taken = min(left, CHUNKS - chunks)
            out[-1].append((i, taken / total))
            chunks += taken
            left -= taken
    return [part for part in out if part]


def _traffic(name: str, lists: Sequence[Sequence[Tensor]]) -> list[int]:
    """Bytes that each position of the lists reads and writes: a list is read; written are a new list, the first one, or all that a fused
    optimizer changes, which are all but the gradients, its second list."""
    read = lists[:0] if name in ("_foreach_zero", "_foreach_fill") else lists[-1:] if name == "_foreach_copy" else lists
    written = lists[:0] if name in _REDUCED else [lists[0], *lists[2:]] if name.startswith("_fused") else lists[:1]
    return [sum(nbytes(tensors[i]) for tensors in (*read, *written)) for i in range(len(lists[0]))]
