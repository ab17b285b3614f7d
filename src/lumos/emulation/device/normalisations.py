"""Normalisations by the kernels of ATen whose time depends on more than the bytes that they move.

Batch normalisation of images with channels first has one block of threads for each channel, which fetch the elements of all images one
after the other (aten/src/ATen/native/cuda/Normalization.cuh): once for the statistics of the forward pass, twice in the backward pass. With
few channels that takes as long as memory answers, whatever it could deliver. A block has 512 threads, on AMD's accelerators 256.

Layer normalisation reads a row once, four elements at a time, where rows are a multiple of four. Others are read by two kernels, one for
the statistics and one that normalises (layer_norm_kernel.cu).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from lumos.blocks.work import Traffic
from lumos.cost.memory_bound_model import NORMALISATION, POINTWISE, REDUCTION, THREADS_OF_CORE
from lumos.emulation.device.launch import Launch, has_channels_last, nbytes, tensors_of

if TYPE_CHECKING:
    from lumos.cost.cluster import Accelerator
    from lumos.emulation.record import Operator, Tensor

#: Threads of a block, and elements that a thread of layer normalisation reads at once.
_THREADS, _THREADS_OF_AMD = 512, 256
_AT_ONCE = 4
#: Operators whose kernels are ATen's own, with the place of the argument that says whether statistics are made.
_FORWARD = {"native_batch_norm": 5, "_native_batch_norm_legit": 5}


def normalisation_kernels(name: str, operator: Operator, accelerator: Accelerator) -> list[Launch] | None:
    """What the operator of this base name ("native_batch_norm") launches; None where it is another, or the table of operators has it."""
    inputs = list(tensors_of(operator.inputs))
    name = name.replace("cudnn", "native") if accelerator.vendor == "AMD" else name  # whose library takes other types, or other layouts
    if name == "native_layer_norm" and inputs and (shape := next((each for each in operator.inputs[1:2] if isinstance(each, list)), None)):
        row = math.prod(size for size in shape if isinstance(size, int))
        return None if row % _AT_ONCE == 0 else _unaligned(nbytes(inputs[0]))
    place = 1 if name == "native_batch_norm_backward" else 0 if name in _FORWARD else len(inputs)
    if place >= len(inputs) or len(inputs[place].shape) < 2 or has_channels_last(inputs[place]):
        return None
    image = inputs[place]
    if name in _FORWARD:
        trains = operator.inputs[_FORWARD[name]] is not False if len(operator.inputs) > _FORWARD[name] else True
        result = Launch("batch_norm_transform_input_kernel", Traffic(2 * nbytes(image), 1, POINTWISE))
        work = Traffic(nbytes(image), 1, REDUCTION, 0, _in_turn(image, 1, accelerator))
        return [Launch("batch_norm_collect_statistics_kernel", work), result] if trains else [result]
    return [Launch("batch_norm_backward_kernel", Traffic(5 * nbytes(image), 1, NORMALISATION, 0, _in_turn(image, 2, accelerator)))]


def _in_turn(image: Tensor, passes: int, accelerator: Accelerator) -> int:
    """The elements that a thread fetches one after the other, for as many threads as the whole device holds."""
    threads = _THREADS_OF_AMD if accelerator.vendor == "AMD" else _THREADS
    each = -(-math.prod(image.shape) // (max(1, image.shape[1]) * threads))
    return int(passes * each * accelerator.require("cores") * THREADS_OF_CORE)


def _unaligned(size: int) -> list[Launch]:
    return [
        Launch("RowwiseMomentsCUDAKernel", Traffic(size, 1, REDUCTION)),
        Launch("LayerNormForwardCUDAKernel", Traffic(2 * size, 1, POINTWISE)),
    ]
