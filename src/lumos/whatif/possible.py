"""Answers that cannot be: work that takes longer and a step that takes less, or k times the microbatches and more than k times the step.

In a fixed order of the work, no step becomes shorter when work takes longer. Where the order follows from the times (several threads
launch to one stream, kernels share a device), it can: another piece of work then comes first. Such an answer names the order that
changed. Everything else that cannot be is an error of the simulation or of the way in which the job was changed, and no answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from lumos.analyze.loop.steady import AGREE
from lumos.diagnostics import Diagnostic
from lumos.errors import LumosError
from lumos.graph.table import Dependency
from lumos.units import duration

if TYPE_CHECKING:
    from lumos.analyze.loop.steady import Steady


def faster_by_slower_work(base: Steady, changed: Steady) -> tuple[Diagnostic, ...]:
    """The diagnostic that a step became faster although no work did, with the order that changed; () where that is not so.

    base, changed: the loops of one job with different durations. Raises LumosError where no order changed that could explain it.
    """
    before, after = base.loop.graph, changed.loop.graph
    shared = min(len(before), len(after))
    slower_only = (after.duration[:shared] >= before.duration[:shared]).all()
    if not slower_only or changed.step_time_ns >= (1 - AGREE) * base.step_time_ns:
        return ()
    what = f"no work takes less time, and yet the step takes {duration(changed.step_time_ns)} instead of {duration(base.step_time_ns)}"
    order = changed_order(base, changed)
    if order:
        return (Diagnostic("order-changed", f"{what}: {order}"),)
    if before.occupancy is not None and len(before.occupancy.task) and Dependency.OCCUPANCY not in before.ignored:
        return (Diagnostic("order-changed", f"{what}: kernels of several streams share the device in another way"),)
    raise LumosError(f"{what}, in the same order of the work; that cannot be, so there is no answer; please report it with the trace")


def changed_order(base: Steady, changed: Steady) -> str:
    """The first piece of work that another one on its thread or stream now comes before, in words; "" where all orders are the same."""
    graph = base.loop.graph
    tasks = np.arange(min(len(graph), len(changed.loop.graph)))
    orders = [tasks[np.lexsort((tasks, run.start[tasks], graph.processor[tasks]))] for run in (base.timeline, changed.timeline)]
    other = np.flatnonzero(orders[0] != orders[1])
    if not len(other):
        return ""
    was, now = (int(order[other[0]]) for order in orders)
    where = graph.processors[graph.processor[was]]
    first, second = (graph.names[graph.name[task]][:60] for task in (now, was))
    return f"on rank {where.rank}, {where.name}, {first} now runs before {second}"


def check_microbatches(base_s: float, changed_s: float, before: int, after: int) -> None:
    """Raise LumosError where a step with `after` microbatches instead of `before` takes longer than in proportion to them.

    base_s, changed_s: the two steps, seconds.
    """
    times = changed_s / base_s if base_s else 0.0
    if after > before and times > (1 + AGREE) * after / before:
        raise LumosError(
            f"--set microbatches: {after} microbatches instead of {before} would take {times:.2f} times as long, more than the"
            f" {after / before:g} times that they can take at most: the passes of this trace cannot be repeated as they were recorded,"
            " so there is no answer"
        )
