"""The class of each task: a device task's by its kernel's name, a CPU task's by its kind.

The patterns match the names of kernels in known libraries (cuBLAS, cuBLASLt, CUTLASS, Tensile, cuDNN, MIOpen,
FlashAttention, ATen, NCCL, RCCL); the first pattern that matches decides. A name that matches none is "other".
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from lumos.graph.table import Graph, Kind

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from lumos.trace.table import Int32

_PATTERNS = (
    ("attention", r"flash|fmha|attention|\bfused_attn|attn_fwd|attn_bwd"),
    ("convolution", r"conv|igemm_(fwd|bwd|wrw)|cudnn.*(dgrad|wgrad|fprop)|implicit_|winograd|scudnn|Im2Col|miopen"),
    ("gemm", r"gemm|gemv|cutlass|cublas|Cijk_|matmul|nvjet|splitK|xmma|wgmma"),
    ("normalisation", r"norm|welford|batch_?norm|bn_(fw|bw)"),
    ("softmax", r"softmax"),
    ("optimizer", r"multi_tensor|adam|sgd|lamb|FusedOptimizer"),
    ("embedding", r"embedding|indexing|index_|gather|scatter"),
    ("reduction", r"reduce"),
    ("pooling", r"pool"),
    ("elementwise", r"elementwise|copy|fill|vectorized|triton_poi|dropout|cat"),
)

_COMPILED = tuple((label, re.compile(pattern, re.IGNORECASE)) for label, pattern in _PATTERNS)

CLASSES = ("collective", "memcpy", "memset", *(label for label, _ in _PATTERNS), "other")

#: Classes of kernels whose time is bound by arithmetic, not by memory.
ARITHMETIC = ("gemm", "convolution", "attention")

#: The class of a CPU task.
CPU_CLASSES = {
    Kind.OPERATOR: "cpu operators",
    Kind.HOST: "cpu between operators",
    Kind.LAUNCH: "launch calls",
    Kind.RUNTIME: "runtime calls",
    Kind.SYNC: "synchronising calls",
    Kind.RETURN: "synchronising calls",
}
#: The class of an operator on a rank without device work, where the operator itself computes.
OPERATORS = "operators"
#: The class of a collective: its waiting is counted apart where its peers are known, so that the rest is transfer; where they
#: are not, its time holds both.
TRANSFER = "transfer"
WAITING_UNKNOWN = "communication, waiting unknown"


def kernel_class(name: str) -> str:
    """The class of a compute kernel's name."""
    return next((label for label, pattern in _COMPILED if pattern.search(name)), "other")


def kernel_classes(graph: Graph) -> tuple[list[str], Int32]:
    """The classes and every task's index into them, int32[n]; meaningful for device tasks only."""
    kernels = np.unique(graph.name[graph.kind == Kind.KERNEL])
    of_name = np.full(len(graph.names), CLASSES.index("other"), np.int32)
    of_name[kernels] = [CLASSES.index(kernel_class(graph.names[int(i)])) for i in kernels]
    out = of_name[graph.name]
    for kind, label in ((Kind.COLLECTIVE, "collective"), (Kind.MEMCPY, "memcpy"), (Kind.MEMSET, "memset")):
        out[graph.kind == kind] = CLASSES.index(label)
    return list(CLASSES), out


def bound_by_arithmetic(graph: Graph) -> NDArray[np.bool_]:
    """Which tasks are kernels whose time is bound by arithmetic, bool[n]."""
    classes, label = kernel_classes(graph)
    return np.isin(label, [classes.index(name) for name in ARITHMETIC])


def task_classes(graph: Graph) -> tuple[list[str], Int32]:
    """The classes of all tasks, on devices and on CPUs, and every task's index into them, int32[n]."""
    classes, label = kernel_classes(graph)
    labels = list(dict.fromkeys((*classes, *CPU_CLASSES.values(), OPERATORS, TRANSFER, WAITING_UNKNOWN)))
    of_kind = np.full(max(Kind) + 1, -1, np.int32)
    for kind, name in (*CPU_CLASSES.items(), (Kind.COLLECTIVE, TRANSFER)):
        of_kind[kind] = labels.index(name)
    label = np.where(of_kind[graph.kind] >= 0, of_kind[graph.kind], label)
    with_device = {p.rank for p in graph.processors if p.is_stream}
    without_device = np.array([p.rank not in with_device for p in graph.processors], bool)[graph.processor]
    label[without_device & (graph.kind == Kind.OPERATOR)] = labels.index(OPERATORS)
    label[graph.waiting_unknown] = labels.index(WAITING_UNKNOWN)
    return labels, label
