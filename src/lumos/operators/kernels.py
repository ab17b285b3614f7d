"""What operators launch: which kernels are bound by memory, and which tensors each of them reads and writes; and what the names of kernels
that multiply say of the number format and of tensor cores."""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING

import msgspec

from lumos.operators.table import OperatorKind, kind_of, operator_table, own_name
from lumos.vocabulary import DType

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lumos.operators.shaped import ShapedOperator

_TERM = re.compile(r"(?:(?P<factor>\d+) )?(?P<side>in|out)(?:(?P<all>\*)|(?P<first>\d+)(?P<on>\+)?)")


class LaunchedKernel(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"kernel_class": "class"}):
    """One kernel that an operator launches. channels_last: the kernel for images that lie so, where that has another name. kernel_class:
    which coefficients of the memory-bound model it has. reads, writes: terms as the table explains them. copies: it only copies, and is as
    fast as element-wise work where rows stay rows."""

    kernel: str
    kernel_class: str
    channels_last: str = ""
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    copies: bool = False

    @property
    def of_results(self) -> bool:
        """Whether what it reads and writes depends on the results of the operator."""
        return any("out" in term for term in (*self.reads, *self.writes))

    def moves(self, inputs: Sequence[int], results: Sequence[int]) -> int:
        """The bytes that it reads and writes. inputs, results: of the operator's tensors."""
        return sum(_bytes(term, inputs, results) for term in (*self.reads, *self.writes))


@cache
def _by_kind() -> dict[OperatorKind, LaunchedKernel]:
    return msgspec.convert(operator_table()["kernels"], dict[OperatorKind, LaunchedKernel])


@cache
def _by_name() -> dict[str, tuple[LaunchedKernel, ...]]:
    out: dict[str, tuple[LaunchedKernel, ...]] = {}
    for entry in operator_table()["launches"]:
        kernel = msgspec.convert({key: value for key, value in entry.items() if key != "operators"}, LaunchedKernel)
        out |= {name: (*out.get(name, ()), kernel) for name in entry["operators"]}
    return out


def has_own_kernels(name: str) -> bool:
    """Whether the table says of an operator itself what it launches, and not by its kind."""
    return own_name(name) in _by_name()


@cache
def kernels_of(name: str) -> tuple[LaunchedKernel, ...] | None:
    """What an operator launches by the table, in order, nothing where it only describes memory; None where the table does not say it."""
    if has_own_kernels(name):
        return _by_name()[own_name(name)]
    kind = kind_of(name)
    if kind is OperatorKind.VIEW:
        return ()
    return (_by_kind()[kind],) if kind in _by_kind() else None


def _bytes(term: str, inputs: Sequence[int], results: Sequence[int]) -> int:
    match = _TERM.fullmatch(term)
    assert match is not None, f"operators.toml: {term!r} is no term"
    tensors = inputs if match["side"] == "in" else results
    first = int(match["first"] or 0)
    chosen = tensors[first:] if match["all"] or match["on"] else tensors[first : first + 1]
    return int(match["factor"] or 1) * sum(chosen)


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
