"""The number format in which a kernel multiplies, and whether it does so on tensor cores, by its name."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from lumos.vocabulary import DType

if TYPE_CHECKING:
    from lumos.operators.shaped import ShapedOperator

#: Kernels that multiply fp32 on tensor cores, as NVIDIA's libraries name them: by the type, or by the instruction (16 × 8 × 8 in fp32).
_TF32 = re.compile(r"tf32|s1688", re.IGNORECASE)
#: Kernels that multiply in another type, as libraries name them: by the type, by the instruction (NVIDIA), by the letters of the factors
#: (rocBLAS' Tensile: B for bf16, H for fp16, S for fp32).
_NAMED = (
    (DType.BF16, re.compile(r"bf16|bfloat16|cijk_\w+?_bb[sb]?_", re.IGNORECASE)),
    (DType.FP16, re.compile(r"fp16|(?<![a-z])f16|half|h884|s884|h16816|s16816|hgemm|cijk_\w+?_hh?[sh]?_", re.IGNORECASE)),
    (DType.FP32, re.compile(r"sgemm|scudnn|fp32|f32f32|<float\b|cijk_\w+?_sb?_", re.IGNORECASE)),
)


def rounds_to_tf32(kernel: str) -> bool:
    """Whether a kernel of tensors in fp32 multiplies in tf32, by its name."""
    return bool(_TF32.search(kernel))


def type_by_name(kernel: str) -> DType | None:
    """The type in which a kernel multiplies, by its name; None where the name does not say."""
    if rounds_to_tf32(kernel):
        return DType.TF32
    return next((dtype for dtype, pattern in _NAMED if pattern.search(kernel)), None)


#: Kernels that name tensor cores (matrix cores of AMD), by the library, the instruction or its shape, and those that name plain cores.
_ON_TENSOR_CORES = re.compile(r"tensorop|wgmma|mfma|nvjet|flash|[a-z](?:884|1688|168\d\d)(?!\d)|_mi\d+x\d+", re.IGNORECASE)
_ON_PLAIN_CORES = re.compile(r"simt|ffma|gemv|(?<![a-z\d])[sdh]gemm|scudnn", re.IGNORECASE)


def on_tensor_cores(kernel: str) -> bool | None:
    """Whether a kernel that multiplies does so on tensor cores, by its name; None where the name does not say. A type of 16 bits or tf32
    says so too, as devices with tensor cores multiply these there, and fp32 says that it does not."""
    if _ON_TENSOR_CORES.search(kernel):
        return True
    if _ON_PLAIN_CORES.search(kernel):
        return False
    dtype = type_by_name(kernel)
    return None if dtype is None else dtype is not DType.FP32


def in_tf32(o: ShapedOperator) -> ShapedOperator:
    """An operator on tensors in fp32 whose kernel multiplies in tf32."""
    return o._replace(dtypes=tuple(DType.TF32 if DType.parse(name) is DType.FP32 else name for name in o.dtypes))
