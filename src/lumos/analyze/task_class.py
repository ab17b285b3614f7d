"""What a task's work counts as: on the device by the kernel's name, on the CPU by the kind of task.

The patterns are those of the libraries that write such names (cuBLAS, cuBLASLt, CUTLASS, Tensile, cuDNN, MIOpen,
FlashAttention, ATen, NCCL, RCCL); the first that matches decides. A name that matches none is "other".
"""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from lumos.graph.table import Graph, Kind
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

#: Classes of kernels that arithmetic bounds.
ARITHMETIC = ("gemm", "convolution", "attention")


#: What a CPU task counts as.
CPU_CLASSES = {
    Kind.OPERATOR: "cpu operators",
    Kind.HOST: "cpu between operators",
    Kind.LAUNCH: "launch calls",
    Kind.RUNTIME: "runtime calls",
    Kind.SYNC: "synchronising calls",
    Kind.RETURN: "synchronising calls",
}
#: What an operator counts as on a rank without device work, where it computes by itself.
OPERATORS = "operators"
#: A collective whose waiting is known is transfer, once it has begun; one whose peers were not given holds both.
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
    """Which tasks are kernels that arithmetic bounds, bool[n]."""
    classes, of = kernel_classes(graph)
    return np.isin(of, [classes.index(name) for name in ARITHMETIC])


def task_classes(graph: Graph) -> tuple[list[str], Int32]:
    """Labels, and every task's index into them, int32[n]: the class of a kernel, or what a CPU task or a collective is."""
    classes, label = kernel_classes(graph)
    labels = list(dict.fromkeys((*classes, *CPU_CLASSES.values(), OPERATORS, TRANSFER, WAITING_UNKNOWN)))
    of_kind = np.full(max(Kind) + 1, -1, np.int32)
    for kind, name in (*CPU_CLASSES.items(), (Kind.COLLECTIVE, TRANSFER)):
        of_kind[kind] = labels.index(name)
    label = np.where(of_kind[graph.kind] >= 0, of_kind[graph.kind], label)
    with_device = {p.rank for p in graph.processors if p.is_stream}
    bare = np.array([p.rank not in with_device for p in graph.processors], bool)[graph.processor]
    label[bare & (graph.kind == Kind.OPERATOR)] = labels.index(OPERATORS)
    label[graph.waiting_unknown] = labels.index(WAITING_UNKNOWN)
    return labels, label
