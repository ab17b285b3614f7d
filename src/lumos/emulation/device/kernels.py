"""Which kernels an operator launches on an accelerator, and the bytes that those which are bound by memory read and write.

Rules are asked from the most to the least particular: multiplications, attention, recurrent networks, copies, what joins tensors, lists
of tensors, then the table of operators bound by memory. What none of them knows, such as a kernel of the user's own, is priced by one pass
over what it is given and what it gives back, and named.

A copy between host and device moves at the rate of the host's bus, PCI Express 5.0 with 16 lanes: 63 GB/s a direction (PCI-SIG, PCI
Express Base Specification 5.0), of which large copies reach some 85 %.

ATen (aten/src/ATen/native/cuda/Shape.cu) joins tensors with gaps, or that give small pieces of the result in turn, element by element, each
with a division for each dimension but the outermost, and in a tensor with gaps as many again for where it is read: held back by
instructions and latency, as a strided element-wise kernel is. Memory moves sectors of 32 bytes, also for smaller pieces. Instructions
were counted in the code that NVRTC 12.4 makes of the same arithmetic for compute capability 9.0, without a recording. Tensors without gaps
that give larger pieces have a kernel in `data/operators.toml`.

Batch normalisation of images with channels first has one block of threads for each channel, which fetch the elements of all images one
after the other (aten/src/ATen/native/cuda/Normalization.cuh): once for the statistics of the forward pass, twice in the backward pass. With
few channels that takes as long as memory answers, whatever it could deliver. A block has 512 threads, on AMD's accelerators 256.

Layer normalisation reads a row once, four elements at a time, where rows are a multiple of four. Others are read by two kernels, one for
the statistics and one that normalises (layer_norm_kernel.cu).

torch chooses the kernel of attention before it calls, so the name of the operator says which one runs. Flash kernels of torch are
FlashAttention 2; the memory-efficient ones are as fast as FlashAttention 1. Sequences of different lengths, one after the other, count as
equally long.

Of a recurrent network, by cuDNN's standard algorithm (CUDNN_RNN_ALGO_STANDARD, which torch takes on accelerators after Volta: `get_algo` in
ATen/native/cudnn/RNN.cpp), a layer multiplies the inputs of all moments at once,

    [sequences of all moments, inputs] x [inputs, gates x hidden]

and then goes from moment to moment: a product of the state, [sequences, hidden] x [hidden, gates x hidden], and one kernel that computes
the gates element by element (Appleyard, Kocisky, Blunsom: Optimizing Performance of Recurrent Neural Networks on GPUs, 2016). The
backward pass does both in reverse, and multiplies for the gradients of the weights at its end. Layers and directions run one after the
other here, where cuDNN overlaps them on streams of its own. Not compared with a recording.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from lumos.blocks.work import Attention, Fixed, Gemm, Traffic
from lumos.cost.attention_model import HEAD_SIZES
from lumos.cost.memory_bound_model import NORMALISATION, POINTWISE, REDUCTION, STRIDED, THREADS_OF_CORE
from lumos.emulation.device.elementwise import elementwise, of_lists
from lumos.emulation.device.launch import (
    SECTOR,
    DeviceEngine,
    Launch,
    beside,
    has_channels_last,
    in_lines,
    nbytes,
    results_of,
    same_layout,
    shaped_operator,
    tensors_of,
    width,
)
from lumos.emulation.device.products import arithmetic, product_kernels
from lumos.emulation.record import Tensor
from lumos.operators.kernels import kernels_of
from lumos.operators.shaped import attention_of, has_causal_mask
from lumos.operators.table import own_name
from lumos.vocabulary import AttentionKernel, Direction

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lumos.cost.cluster import Accelerator
    from lumos.emulation.record import Argument, Operator

#: Operators that communicate: the record has what they move as exchanges.
_COMMUNICATION = ("c10d::", "_c10d_functional", "record_param_comms")


class Kernels:
    """The kernels of operators on one accelerator. unknown: operators that no rule knows, and how often each was asked for."""

    def __init__(self, accelerator: Accelerator) -> None:
        self.accelerator = accelerator
        self.unknown: dict[str, int] = {}

    def __call__(self, operator: Operator) -> list[Launch]:
        """What the operator launches, in order: nothing for a view, for what works on the host alone, and for an operator that only
        calls others."""
        if not operator.leaf or operator.name.startswith(_COMMUNICATION) or not on_device(operator):
            return []
        name = own_name(operator.name)
        for priced in (product_kernels, fused_attention, recurrent_kernels, normalisation_kernels):
            if (launches := priced(name, operator, self.accelerator)) is not None:
                return launches
        for moved in (copy_kernels, joined_kernels, of_lists, table_kernels):
            if (launches := moved(name, operator)) is not None:
                return launches
        launches = unlisted(name, operator)
        if launches:
            self.unknown[operator.name] = self.unknown.get(operator.name, 0) + 1
        return launches


def on_device(operator: Operator) -> bool:
    """Whether the operator has a tensor on the device among its inputs or results."""
    return any(tensor.device != "cpu" for tensor in (*tensors_of(operator.inputs), *tensors_of(operator.outputs)))


#: The kernel of element-wise operators in the table.
_ELEMENTWISE = "elementwise_kernel"


def table_kernels(name: str, operator: Operator) -> list[Launch] | None:
    """What an operator of this base name launches by the table; None where the table does not have it."""
    known, inputs, results = kernels_of(name), list(tensors_of(operator.inputs)), results_of(operator)
    out = []
    for kernel in known or ():
        # The few values that a reduction gives count for nothing where a recording does not have them.
        outputs = results if operator.outputs or kernel.kernel_class != REDUCTION else []
        size = kernel.moves(list(map(nbytes, inputs)), list(map(nbytes, outputs)))
        if kernel.kernel == _ELEMENTWISE and kernel.reads and size:
            out.append(Launch(f"{kernel.kernel} [{name}]", elementwise(name, size, outputs, inputs)))
        elif size:
            kernel_class = POINTWISE if kernel.copies and in_lines((*inputs, *outputs)) else kernel.kernel_class
            called = kernel.channels_last if kernel.channels_last and has_channels_last(inputs[0]) else kernel.kernel
            out.append(Launch(f"{called} [{name}]", Traffic(size, 1, kernel_class)))
    return None if known is None else out


def unlisted(name: str, operator: Operator) -> list[Launch]:
    """One pass over everything that the operator is given and gives back, each piece of memory once; nothing for a view. One that returns
    nothing writes into what it is given."""
    inputs, outputs = list(tensors_of(operator.inputs)), results_of(operator)
    given = {tensor.storage for tensor in inputs}
    returns = any(output is not None for output in operator.outputs)
    if returns and not operator.name.endswith("_") and all(tensor.storage in given for tensor in outputs):
        return []
    size = sum(map(nbytes, inputs)) + sum(map(nbytes, outputs))
    return [Launch(f"{name}_kernel", Traffic(size, 1, STRIDED))] if size else []


#: Bytes per second of a copy between host and device, and the ns that a copy of a few bytes takes.
HOST_BYTES_PER_S = 0.85 * 63e9
HOST_COPY_NS = 1_500
#: The same of pageable memory, which the host first copies into memory of its own: the median of 20 copies of a MiB or more recorded on
#: A100 and V100, 4.3 to 11.7 GB/s.
PAGEABLE_BYTES_PER_S = 8.1e9
#: Operators that copy; the position of the source among their tensors, and of the target (None: the result).
_COPIES: dict[str, tuple[int, int | None]] = {
    "copy": (1, 0), "_to_copy": (0, None), "to": (0, None), "clone": (0, None), "contiguous": (0, None), "_copy_from": (0, 1),
    "_copy_from_and_resize": (0, 1),
}  # fmt: skip


def copy_kernels(name: str, operator: Operator) -> list[Launch] | None:
    """What a copying operator of this base name launches; None where it is none."""
    if name not in _COPIES:
        return None
    source, target = _COPIES[name]
    inputs = list(tensors_of(operator.inputs))
    results = results_of(operator)
    if source >= len(inputs) or (target is None and not results):
        return []
    a, b = inputs[source], results[0] if target is None else inputs[target]
    if target is None and operator.outputs and a.storage == b.storage:
        return []
    size = nbytes(b)
    if a.device != b.device:
        host, pinned = ("Pinned", True) if (a if a.device == "cpu" else b).pinned else ("Pageable", False)
        way = f"HtoD ({host} -> Device)" if a.device == "cpu" else f"DtoH (Device -> {host})"
        return [Launch(f"Memcpy {way}", Fixed(host_copy_ns(size, pinned)), DeviceEngine.COPY)] if size else []
    if not size or b.device == "cpu":
        return []
    if a.dtype == b.dtype and same_layout(a, b) and a.stride and b.stride:
        return [Launch("Memcpy DtoD (Device -> Device)", Traffic(2 * size, 1, POINTWISE), DeviceEngine.COPY)]
    return [Launch(f"elementwise_kernel [{name}]", elementwise("copy", nbytes(a) + size, [b], [a]))]


def host_copy_ns(size: int, pinned: bool = True) -> int:
    """Time of a copy of `size` bytes between the device and pinned or pageable memory of the host."""
    return HOST_COPY_NS + round(size / (HOST_BYTES_PER_S if pinned else PAGEABLE_BYTES_PER_S) * 1e9)


#: Instructions for an element, and for each dimension but the outermost: for where it goes, and as many for where it is among gaps. More
#: dimensions are copied one tensor after the other.
_INSTRUCTIONS, _OF_DIMENSION, _MOST_DIMENSIONS = 10, 13.5, 4


def joined_kernels(name: str, operator: Operator) -> list[Launch] | None:
    """What `cat` launches; None for any other operator, and where the table has the kernel."""
    inputs = [tensor for tensor in tensors_of(operator.inputs) if math.prod(tensor.shape)]
    if name != "cat" or not inputs or len({(tensor.dtype, len(tensor.shape)) for tensor in inputs}) > 1:
        return None
    pieces, elements = _pieces(inputs, operator), [math.prod(tensor.shape) for tensor in inputs]
    gaps = [beside(tensor) != count for tensor, count in zip(inputs, elements, strict=True)]
    if len(inputs[0].shape) > _MOST_DIMENSIONS or (not any(gaps) and min(pieces) >= SECTOR):
        return None
    moved = issued = 0.0
    for tensor, piece, count, has_gaps in zip(inputs, pieces, elements, gaps, strict=True):
        is_beside = not tensor.stride or tensor.stride[-1] <= 1 or tensor.shape[-1] == 1
        moved += (nbytes(tensor) if is_beside else count * SECTOR) + count * width(tensor.dtype) * max(piece, SECTOR) // piece
        issued += count * (_INSTRUCTIONS + _OF_DIMENSION * (len(tensor.shape) - 1) * (1 + has_gaps))
    work = Traffic(int(moved), 1, POINTWISE, round(issued), sum(elements))  # sectors count what the order of elements costs
    return [Launch(f"CatArrayBatchedCopy [{name}]", work)]


def _pieces(inputs: Sequence[Tensor], operator: Operator) -> list[int]:
    """Bytes that each tensor puts beside each other into the result."""
    dim = next((argument for argument in operator.inputs if isinstance(argument, int)), 0) % len(inputs[0].shape)
    return [math.prod(tensor.shape[dim:]) * width(tensor.dtype) for tensor in inputs]


#: Threads of a block, and elements that a thread of layer normalisation reads at once.
_THREADS, _THREADS_OF_AMD = 512, 256
_AT_ONCE = 4
#: Operators whose kernels are ATen's own, with the place of the argument that says whether statistics are made.
_FORWARD = {"native_batch_norm": 5, "_native_batch_norm_legit": 5}


def normalisation_kernels(name: str, operator: Operator, accelerator: Accelerator) -> list[Launch] | None:
    """What the operator of this base name ("native_batch_norm") launches; None where it is another, or the table of operators has it."""
    inputs = list(tensors_of(operator.inputs))
    name = name.replace("cudnn", "native") if accelerator.vendor == "AMD" else name  # whose library takes other types, or other layouts
    if name == "native_layer_norm" and inputs and (shape := next((axes for axes in operator.inputs[1:2] if isinstance(axes, list)), None)):
        row = math.prod(size for size in shape if isinstance(size, int))
        return None if row % _AT_ONCE == 0 else [
            Launch("RowwiseMomentsCUDAKernel", Traffic(nbytes(inputs[0]), 1, REDUCTION)),
            Launch("LayerNormForwardCUDAKernel", Traffic(2 * nbytes(inputs[0]), 1, POINTWISE)),
        ]
    position = 1 if name == "native_batch_norm_backward" else 0 if name in _FORWARD else len(inputs)
    if position >= len(inputs) or len(inputs[position].shape) < 2 or has_channels_last(inputs[position]):
        return None
    image = inputs[position]
    if name in _FORWARD:
        trains = operator.inputs[_FORWARD[name]] is not False if len(operator.inputs) > _FORWARD[name] else True
        result = Launch("batch_norm_transform_input_kernel", Traffic(2 * nbytes(image), 1, POINTWISE))
        work = Traffic(nbytes(image), 1, REDUCTION, 0, _in_turn(image, 1, accelerator))
        return [Launch("batch_norm_collect_statistics_kernel", work), result] if trains else [result]
    return [Launch("batch_norm_backward_kernel", Traffic(5 * nbytes(image), 1, NORMALISATION, 0, _in_turn(image, 2, accelerator)))]


def _in_turn(image: Tensor, passes: int, accelerator: Accelerator) -> int:
    """The elements that a thread fetches one after the other, for as many threads as the whole device holds."""
    threads = _THREADS_OF_AMD if accelerator.vendor == "AMD" else _THREADS
    elements = -(-math.prod(image.shape) // (max(1, image.shape[1]) * threads))
    return int(passes * elements * accelerator.require("cores") * THREADS_OF_CORE)


#: By a word of the name: the kernel that runs.
_KERNELS = {"efficient": AttentionKernel.FA1, "cudnn": AttentionKernel.CUDNN}


def fused_attention(name: str, operator: Operator, accelerator: Accelerator) -> list[Launch] | None:
    """What an attention operator of this base name launches; None where it is none or its shapes are not of one."""
    ends = next((ends for ends in operator.inputs if isinstance(ends, Tensor) and ends.dtype == "int32" and len(ends.shape) == 1), None)
    shapes = shaped_operator(operator).shapes
    sizes = attention_of(operator.name, shapes if ends is None else tuple((1, *shape) if len(shape) == 3 else shape for shape in shapes))
    given = next(iter(tensors_of(operator.inputs)), None)
    dtype = arithmetic(given.dtype, accelerator, operator.tf32) if given is not None else None
    if sizes is None or dtype is None:
        return None
    batch, heads, kv_heads, queries, keys, width, value_width = sizes
    if ends is not None:  # where each sequence of those that lie one after the other ends
        batch, queries, keys = (sequences := max(1, ends.shape[0] - 1)), -(-queries // sequences), -(-keys // sequences)
    direction = Direction.BACKWARD if "backward" in name else Direction.FORWARD
    kernel = next((kernel for word, kernel in _KERNELS.items() if word in name), AttentionKernel.FA2)
    causal = bool(has_causal_mask(name, ["" if value is None else str(value) for value in operator.inputs]))
    work = Attention(batch, queries, keys, heads, min(kv_heads, heads), width, value_width, causal, direction, kernel, dtype=dtype)
    label = f"{kernel}_{direction}_kernel"
    if max(width, value_width) <= HEAD_SIZES[-1]:
        return [Launch(f"flash_{label}", work)]
    parts = [Gemm(queries, keys, width, dtype, batch * heads), Gemm(queries, value_width, keys, dtype, batch * heads)]
    return [Launch(f"gemm_{dtype} [{label}]", part) for part in parts * (1 if direction is Direction.FORWARD else 2)]


#: Where the arguments after the states begin, by operator.
_KIND_AT = {"_cudnn_rnn": 6, "_cudnn_rnn_backward": 10}
#: Gates of a network of each kind, as cuDNN numbers them (cudnnRNNMode_t): two plain ones, LSTM, GRU.
_GATES = (1, 1, 4, 3)


def recurrent_kernels(name: str, operator: Operator, accelerator: Accelerator) -> list[Launch] | None:
    """What the operator of this base name ("_cudnn_rnn") launches; None where it is another, or its arguments are not all there."""
    start = _KIND_AT.get(name)
    if start is None or len(operator.inputs) < start + 9:
        return None
    given, numbers = operator.inputs[0], [number for number in operator.inputs[start : start + 4] if isinstance(number, int)]
    dtype = arithmetic(given.dtype, accelerator, operator.tf32 is not False) if isinstance(given, Tensor) else None
    if not isinstance(given, Tensor) or len(numbers) < 4 or dtype is None:
        return None
    kind, hidden, projected, layers = numbers
    directions, state, columns = 2 if operator.inputs[start + 7] else 1, projected or hidden, _GATES[kind] * hidden
    moments = _moments(given, operator.inputs[start + 8], bool(operator.inputs[start + 4]))
    total, is_forward = sum(moments), name == "_cudnn_rnn"

    def product(rows: int, columns: int, inner: int) -> Launch:
        return Launch(f"gemm_{dtype}", Gemm(rows, columns, inner, dtype, 1, max(2, dtype.bytes), cast=False))

    def layer(inputs: int) -> list[Launch]:
        out = [product(total, columns, inputs)] if is_forward else []
        for sequences in moments if is_forward else reversed(moments):
            # both products are read and the gates are kept, with the state and the cell before and after
            size = sequences * (3 * columns + 4 * hidden) * width(given.dtype)
            gates = Launch(f"rnn_elementwise_{'forward' if is_forward else 'backward'}", Traffic(size))
            steps = [(columns, state), None, *[(state, hidden)] * bool(projected)]
            if not is_forward:
                steps = [sides and sides[::-1] for sides in reversed(steps)]
            out += [gates if sides is None else product(sequences, *sides) for sides in steps]
        of_weights = [product(total, inputs, columns), product(columns, inputs, total), product(columns, state, total)]
        return out if is_forward else out + of_weights

    every = [given.shape[-1], *[directions * state] * (layers - 1)]
    return [launch for inputs in (every if is_forward else reversed(every)) for _ in range(directions) for launch in layer(inputs)]


def _moments(given: Tensor, packed: Argument, batch_first: bool) -> list[int]:
    """The sequences at each moment: as a packed input says, else all of them at all."""
    if isinstance(packed, list) and packed:
        return [sequences for sequences in packed if isinstance(sequences, int)]
    batch, length = given.shape[:2] if batch_first else given.shape[1::-1]
    return [batch] * length
