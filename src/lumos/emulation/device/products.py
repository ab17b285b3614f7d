"""Operators that multiply matrices: products, linear layers, scaled and grouped products, convolutions.

A convolution is the product that the implicit-GEMM kernels of cuDNN and MIOpen compute: with N images, C input and K output
channels, R x S taps and P x Q output positions,

    forward            [N P Q, C R S / groups] x [C R S / groups, K / groups]
    data gradient      [N H W, K R S / groups] x [K R S / groups, C / groups]
    weight gradient    [C R S / groups, N P Q] x [N P Q, K / groups]

once for each group; the R S taps read the same image, which comes from memory once. A transposed convolution is the data gradient of the
convolution from its result to its image, whose forward product is its own data gradient. A kernel multiplies the channels of one tap after
those of another, `CHANNELS_AT_ONCE` bytes of them in one step, so that an image of three channels takes as long as one of 32 in 16 bits.
Kernels on matrix units read channels last; where the tensors lie with channels first, the library permutes the inputs before and the result
afterwards, each with a kernel that goes through the tensor in tiles of `PERMUTED_TILE` channels and as many positions, at the rate of
contiguous passes. Its threads visit a whole tile also where it has fewer channels.

fp32 is multiplied in TF32 where torch was told so (`set_float32_matmul_precision`, `allow_tf32`, `fp32_precision`); where that is not
known, as in a recording, convolutions are and matrices are not, which is torch's default. Matrix units take TF32 only where the channels
are a multiple of 16 bytes (NVIDIA, Convolutional Layers User's Guide); others are multiplied in fp32 by kernels that read them as they lie.

Hopper's own kernels read and write matrices by its tensor memory accelerator, whose rows begin at multiples of 16 bytes (NVIDIA, CUDA
driver API, cuTensorMapEncodeTiled). Matrices in 16 bits whose rows do not, such as the scores of a vocabulary of 50,257, are multiplied by
kernels written for Ampere, with its instructions, which load as many bytes at once as all rows are a multiple of. So are images whose
channels are no multiple of 16 bytes: cuDNN fills them up with zeros, in memory that it clears first, and its kernels for them split k among
cores for the gradient of the weight alone.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from lumos.blocks.work import Gemm, GroupedGemm, Traffic
from lumos.cost.memory_bound_model import POINTWISE
from lumos.emulation.accelerators import compute_capability
from lumos.emulation.device.launch import DeviceEngine, Launch, has_channels_last, nbytes, shaped_operator, tensors_of, width
from lumos.emulation.record import Tensor
from lumos.operators.shaped import factors, grouped_product
from lumos.operators.table import OperatorKind, argument_places, convolution_windows, kind_of
from lumos.vocabulary import DType

if TYPE_CHECKING:
    from lumos.cost.cluster import Accelerator
    from lumos.emulation.record import Operator

#: Bytes of channels that a convolution multiplies in one step: the least of CUTLASS' tiles along k on matrix units, 32 elements of 16 bits
#: or 16 of TF32 (NVIDIA, CUTLASS, Implicit GEMM Convolution, which says that a step stays within one tap).
CHANNELS_AT_ONCE = 64
#: Bytes that the channels of an image are a multiple of where matrix units take fp32 as TF32, and rows where Hopper's own kernels run.
ALIGNED_BYTES = 16
#: Channels of a tile of cuDNN's kernels that permute: its shared memory, 32 rows of 33 elements, is in the launch of each recorded one.
PERMUTED_TILE = 32
#: Types of complex numbers, and of both their parts.
_PARTS = {"complex64": "float32", "complex128": "float64"}
#: The compute capability of Hopper.
_HOPPER = (9, 0)


def product_kernels(name: str, operator: Operator, accelerator: Accelerator) -> list[Launch] | None:
    """What the operator of this base name ("mm") launches; None where it is no multiplication or its shapes are not of one."""
    kind = kind_of(name)
    if kind is OperatorKind.MULTIPLICATION:
        return _product(operator, accelerator)
    return convolution_kernels(name, operator, accelerator) if kind is OperatorKind.CONVOLUTION else None


def arithmetic(dtype: str, accelerator: Accelerator, tf32: bool | None = False) -> DType | None:
    """The type in which the accelerator multiplies elements of this type; a type that it has no rate for is multiplied in fp32.

    None for a type that is not multiplied. tf32: fp32 is multiplied in TF32.
    """
    known = DType.parse(dtype)
    if known is None or (known.is_integer and known is not DType.INT8) or known in (DType.BOOL, DType.COMPLEX64, DType.COMPLEX128):
        return None
    wanted = DType.TF32 if tf32 and known is DType.FP32 else known.arithmetic
    return wanted if wanted in accelerator.peak_flops else DType.FP32


def _product(operator: Operator, accelerator: Accelerator) -> list[Launch] | None:
    o = shaped_operator(operator)
    product, grouped = factors(o), grouped_product(o)
    a, b = (operator.inputs[position] for position in (product.first, product.second)) if product is not None else (None, None)
    parts = _PARTS.get(a.dtype) if isinstance(a, Tensor) else None
    dtype = arithmetic(parts or a.dtype, accelerator, operator.tf32) if isinstance(a, Tensor) else None
    if product is None or dtype is None or not isinstance(a, Tensor) or not isinstance(b, Tensor):
        return None
    if grouped is not None:
        return [Launch(f"grouped_gemm_{dtype}", GroupedGemm(grouped.m, grouped.batch, grouped.n, grouped.k, dtype, cast=False))]
    rows, columns, inner, batch = product.whole
    if not rows * columns * inner * batch:
        return []
    if parts:  # a real product of the same size in memory, with twice the operations for each element: [m, 2 k] x [2 k, 2 n]
        columns, inner = 2 * columns, 2 * inner
    out = max(2, dtype.bytes)
    result = Tensor((rows, columns), dtype, (columns, 1), -1, a.device)
    narrower = ALIGNED_BYTES // min(map(_aligned_bytes, (a, b, result))) if dtype.bytes == 2 and min(rows, columns, inner) > 1 else 1
    work = Gemm(rows, columns, inner, dtype, batch, out, cast=False, older=narrower > 1, narrower=narrower)
    return [Launch(f"gemm_{dtype}", work)]


def _aligned_bytes(matrix: Tensor) -> int:
    """Of how many bytes, at most `ALIGNED_BYTES`, the begin of every row is a multiple, or of every column where those lie one after the
    other: a kernel loads no more at once."""
    steps = [step for size, step in zip(matrix.shape, matrix.stride, strict=False) if size > 1 and step > 1]
    if len(matrix.stride) != len(matrix.shape):
        steps = [matrix.shape[-1]]
    return math.gcd(ALIGNED_BYTES, *(step * width(matrix.dtype) for step in steps))


class _Convolved(NamedTuple):
    """A convolution of which one product is computed: the images, its result or the gradient of that, and the weight."""

    image: Tensor
    result: Tensor
    weight: Tensor

    @property
    def groups(self) -> int:
        return max(1, self.image.shape[1] // self.weight.shape[1])

    @property
    def taps(self) -> int:
        return math.prod(self.weight.shape[2:])

    @property
    def is_padded(self) -> bool:
        """Whether the channels, of one group, are filled up to a multiple of `ALIGNED_BYTES` with zeros."""
        return DType.parse(self.image.dtype) in (DType.FP16, DType.BF16) and self.groups == 1 and _is_odd(self.image)


def convolution_kernels(name: str, operator: Operator, accelerator: Accelerator) -> list[Launch] | None:
    """What a convolution, transposed or not, or the backward pass of one launches."""
    tensors, position = list(tensors_of(operator.inputs)), argument_places(name).get("transposed", len(operator.inputs))
    turned = "transpose" in name or (position < len(operator.inputs) and operator.inputs[position] is True)
    is_backward = "backward" in name
    if len(tensors) < 2 + is_backward or not 2 < len(tensors[0].shape) == len(tensors[1].shape):
        return None
    if is_backward:
        gradient, image, weight = tensors[:3]
        masks = [a for a in operator.inputs if isinstance(a, list) and len(a) == 3 and all(isinstance(x, bool) for x in a)]
        to_image, to_weight, _ = masks[-1] if masks else (True, True, False)  # that of the bias is a sum, by an operator that it calls
    else:
        (image, weight), (to_image, to_weight) = tensors[:2], (True, False)
        out = next(tensors_of(operator.outputs), None)
        if out is None and turned:
            return None
        gradient = out or Tensor(_positions(operator, image, weight), image.dtype, (), -1, image.device)
    # seen from the convolution from its result to its image, a transposed one is the gradient of the image
    of = _Convolved(gradient, image, weight) if turned else _Convolved(image, gradient, weight)
    dtype = arithmetic(of.image.dtype, accelerator, operator.tf32 is not False)
    if dtype is None:
        return None
    dtype = DType.FP32 if dtype is DType.TF32 and _is_odd(of.image) else dtype
    first = _data_gradient if turned != is_backward else _forward
    computed = [product for product, is_wanted in ((first, to_image), (_weight_gradient, to_weight)) if is_wanted]
    return [launch for product in computed for launch in product(of, dtype, accelerator)]


def _forward(of: _Convolved, dtype: DType, accelerator: Accelerator) -> list[Launch]:
    image, result, weight = of
    channels, step = weight.shape[1], CHANNELS_AT_ONCE // dtype.bytes
    inner = of.taps * (channels if dtype is DType.FP32 or of.groups > 1 else _whole(channels, step))
    gemm = _gemm(of, dtype, image.shape[0] * math.prod(result.shape[2:]), weight.shape[0] // of.groups, inner)
    work = gemm._replace(split=not of.is_padded, older=of.is_padded)
    return _convolved_by(f"convolution_implicit_gemm_{dtype}", work, [image, weight], result, image, accelerator if of.taps > 1 else None)


def _data_gradient(of: _Convolved, dtype: DType, accelerator: Accelerator) -> list[Launch]:
    image, gradient, weight = of
    rows, positions = (tensor.shape[0] * math.prod(tensor.shape[2:]) for tensor in (image, gradient))
    # A strided convolution multiplies only the taps that fall on an input position: as many products as forward.
    inner = weight.shape[0] // of.groups * of.taps
    inner = max(1, round(inner * positions / max(1, rows))) if positions < rows else inner
    work = _gemm(of, dtype, rows, weight.shape[1], inner)._replace(split=not of.is_padded, older=of.is_padded)
    return _convolved_by(f"dgrad_implicit_gemm_{dtype}", work, [gradient, weight], image, image, accelerator)


def _weight_gradient(of: _Convolved, dtype: DType, accelerator: Accelerator) -> list[Launch]:
    image, gradient, weight = of
    positions = math.prod(gradient.shape[2:])
    work = _gemm(of, dtype, weight.shape[1] * of.taps, weight.shape[0] // of.groups, positions)
    if dtype is DType.FP32:  # every image for itself, added up afterwards: C is far too small to fill the cores
        work = work._replace(batch=of.groups * gradient.shape[0])
    else:
        work = work._replace(k=positions * gradient.shape[0])
        if dtype is DType.TF32 and compute_capability(accelerator.name) == _HOPPER:
            work = work._replace(shared_bytes=of.groups * of.taps * _through_shared(weight.shape[1], work.n, work.k))
    work = work._replace(older=of.is_padded)
    return _convolved_by(f"wgrad_implicit_gemm_{dtype}", work, [gradient, image], weight, image, accelerator)


def _gemm(of: _Convolved, dtype: DType, rows: int, columns: int, inner: int) -> Gemm:
    return Gemm(rows, columns, inner, dtype, of.groups, max(2, dtype.bytes), cast=False, taps=of.taps)


def _convolved_by(name: str, work: Gemm, inputs: list[Tensor], result: Tensor, image: Tensor, sharing: Accelerator | None) -> list[Launch]:
    """A product of a convolution with what brings its inputs there and its result back. sharing: what shares k among cores, if anything."""
    if work.dtype is DType.FP32:
        return [Launch(name, work)]
    shared = [Launch(name, work)] if sharing is None else _shared(Launch(name, work), result, sharing)
    return [*_brought(inputs, image, work.older), *shared, *_permuted([result], image)]


def _shared(body: Launch, result: Tensor, accelerator: Accelerator) -> list[Launch]:
    """A product in 16 bits. MIOpen's kernels share k among cores, which add to a result in fp32: that is cleared before, and turned into 16
    bits afterwards (the igemm solvers with a global split of k in MIOpen's src/solver)."""
    if accelerator.vendor != "AMD" or width(result.dtype) != DType.BF16.bytes:
        return [body]
    elements = math.prod(result.shape)
    clear, cast = Traffic(DType.FP32.bytes * elements), Traffic((DType.FP32.bytes + DType.BF16.bytes) * elements)
    return [Launch("SubTensorOpWithScalar1d", clear), body, Launch("SubTensorOpWithCastTensor1d", cast)]


def _through_shared(m: int, n: int, k: int) -> int:
    """Bytes that pass through shared memory for C[m, n] of one tap. Positions, neighbours along k, lie apart where channels are last, and
    Hopper's matrix units read such factors from there in 16 bits alone (NVIDIA, PTX ISA, wgmma.mma_async): in TF32 they are turned around
    first. Tiles of C have 64 or 128 rows and columns, and an instruction multiplies 64 rows by all columns of a tile."""
    rows, columns = (min(128, _whole(size, 64)) for size in (m, n))
    turned, multiplied = 3 * (rows + columns), rows // 64 * (64 + columns)
    return -(-m // rows) * -(-n // columns) * k * (turned + multiplied) * DType.TF32.bytes


def _is_odd(image: Tensor) -> bool:
    return image.shape[1] * width(image.dtype) % ALIGNED_BYTES != 0


def _positions(operator: Operator, image: Tensor, weight: Tensor) -> tuple[int, ...]:
    """The shape of a convolution's result, by its settings."""
    values = [str(argument) if isinstance(argument, list | bool) else "" for argument in operator.inputs]
    windows = convolution_windows(operator.name, values, tuple(image.shape[2:]), tuple(weight.shape[2:]))
    sides = image.shape[2:] if windows is None else [window.positions for window in windows]
    return (image.shape[0], weight.shape[0], *sides)


def _brought(tensors: list[Tensor], image: Tensor, padded: bool) -> list[Launch]:
    """The kernels that bring a convolution's inputs into the order that matrix units read. padded: whether zeros fill up odd channels, for
    which memory is cleared first."""
    out: list[Launch] = []
    for tensor in tensors:
        permuted = _permuted([tensor], image)
        if permuted and padded and _is_odd(tensor):
            size = nbytes(tensor) // tensor.shape[1] * _whole(tensor.shape[1], ALIGNED_BYTES // width(tensor.dtype))
            out.append(Launch("Memset (Device)", Traffic(size, 1, POINTWISE), DeviceEngine.FILL))
        out += permuted
    return out


def _permuted(tensors: list[Tensor], image: Tensor) -> list[Launch]:
    """The kernels that bring tensors into that order, or back, where the image has its channels first."""
    if has_channels_last(image) or len(image.shape) < 4:
        return []
    return [
        Launch("nchwToNhwcKernel", Traffic(2 * nbytes(tensor) // tensor.shape[1] * _whole(tensor.shape[1], PERMUTED_TILE), 1, POINTWISE))
        for tensor in tensors
        if nbytes(tensor)
    ]


def _whole(size: int, step: int) -> int:
    """The size in whole steps."""
    return -(-size // step) * step
