"""How much longer a measured task takes when the sizes of its operator change: measured × model(new) / model(old).

On accelerators the models are those of `cost`. On a CPU core, work at the rate at which the trace did it: a fixed time of
an operator, seen on its smallest ones, and the rest in proportion to arithmetic (multiplications, attention) or to
elements (everything else). The trace's own efficiency is in the measured time, so only the change is modelled. Its
interval grows with the change: the model's own, all of it from a factor of four.
"""

from __future__ import annotations

from math import log
from typing import NamedTuple

import numpy as np

from lumos.analyze.attribution import innermost
from lumos.analyze.steps import Members
from lumos.cost.attention import attention
from lumos.cost.cluster import Accelerator, dtype_name
from lumos.cost.estimate import Estimate
from lumos.cost.gemm import gemm
from lumos.cost.memory_bound import moved
from lumos.cost.operators import OperatorTime, elements
from lumos.cost.traffic import traffic
from lumos.errors import LumosError
from lumos.graph.table import Kind
from lumos.layout.dimensions import Operator, Resize, Shapes, is_attention, product
from lumos.layout.segment import Segmentation
from lumos.trace.table import ABSENT, Category, Int64, Trace

#: 80 % interval of a scaled CPU operator, from a change of a factor of four.
CPU_INTERVAL = 0.15
#: A change this large brings the whole interval of the model.
WHOLE = log(4.0)
#: Operators of so few elements show the fixed time of an operator.
SMALL = 256
#: Fixed time of a kernel, ns: what ATen's smallest kernels take on current accelerators (public traces: 1–3 µs).
KERNEL_FLOOR = 2000


class Factor(NamedTuple):
    """By what a duration is multiplied: best guess, low, high. fixed: ns of it that do not grow."""

    ratio: float
    low: float
    high: float
    fixed: float


UNCHANGED = Factor(1.0, 1.0, 1.0, 0.0)


class Rescale:
    """Factors for the operators of one rank under a `resize`. accelerator: None for a job on CPUs."""

    def __init__(self, trace: Trace, resize: Resize, accelerator: Accelerator | None, fixed: float) -> None:
        self.shapes = Shapes(trace)
        self.resize, self.accelerator, self.fixed = resize, accelerator, fixed
        self._known: dict[tuple[Operator, bool], Factor] = {}

    def __call__(self, row: int, in_layer: bool) -> Factor:
        """The factor of the operator in `row`."""
        o = self.shapes[row]
        if o is None:
            return UNCHANGED
        key = o, in_layer
        if key not in self._known:
            self._known[key] = self._factor(o, in_layer)
        return self._known[key]

    def _factor(self, o: Operator, in_layer: bool) -> Factor:
        new = o._replace(shapes=tuple(self.resize(s, in_layer) for s in o.shapes))
        if new == o:
            return UNCHANGED
        if self.accelerator is not None:
            before, after = modelled(o, self.accelerator), modelled(new, self.accelerator)
            if before is not None and after is not None and int(before.time) > 0:
                ratio = int(after.time) / int(before.time)
                spread = max(int(after.high) / max(int(after.time), 1) - 1, 0.0)
                return _factor(ratio, spread, 0.0)
        ratio = work(new) / max(work(o), 1)
        return _factor(ratio, CPU_INTERVAL, KERNEL_FLOOR if self.accelerator is not None else self.fixed)


def _factor(ratio: float, spread: float, fixed: float) -> Factor:
    grown = spread * min(1.0, abs(log(ratio)) / WHOLE) if ratio > 0 else spread
    return Factor(ratio, ratio / (1 + grown), ratio * (1 + grown), fixed)


def work(o: Operator) -> int:
    """What an operator's time is in proportion to: multiplications, or elements of its inputs."""
    found = product(o)
    if found is not None:
        m, n, k, batch = found
        return m * n * k * batch
    if is_attention(o.name):
        tensors = [s for s in o.shapes if len(s) == 4]
        if len(tensors) >= 2:
            query, key = tensors[0], tensors[1]
            return elements(query) * (key[2] if query[1] == query[2] else max(key[1], key[2]))
    return sum(elements(s) for s in o.shapes if s)


def modelled(o: Operator, accelerator: Accelerator) -> Estimate | None:
    """The cost model's time of an operator on an accelerator; None where no model covers it."""
    found = product(o)
    if found is not None:
        m, n, k, batch = found
        dtype = _dtype(o, accelerator)
        return None if dtype is None else gemm(m, n, k, accelerator, dtype, batch=batch, cast=False)
    if is_attention(o.name):
        tensors = [s for s in o.shapes if len(s) == 4]
        dtype = _dtype(o, accelerator)
        if dtype is None or len(tensors) < 2:
            return None
        backward = "backward" in o.name
        query, key = tensors[1 if backward else 0], tensors[2 if backward and len(tensors) > 2 else 1]
        heads, length = (2, 1) if "flash_attention_" in o.name and "scaled" not in o.name else (1, 2)
        return attention(
            query[0],
            query[length],
            query[heads],
            query[3],
            accelerator,
            dtype,
            kv_heads=key[heads],
            kv_len=key[length],
            direction="bwd" if backward else "fwd",
        )
    if not any(o.shapes):
        return None
    rule = traffic(OperatorTime(o.name, o.shapes, o.dtypes, 0, 1))
    return None if rule is None else moved(rule[1], accelerator, rule[0])


def _dtype(o: Operator, accelerator: Accelerator) -> str | None:
    for name in o.dtypes:
        if name:
            try:
                dtype = dtype_name(name)
            except LumosError:
                continue
            if dtype in accelerator.peak_flops:
                return dtype
    return None


def operator_rows(found: Segmentation, position: int, trace: Trace, owners: Members) -> tuple[Int64, Int64]:
    """(task, operator row with shapes) of the tasks of a rank whose time is an operator's: its device work, or in a job
    on CPUs its own time."""
    graph = found.graph
    tasks = owners.of_rank(position)
    device = tasks[owners.on_device[tasks]]
    column = trace.args.get("Input Dims")
    if column is None:
        return tasks[:0], tasks[:0]
    if len(device):
        mine = device[(graph.kind[device] != Kind.COLLECTIVE) & (owners.launch[device] >= 0)]
        calls = graph.event[owners.launch[mine]].astype(np.int64)
        shaped = column.rows.astype(np.int64)[trace.category[column.rows] == Category.OPERATOR]
        rows = innermost(trace, shaped, calls)
        return mine[rows >= 0], rows[rows >= 0]
    mine = tasks[(graph.kind[tasks] == Kind.OPERATOR) & (graph.event[tasks] != ABSENT)]
    return mine, graph.event[mine].astype(np.int64)


def fixed_time(found: Segmentation, tasks: Int64, rows: Int64, trace: Trace) -> float:
    """The fixed time of an operator on a CPU, ns: the median over the smallest operators."""
    shapes = Shapes(trace)
    small = []
    for task, row in zip(tasks.tolist(), rows.tolist(), strict=True):
        o = shapes[row]
        if o is not None and any(o.shapes) and sum(elements(s) for s in o.shapes) <= SMALL:
            small.append(int(found.graph.duration[task]))
    return float(np.median(small)) if small else 0.0
