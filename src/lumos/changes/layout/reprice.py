"""What the operators of a changed job take: measured × model(after) / model(before).

A change says what becomes of the inputs of operators (`MeasuredLayout.sizes` and `rewritten`), and on which device they run. What they then
take is said here alone, for every kind of change. Work that belongs to no operator with shapes is priced where its change is made.

Where the type or the device changes, the kernels of an operator that do not multiply, such as a library's that bring a tensor into another
order, take time as their bytes. A convolution that took longer than its arithmetic at the peak rate waited for memory, too, which it does
less where the rate falls: where it falls to less than a quarter, the new time keeps only a part of what was beyond (`Ratio.carried`), and
the interval reaches from the arithmetic alone to the ratio of the rates.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.analyze.flops import counted_operators
from lumos.analyze.task_class import bound_by_arithmetic
from lumos.changes.layout.operator_tasks import operator_tasks
from lumos.changes.layout.prices import exactly, growing
from lumos.changes.layout.rescale import (
    CPU_INTERVAL,
    attention_blocks,
    core_of,
    largest_inside,
    on_core,
    on_devices,
    passing,
    queries,
    touched,
)
from lumos.changes.layout.reshaped import OperatorsNow
from lumos.graph.lists import equal_rows
from lumos.operators.kernel_formats import in_tf32, rounds_to_tf32, type_by_name
from lumos.operators.shaped import convolution_work, has_rate, type_of
from lumos.vocabulary import DType

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from lumos.changes.layout.measured_layout import MeasuredLayout
    from lumos.changes.layout.prices import Ratio, TaskPrices
    from lumos.changes.layout.rescale import Devices
    from lumos.cost.cluster import Accelerator
    from lumos.operators.shaped import ShapedOperator
    from lumos.simulation.durations import Mask
    from lumos.trace.table import Int64, Job, Trace


def reprice(
    before: MeasuredLayout, after: MeasuredLayout, job: Job, devices: Devices, besides: Sequence[Int64] = ()
) -> tuple[MeasuredLayout, Int64]:
    """The layout `after` a change, in which its operators take what they take then, and the tasks that become so much longer or shorter
    that their measured time says less of it (`Ratio.far`). besides: by rank, the tasks that the change prices in another way."""
    graph, prices, far = after.segmentation.graph, after.prices.copy(), [np.empty(0, np.int64)]
    of_all = _OfAllRanks(bound_by_arithmetic(graph), graph.named(rounds_to_tf32), cache(partial(on_devices, devices)))
    for position, trace in enumerate(job.traces):
        same = before.sizes == after.sizes and before.rewritten.get(position, {}) == after.rewritten.get(position, {})
        if same and not devices.differ:
            continue
        was, now = OperatorsNow(before, position, trace), OperatorsNow(after, position, trace)
        rank = _Rank(after, position, trace, devices, of_all)
        for calls in _alike(rank.shaped(besides[position] if besides else ()), was, now):
            if calls.before != calls.after or devices.differ:
                far += rank.price(prices, calls)
        for calls in _alike(rank.nodes(now), was, now):
            prices.multiply(calls.tasks, rank.around(calls))
    return replace(after, prices=prices), np.concatenate(far)


class _OfAllRanks(NamedTuple):
    """Which tasks of a job are kernels that multiply, and which of these round fp32 to tf32, bool[n]. on_devices: of `rescale`; ranks have
    the same operators."""

    multiplies: Mask
    rounds: Mask
    on_devices: Callable[..., Ratio]


class _Alike(NamedTuple):
    """Tasks that belong to operators that are the same in the recording, before a change and after it. rows: of each task the row of its
    operator. staying: the operator after the change by another reading of its shapes."""

    tasks: Int64
    rows: Int64
    recorded: ShapedOperator
    before: ShapedOperator
    after: ShapedOperator
    staying: ShapedOperator


def _alike(calls: tuple[Int64, Int64], was: OperatorsNow, now: OperatorsNow) -> Iterator[_Alike]:
    """Tasks, with the rows of their operators, by these operators before and after a change."""
    tasks, rows = calls
    for mine in equal_rows(was.kinds(rows), now.kinds(rows)):
        row = int(rows[mine[0]])
        yield _Alike(tasks[mine], rows[mine], was.recorded(row), was[row], *now.both(row))


class _Rank:
    """The operators of a rank as its device or its core runs them."""

    def __init__(self, layout: MeasuredLayout, position: int, trace: Trace, devices: Devices, of_all: _OfAllRanks) -> None:
        self.graph, self.trace, self.devices = layout.segmentation.graph, trace, devices
        self.multiplies, rounds, self.on_devices = of_all
        self.work = operator_tasks(layout.segmentation, position, trace)
        self.core = core_of(self.graph, self.work) if devices.before is None else None
        self.blocks = attention_blocks(self.graph, trace, self.work)
        rounding = self.work.number[rounds[self.work.tasks]]
        self.rounding = {self.work.operators[i] for i in np.unique(rounding[rounding >= 0]).tolist()}

    def shaped(self, besides: Int64 | Sequence[int]) -> tuple[Int64, Int64]:
        """The tasks of operators with shapes, but for some, with the rows of their operators."""
        mine = (self.work.number >= 0) & ~np.isin(self.work.tasks, besides)
        return self.work.tasks[mine], self.work.rows[mine]

    def nodes(self, now: OperatorsNow) -> tuple[Int64, Int64]:
        """On a CPU the tasks of which no axes say what they do, such as nodes of autograd, each with the row of the largest operator inside
        it."""
        if self.core is None or now.change is None:
            return self.work.tasks[:0], self.work.rows[:0]
        unknown = now.change.axes.of_row[self.work.rows] < 0
        inner = largest_inside(self.trace, self.work.rows[unknown], now.change.axes)
        return self.work.tasks[unknown][inner >= 0], inner[inner >= 0]

    def around(self, calls: _Alike) -> Ratio:
        """By what the time of nodes is multiplied with such operators inside."""
        if self.core is None or calls.before == calls.after:
            return exactly(1.0)
        return growing(touched(calls.after) / max(touched(calls.before), 1), CPU_INTERVAL, self.core.node_fixed)

    def price(self, prices: TaskPrices, calls: _Alike) -> list[Int64]:
        """Multiply the times of operators, in place. Returns those of which the measured time says less."""
        (before, after, staying), devices = self._computed(calls), self.devices
        tasks, beside = self._by_class(calls.tasks, before, after)
        ratio = self._ratio(calls, tasks, before, after)
        if staying != after:
            other = self._ratio(calls, tasks, before, staying)
            ratio = ratio._replace(low=min(ratio.low, other.low), high=max(ratio.high, other.high))
        prices.multiply(tasks, ratio.carried(float(prices.of(tasks).ns.sum()) / len(np.unique(calls.rows))))
        if len(beside):
            prices.multiply(beside, passing(before, after, devices))
        return [tasks] * ratio.far

    def _computed(self, calls: _Alike) -> tuple[ShapedOperator, ...]:
        """Operators before a change and after it, in the type in which their kernels multiply: those that rounded fp32 to tf32 do so where
        the device can, and the change says nothing else of the type."""

        def rounded(o: ShapedOperator, device: Accelerator | None) -> ShapedOperator:
            rounds = device is not None and DType.TF32 in device.peak_flops and calls.recorded in self.rounding
            return in_tf32(o) if rounds and o.dtypes == calls.recorded.dtypes else o

        before, after = self.devices
        return rounded(calls.before, before), rounded(calls.after, after), rounded(calls.staying, after)

    def _by_class(self, kernels: Int64, before: ShapedOperator, after: ShapedOperator) -> tuple[Int64, Int64]:
        """The kernels of an operator that take time as the operator does, and those that take it as their bytes where another type or
        device changes the rate of multiplications. Kernels that multiply in the new type already are in neither. Where no name says that a
        kernel multiplies, all may."""
        multiplies = self.multiplies[kernels]
        if not has_rate(before) or (before.dtypes == after.dtypes and not self.devices.differ) or not multiplies.any():
            return kernels, kernels[:0]
        names = [self.graph.names[name] for name in self.graph.name[kernels].tolist()]
        already = [not self.devices.differ and type_by_name(name) is type_of(after) for name in names]
        return kernels[multiplies & ~np.array(already)], kernels[~multiplies]

    def _ratio(self, calls: _Alike, tasks: Int64, before: ShapedOperator, after: ShapedOperator) -> Ratio:
        """By what the time of an operator is multiplied that becomes another."""
        if self.core is not None:
            return on_core(before, after, self.core)
        ratio = self.on_devices(before, after, self.blocks.get(calls.recorded, 0) / max(queries(calls.recorded), 1))
        dtype, device = type_of(before), self.devices.before
        falls = ratio.best > 1 and before.shapes == after.shapes and convolution_work(before)
        if not falls or device is None or dtype not in device.peak_flops:
            return ratio
        flops = counted_operators(self.trace)
        known = [flops[row][1] for row in np.unique(calls.rows).tolist() if row in flops]
        least_ns = 1e9 * sum(known) / max(len(known), 1) / float(device.peak_flops[dtype])
        measured_ns = float(self.graph.duration[tasks].sum()) / len(np.unique(calls.rows))
        return ratio._replace(modelled=least_ns if least_ns < measured_ns else 0.0)
