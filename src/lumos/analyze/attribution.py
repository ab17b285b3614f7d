"""Which operator, and which module, a piece of device work was launched from.

Device work belongs to the innermost operator inside which, on the same thread, its launch call began. Its module is the innermost
`nn.Module: …` row around the launch call; work launched in the backward pass belongs to the module of the forward operator that has the
same sequence number. Where there is no such row, a range that the script or its framework names (`record_function`, "Optimizer.step#…")
takes its place.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from lumos.graph.places import innermost, is_step_mark
from lumos.graph.table import Kind
from lumos.trace.autograd import autograd_numbers
from lumos.trace.once import once_a_trace
from lumos.trace.table import ABSENT, Category, Int64, Job, Trace
from lumos.vocabulary import MODULE_PREFIX

if TYPE_CHECKING:
    from lumos.analyze.loop.steps import Members

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
