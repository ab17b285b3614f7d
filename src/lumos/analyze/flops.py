"""Achieved FLOP/s of matrix products, attention and convolutions, where the trace gives their shapes (record_shapes=True).

How much each computes is `operators.shaped.operations`. The time is that of all device work launched from the operator or, on a rank
without device work, the operator's own CPU time.
"""

from __future__ import annotations

import json
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.analyze.loop.steps import step_times
from lumos.graph.places import innermost
from lumos.graph.table import Kind
from lumos.operators.shaped import operations, positions_first
from lumos.operators.table import OperatorKind, kind_of, of_torch, only_calls
from lumos.trace.once import once_a_trace
from lumos.trace.table import Category, Int64, Job, Trace

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from lumos.analyze.loop.steps import Members
    from lumos.simulation.timeline import Timeline


class Achieved(NamedTuple):
    """Calls of one operator with one set of shapes. flops: operations of one call; time_ns: time of all calls."""

    operator: str
    shapes: str
    calls: int
    flops: float
    time_ns: int
    flops_per_s: float


def achieved_flops(timeline: Timeline, owners: Members, job: Job) -> tuple[Achieved, ...]:
    """Products and attention in the steps that count by operator and shapes, the longest first; empty where shapes are absent."""
    totals: dict[tuple[str, str], tuple[set[tuple[int, int]], float, int]] = {}
    in_steps = step_times(timeline, owners).tasks_counted()
    for position, trace in enumerate(job.traces):
        counted = counted_operators(trace)
        if not counted:
            continue
        tasks, rows = _callers(trace, owners, in_steps, position, np.array(sorted(counted), np.int64))
        time = timeline.end[tasks] - timeline.start[tasks]
        for row, ns in zip(rows.tolist(), time.tolist(), strict=True):
            if row >= 0:
                text, flops = counted[row]
                key = (trace.strings[trace.name[row]], text)
                ids, _, total = totals.setdefault(key, (set(), flops, 0))
                ids.add((position, row))
                totals[key] = (ids, flops, total + ns)
    out = [
        Achieved(name, text, len(ids), flops, ns, flops * len(ids) / (ns / 1e9)) for (name, text), (ids, flops, ns) in totals.items() if ns
    ]
    return tuple(sorted(out, key=lambda a: -a.time_ns))


def _callers(trace: Trace, owners: Members, in_steps: NDArray[np.bool_], position: int, counted: Int64) -> tuple[Int64, Int64]:
    """The tasks in the steps of a rank whose time counts for operators, and the row of `counted` that each belongs to (-1: none)."""
    graph, tasks = owners.graph, owners.of_rank(position)
    tasks = tasks[in_steps[tasks]]
    if owners.on_device[owners.of_rank(position)].any():
        tasks = tasks[owners.launch[tasks] >= 0]
        return tasks, innermost(trace, counted, graph.event[owners.launch[tasks]].astype(np.int64))
    tasks = tasks[graph.kind[tasks] == Kind.OPERATOR]
    rows = graph.event[tasks].astype(np.int64)
    return tasks, np.where(np.isin(rows, counted), rows, -1)


#: The kinds of operators whose operations are counted.
_COUNTED = (OperatorKind.MULTIPLICATION, OperatorKind.ATTENTION, OperatorKind.CONVOLUTION)


def is_counted(name: str) -> bool:
    """Whether an operator computes what is counted, and not by calling others. Attention with positions before heads is called by one
    with heads first, which is counted."""
    return of_torch(name) and kind_of(name) in _COUNTED and not only_calls(name) and not positions_first(name)


@once_a_trace
def counted_operators(trace: Trace) -> dict[int, tuple[str, float]]:
    """By row, the operators whose number of operations is known: their shapes as text, and that number."""
    dims, values = trace.args.get("Input Dims"), trace.dense("Concrete Inputs")
    if dims is None:
        return {}
    known = trace.named(is_counted)
    chosen = known[dims.rows] & (trace.category[dims.rows] == Category.OPERATOR)
    out = {}
    for row, text_index in zip(dims.rows[chosen].tolist(), dims.values[chosen].tolist(), strict=True):
        text = trace.strings[text_index]
        inputs = trace.strings[int(values[row])] if values[row] >= 0 else "[]"
        amount = _operations(trace.strings[trace.name[row]], text, inputs)
        if amount:
            out[row] = (text, amount)
    return out


@lru_cache(maxsize=4096)  # a job repeats the same few shapes in every step
def _operations(name: str, shapes: str, inputs: str) -> float | None:
    """`operations` on the profiler's JSON text."""
    # An input that is a list of tensors has a list of shapes, which tells nothing about the operators that are counted.
    plain = [tuple(shape) if all(isinstance(size, int) for size in shape) else () for shape in json.loads(shapes)]
    return operations(name, plain, json.loads(inputs))
