"""Answers that cannot be: work that takes longer and a step that takes less, or k times the microbatches and more than k times the step.

In a fixed order of the work, no step becomes shorter when work takes longer. Where the order follows from the times (several threads
launch to one stream, kernels share a device), it can: another piece of work then comes first. Such an answer names the order that
changed. Everything else that cannot be is an error of the simulation or of the way in which the job was changed, and no answer.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from lumos.analyze.loop.steady import AGREE
from lumos.diagnostics import Diagnostic
from lumos.errors import GraphError, LumosError
from lumos.graph.table import Dependency
from lumos.units import duration

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from lumos.analyze.loop.steady import Steady

#: The most tasks of a changed job: 25 million take some 8 GB and one to two minutes.
MOST_CHANGED = 25_000_000
#: Memory for each task of a changed job, bytes, with the loop in which it is simulated (measured on jobs of 6 and 24 million tasks).
BYTES_A_TASK = 340


def faster_by_slower_work(base: Steady, changed: Steady) -> tuple[Diagnostic, ...]:
    """The diagnostic that a step became faster although no work did, with the order that changed; () where that is not so.

    base, changed: the loops of one job with different durations. Raises LumosError where no order changed that could explain it.
    """
    before, after = base.loop.graph, changed.loop.graph
    shared = min(len(before), len(after))
    slower_only = (after.duration[:shared] >= before.duration[:shared]).all()
    batches = min(len(before.release_time), len(after.release_time))
    slower_only &= bool((after.release_time[:batches] >= before.release_time[:batches]).all())
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


@contextmanager
def schedulable(changes: str) -> Iterator[None]:
    """Raise LumosError where a job that was put together anew has no schedule. changes: what was changed.

    The ranks of such a recording were cut in different ways, so that each repeats, leaves out or moves other collectives than its peers.
    """
    try:
        yield
    except GraphError as error:
        lines = str(error).splitlines()
        why = "; ".join(line.strip() for line in (lines[0], *(line for line in lines[1:] if "different orders" in line)))
        raise LumosError(
            f"{changes}: the changed job could not run ({why}): the blocks of this recording, cut on each rank, do not fit together in"
            " another order; lumos inspect --blocks shows them"
        ) from error


def check_size(tasks: int, wanted: Mapping[str, int], measured: Mapping[str, int]) -> None:
    """Raise LumosError where the changed job would have more than MOST_CHANGED tasks, with what it would take.

    tasks: of the measured job. wanted: the settings that are whole numbers. measured: the counts of the measured job that multiply its
    tasks, by key.
    """
    changed = tasks
    for key, count in measured.items():
        changed = -(-changed * wanted.get(key, count) // count) if count else changed
    if changed <= MOST_CHANGED:
        return
    words = ", ".join(f"{key}={wanted[key]}" for key in measured if key in wanted)
    raise LumosError(
        f"--set {words}: the changed job would have about {changed:,} tasks instead of {tasks:,}, and take some"
        f" {changed * BYTES_A_TASK / 1e9:,.0f} GB of memory; at most {MOST_CHANGED:,} tasks are computed. Ask for two smaller values: the"
        " step grows in proportion to what is repeated"
    )


def check_microbatches(base_s: float, changed_s: float, before: int, after: int, added_s: float = 0.0) -> None:
    """Raise LumosError where a step with `after` microbatches instead of `before` takes longer than in proportion to them.

    base_s, changed_s: the two steps, seconds. added_s: what adding gradients to those of earlier microbatches takes, seconds, which the
    measured step does not have.
    """
    times = (changed_s - added_s) / base_s if base_s else 0.0
    if after > before and times > (1 + AGREE) * after / before:
        raise LumosError(
            f"--set microbatches: {after} microbatches instead of {before} would take {times:.2f} times as long, more than the"
            f" {after / before:g} times that they can take at most: the passes of this trace cannot be repeated as they were recorded,"
            " so there is no answer"
        )
