"""What a task's work counts as, on the CPU as on the device."""

from __future__ import annotations

import numpy as np

from lumos.analyze.kernel_class import kernel_classes
from lumos.graph.table import Graph, Kind
from lumos.trace.table import Int32

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
