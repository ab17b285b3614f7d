"""The class of each task: a device task's by its kernel's name (`graph.kernel_names`), a CPU task's by its kind; and from which operator
and module device work was launched.

Device work belongs to the innermost operator inside which, on the same thread, its launch call began. Its module is the innermost
`nn.Module: …` row around the launch call; work launched in the backward pass belongs to the module of the forward operator that has the
same sequence number. Where there is no such row, a range that the script or its framework names (`record_function`, "Optimizer.step#…")
takes its place.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from lumos.graph.kernel_names import KernelClass, kernel_class
from lumos.graph.places import innermost, is_step_mark
from lumos.graph.table import Graph, Kind
from lumos.trace.autograd import autograd_numbers
from lumos.trace.once import once_a_trace
from lumos.trace.table import ABSENT, Category, Int64, Job, Trace, unique
from lumos.vocabulary import MODULE_PREFIX

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


#: How the profiler names the ranges of communication libraries: "nccl:all_reduce".
_BACKEND = re.compile(r"[a-z]\w*:\w")


def operators(job: Job, owners: Members) -> Int64:
    """The operator row (of its rank's Trace) of every task, int64[n]: for device work, of its launch. -1 where none."""
    graph = owners.graph
    out = np.where(graph.kind == Kind.OPERATOR, graph.event, ABSENT).astype(np.int64)
    for trace, tasks, calls in _launched(job, owners):
        out[tasks] = innermost(trace, np.flatnonzero(trace.is_any(Category.OPERATOR)), calls)
    cpu_collectives = np.flatnonzero((graph.kind == Kind.COLLECTIVE) & ~owners.on_device)
    out[cpu_collectives] = graph.event[cpu_collectives]
    return out


def modules(job: Job, owners: Members) -> Int64:
    """The module row (of its rank's Trace) that each device task was launched from, or that of a named range, int64[n]; -1 where none."""
    out = np.full(len(owners.graph), -1, np.int64)
    for trace, tasks, calls in _launched(job, owners):
        module = np.full(len(calls), -1, np.int64)
        for rows in _named_ranges(trace):
            for around in (innermost, _forward_module):
                outside = module < 0
                module[outside] = around(trace, rows, calls[outside])
        out[tasks] = module
    return out


def has_modules(job: Job) -> bool:
    """Whether any trace names modules, or ranges that take their place."""
    return any(len(rows) for trace in job.traces for rows in _named_ranges(trace))


@once_a_trace
def _named_ranges(trace: Trace) -> tuple[Int64, Int64]:
    """The rows of modules, and those of ranges with names of their own: neither steps nor what the profiler names (`nccl:…`)."""
    module = trace.is_any(Category.PYTHON) & trace.named(lambda name: name.startswith(MODULE_PREFIX))
    named = trace.is_any(Category.ANNOTATION) & ~is_step_mark(trace) & ~trace.named(lambda name: bool(_BACKEND.match(name)))
    return np.flatnonzero(module), np.flatnonzero(named)


def _forward_module(trace: Trace, modules: Int64, calls: Int64) -> Int64:
    """For each launch call in the backward pass, the module around the forward operator whose sequence number is that of the
    backward operator around the call; -1 where none."""
    column = trace.args.get("Sequence number")
    if column is None or len(calls) == 0:
        return np.full(len(calls), -1, np.int64)
    numbered = column.rows.astype(np.int64)[column.values >= 0]
    number = autograd_numbers(trace)
    around = innermost(trace, modules, numbered)
    forward = around >= 0
    known, last = np.unique(number[numbered[forward]][::-1], return_index=True)
    module = np.append(around[forward][::-1][last], -1)
    backward = innermost(trace, numbered, calls)
    wanted = np.where(backward >= 0, number[backward], ABSENT)
    at_or_after = np.searchsorted(known, wanted)
    out: Int64 = np.where(np.append(known, ABSENT)[at_or_after] == wanted, module[at_or_after], -1)
    return out


def _launched(job: Job, owners: Members) -> list[tuple[Trace, Int64, Int64]]:
    """For each rank: its trace, its launched device tasks, and the rows of their launch calls."""
    graph = owners.graph
    out = []
    for position, trace in enumerate(job.traces):
        tasks = np.flatnonzero((owners.rank == position) & (owners.launch >= 0))
        calls = graph.event[owners.launch[tasks]].astype(np.int64)
        known = calls >= 0
        out.append((trace, tasks[known], calls[known]))
    return out
