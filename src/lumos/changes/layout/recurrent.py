"""Recurrent layers under other sizes, kernel by kernel, where one operator runs all of them with fused weights.

Every step of the sequence multiplies the hidden state, a row for each sequence of the batch, and then computes the gates, in kernels of
its own. What needs no hidden state is multiplied for all steps at once: the inputs and, in the backward pass, the gradients of inputs and
weights. Which kernels are which follows from how often a call launches them:

    product of each step    model(batch, weights of the state), new / old, of few sequences its mean with the bytes'; and new / old steps
    other kernel of each    elements of the state beyond the fixed time of a kernel; and new steps / old steps
    product at once         model(tokens, weights of the input), new / old
    other kernel at once    elements of the tokens beyond the fixed time of a kernel

A call that launches no kernel for every step runs all steps in one, whose time is that of all these products.

The number of kernels stays: for more steps each lasts longer, with the gap that would follow each of the others, and so do its launch and
the operator's own time on the CPU.
"""

from __future__ import annotations

from itertools import product
from math import sqrt
from typing import TYPE_CHECKING

import numpy as np

from lumos.analyze.task_class import bound_by_arithmetic
from lumos.changes.layout.prices import Ratio, TaskPrices, exactly, growing
from lumos.changes.layout.rescale import CPU_INTERVAL, FULL_RATE, KERNEL_FLOOR, dtype_on, operator_work, recurrent_ns, recurrent_product
from lumos.graph.table import Dependency, Kind
from lumos.operators.shaped import Recurrence, recurrence

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lumos.analyze.loop.steps import Members
    from lumos.cost.cluster import Accelerator
    from lumos.graph.table import Graph
    from lumos.operators.shaped import ShapedOperator
    from lumos.segment.dimensions import Shapes
    from lumos.segment.sizes import Resized
    from lumos.simulation.durations import Mask
    from lumos.trace.table import Int64


def whole_factor(o: ShapedOperator, new: ShapedOperator, accelerator: Accelerator) -> Ratio:
    """The factor of a kernel that runs all steps of the operator `o`, which becomes `new`."""
    before, after = recurrent_ns(o, accelerator), recurrent_ns(new, accelerator)
    if before and after:
        return growing(after / before, CPU_INTERVAL, 0.0)
    return growing(operator_work(new) / max(operator_work(o), 1), CPU_INTERVAL, KERNEL_FLOOR)


def kernel_factor(
    old: Recurrence, new: Recurrence, accelerator: Accelerator, dtype: str | None, *, each_step: bool, multiplies: bool
) -> Ratio:
    """The factor of one kernel of recurrent layers, without that of the number of steps. dtype: in which it multiplies, None if unknown.
    each_step: it runs once a step, not for all steps at once. multiplies: it is a product, not elementwise."""
    if multiplies and dtype is not None:
        before, after = (recurrent_product(r, accelerator, dtype, each_step=each_step) for r in (old, new))
        whole = growing(int(after.time) / int(before.time), int(after.high) / int(after.time) - 1, 0.0)
        few = each_step and old.state == new.state and min(old.rows, new.rows) < FULL_RATE
        return _of_few_rows(whole, old, new) if few else whole
    was, becomes = ((r.rows if each_step else r.tokens) * r.state[-1] for r in (old, new))
    return growing(becomes / was, CPU_INTERVAL, KERNEL_FLOOR)


def _of_few_rows(whole: Ratio, old: Recurrence, new: Recurrence) -> Ratio:
    """The factor of a step's product of few rows with the same weights: in the middle between that of the model, `whole`, and that of its
    memory, which is mostly weights, and the interval reaches to both. Few tiles leave processors idle, so more rows may take hardly more
    time; how many are idle, a recording of one batch does not show."""
    columns, depth = old.state
    memory = (new.rows * (columns + depth) + columns * depth) / (old.rows * (columns + depth) + columns * depth)
    return Ratio(sqrt(whole.best * memory), min(whole.low, memory), max(whole.high, memory), whole.fixed)


def once_a_step(names: Int64, calls: Int64, steps: Int64) -> Mask:
    """Which kernels run once a step, bool[n]: those that their call launches a multiple of its steps, and more than once for `steps`
    launches of the call's most frequent kernel. names, calls, steps: of every kernel its name, its call, and the steps of that."""
    pairs, of_kernel, count = np.unique(np.stack((calls, names)), axis=1, return_inverse=True, return_counts=True)
    _, call = np.unique(pairs[0], return_inverse=True)
    most = np.zeros(call.max(initial=-1) + 1, np.int64)
    np.maximum.at(most, call, count)
    of_kernel = of_kernel.reshape(-1)
    launched, usual = count[of_kernel], most[call][of_kernel]
    found: Mask = (steps > 1) & (launched % np.maximum(steps, 1) == 0) & (launched * steps > usual)
    return found


def resize_recurrent(
    prices: TaskPrices,
    graph: Graph,
    owners: Members,
    tasks: Int64,
    shapes: Shapes,
    rows: Int64,
    change: Resized,
    accelerator: Accelerator,
    operators: Sequence[ShapedOperator],
) -> Mask:
    """Multiply the factors of the kernels of recurrent layers in place, and of the CPU work that launches them. tasks, rows: kernels, and
    the rows of their operators. operators: those of `shapes`, in the types in which they are computed. Returns which of `tasks` are
    kernels of recurrent layers, whose factors are now those of the change."""
    of_row, known = shapes.of_row[rows], [recurrence(o) for o in shapes.operators]
    steps = np.array([r.steps if r else 0 for r in known] or [0], np.int64)[of_row] * (of_row >= 0)
    done = steps > 0
    repeated = np.zeros(len(tasks), bool)
    repeated[done] = once_a_step(graph.name[tasks[done]].astype(np.int64), rows[done], steps[done])
    apart = done & np.isin(rows, rows[repeated])
    products = bound_by_arithmetic(graph)[tasks]
    for index in np.unique(of_row[done]).tolist():
        o, new = operators[index], change.operator(index)._replace(dtypes=operators[index].dtypes)
        old_r, new_r = known[index], recurrence(new)
        if new == o or old_r is None or new_r is None:
            continue
        mine = done & (of_row == index)
        whole = whole_factor(o, new, accelerator)
        prices.multiply(tasks[mine & ~apart], whole)
        for of_step, multiplies in product((False, True), (False, True)):
            same = tasks[mine & apart & (repeated == of_step) & (products == multiplies)]
            dtype = dtype_on(o, accelerator)
            f = kernel_factor(old_r, new_r, accelerator, dtype, each_step=of_step, multiplies=multiplies)
            prices.multiply(same, f)
        if new_r.steps != old_r.steps:
            _repeat(prices, graph, owners, tasks[mine & repeated], np.unique(rows[mine & apart]), new_r.steps / old_r.steps)
    return done


def _repeat(prices: TaskPrices, graph: Graph, owners: Members, kernels: Int64, calls: Int64, times: float) -> None:
    """Let kernels last `times` as long, and the gaps after them; and so the calls that launch them and the operators' own time. calls:
    rows of the operators."""
    if not len(kernels):
        return
    gap = graph.lag[owners.rank[kernels], Dependency.STREAM_ORDER]
    same_rank = owners.rank == owners.rank[kernels[0]]
    own = np.flatnonzero(same_rank & (graph.kind == Kind.OPERATOR) & np.isin(graph.event, calls))
    host = np.union1d(own, owners.launch[kernels])
    prices.multiply(np.append(kernels, host), exactly(times))
    prices.lengthen(kernels, (times - 1) * gap)
