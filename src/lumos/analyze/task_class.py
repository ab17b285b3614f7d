"""The class of each task: a device task's by its kernel's name (`graph.kernel_names`), a CPU task's by its kind."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from lumos.graph.kernel_names import KernelClass, kernel_class
from lumos.graph.table import Graph, Kind
from lumos.trace.table import unique

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from lumos.analyze.loop.steps import Members
    from lumos.trace.table import Int32

CLASSES = tuple(KernelClass)

#: The classes of device work that is no compute kernel.
_OF_KIND = ((Kind.COLLECTIVE, KernelClass.COLLECTIVE), (Kind.MEMCPY, KernelClass.MEMCPY), (Kind.MEMSET, KernelClass.MEMSET))

#: Classes of kernels whose time is bound by arithmetic, not by memory.
ARITHMETIC = (KernelClass.GEMM, KernelClass.CONVOLUTION, KernelClass.ATTENTION)

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


def kernel_classes(graph: Graph) -> tuple[list[str], Int32]:
    """The classes and every task's index into them, int32[n]; meaningful for device tasks only."""
    kernels = unique(graph.name[graph.kind == Kind.KERNEL])
    of_name = np.full(len(graph.names), CLASSES.index(KernelClass.OTHER), np.int32)
    of_name[kernels] = [CLASSES.index(kernel_class(graph.names[int(i)])) for i in kernels]
    out = of_name[graph.name]
    for kind, label in _OF_KIND:
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


def working(owners: Members) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Masks over tasks: computing, communicating. On ranks without device work the CPU's operators compute."""
    graph = owners.graph
    communicates = graph.kind == Kind.COLLECTIVE
    has_device = np.zeros(len(graph.ranks), bool)
    has_device[owners.rank[owners.on_device]] = True
    on_cpu = (graph.kind == Kind.OPERATOR) & ~has_device[owners.rank]
    return (owners.on_device & ~communicates) | on_cpu, communicates
