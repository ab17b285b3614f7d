"""What the operators of a changed job take: measured × model(after) / model(before).

A change says what becomes of the inputs of operators (`MeasuredLayout.sizes` and `rewritten`), and on which device they run. What they then
take is said here alone, for every kind of change. Work that belongs to no operator with shapes is priced where its change is made.

Where the type or the device changes, the kernels of an operator that do not multiply, such as a library's that bring a tensor into another
order, take time as their bytes. A convolution that took longer than its arithmetic at the peak rate waited for memory, too, which it does
less where the rate falls: where it falls to less than a quarter, the new time keeps only a part of what was beyond (`Ratio.carried`), and
the interval reaches from the arithmetic alone to the ratio of the rates.
"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.analyze.flops import counted_operators
from lumos.analyze.task_class import bound_by_arithmetic
from lumos.changes.layout.prices import TaskPrices, exactly, growing
from lumos.changes.layout.rescale import (
    CPU_INTERVAL,
    Devices,
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
from lumos.diagnostics import Diagnostic
from lumos.graph.lists import equal_rows
from lumos.operators.kernels import in_tf32, rounds_to_tf32, type_by_name
from lumos.operators.shaped import convolution_work, has_causal_mask, has_rate, is_attention, type_of
from lumos.segment.rank import recordings_of
from lumos.trace.table import unique
from lumos.units import count as counted
from lumos.vocabulary import DType

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from lumos.changes.layout.measured_layout import MeasuredLayout
    from lumos.changes.layout.prices import Ratio
    from lumos.cost.cluster import Accelerator
    from lumos.operators.shaped import ShapedOperator
    from lumos.segment.rank import OperatorWork, RankRecording
    from lumos.simulation.durations import Mask
    from lumos.trace.table import Int64, Job


def reprice(layout: MeasuredLayout, job: Job, devices: Devices) -> MeasuredLayout:
    """The layout in which operators take what they take after all of its changes, on the devices after them. Open are those that become so
    much longer or shorter that their measured time says less of it (`Ratio.far`)."""
    graph, prices = layout.segmentation.graph, layout.prices.copy()
    recorded, old, new = replace(layout, sizes=(), rewritten={}), devices.before, devices.after
    moves = [_Move(one, cache(partial(on_devices, one))) for one in (devices, Devices(old, old), Devices(new, new))]
    multiplies, rounds = bound_by_arithmetic(graph), graph.named(rounds_to_tf32)
    far = [np.empty(0, np.int64)]
    for rank in recordings_of(layout.segmentation, job):
        if not (layout.sizes or layout.rewritten.get(rank.position) or devices.differ):
            continue
        priced = _Priced(rank, moves, multiplies, rounds)
        was, now = (OperatorsNow(one, rank) for one in (recorded, layout))
        far += [priced.price(prices, calls) for calls in _becoming(rank.work, was, now) if calls.changed or devices.differ]
        if priced.core is not None:
            for calls in _nodes_becoming(rank, was, now):
                prices.multiply(calls.tasks, priced.around(calls))
    tasks = np.concatenate(far)
    notes = _far_from_measured(tasks, layout.changes)
    return replace(layout, prices=prices, open=layout.open.union(tasks.tolist()), diagnostics=(*layout.diagnostics, *notes))


def changed_tasks(before: MeasuredLayout, after: MeasuredLayout, rank: RankRecording) -> Int64:
    """The tasks of a rank whose operators are others after a change than before."""
    changed = [np.empty(0, np.int64)]
    if before.sizes != after.sizes or before.rewritten.get(rank.position, {}) != after.rewritten.get(rank.position, {}):
        was, now = (OperatorsNow(layout, rank) for layout in (before, after))
        changed += [calls.tasks for calls in _becoming(rank.work, was, now) if calls.changed]
        if not after.segmentation.graph.on_device.any():
            changed += [calls.tasks for calls in _nodes_becoming(rank, was, now) if calls.changed]
    return np.concatenate(changed)


def opened(before: MeasuredLayout, after: MeasuredLayout, job: Job) -> MeasuredLayout:
    """The layout after a change that makes assumptions of recorded tasks: open are operators and exchanges that became others, and tasks
    whose interval is another share of their time."""
    old, new, facts = before.prices, after.prices, after.segmentation.graph.collectives
    other = ~np.isclose(old.low * new.best, new.low * old.best) | ~np.isclose(old.high * new.best, new.high * old.best)
    rows = [row for row, of in after.exchanges.items() if before.exchanges.get(row) != of]
    other[facts.task[rows] if facts is not None else []] = True
    for rank in recordings_of(after.segmentation, job):
        other[changed_tasks(before, after, rank)] = True
    return replace(after, open=after.open.union(np.flatnonzero(other).tolist()))


def _far_from_measured(far: Int64, changes: Sequence[str]) -> tuple[Diagnostic, ...]:
    """The diagnostic that kernels (`far`) become much longer or shorter than any that was measured; () where none does."""
    if not len(far):
        return ()
    text = (
        f"{', '.join(changes)}: {counted(len(far), 'recorded kernel')} would take more than four times as long, or a quarter; their"
        " measured time says little of such sizes, so the answer lies between the cost model and its proportion to what was measured, and"
        " the interval reaches to both"
    )
    return (Diagnostic("far-from-measured", text),)


class _Move(NamedTuple):
    """A change of devices, and what `on_devices` says of operators there, which it keeps: ranks have the same."""

    devices: Devices
    ratio: Callable[..., Ratio]


class _Alike(NamedTuple):
    """Tasks that belong to operators that are the same in the recording, before a change and after it. rows: of each task the row of its
    operator. readings: what the operator most likely is after the change, and what else it may be."""

    tasks: Int64
    rows: Int64
    recorded: ShapedOperator
    before: ShapedOperator
    readings: tuple[ShapedOperator, ...]

    @property
    def changed(self) -> bool:
        """Whether the change makes another operator of it."""
        return self.readings != (self.before,)


def _becoming(work: OperatorWork, was: OperatorsNow, now: OperatorsNow) -> Iterator[_Alike]:
    """The tasks of operators with shapes, by what these were and what they are now."""
    return _alike(work.tasks[work.number >= 0], work.rows[work.number >= 0], was, now)


def _nodes_becoming(rank: RankRecording, was: OperatorsNow, now: OperatorsNow) -> Iterator[_Alike]:
    """On a CPU the tasks of which no axes say what they do, such as nodes of autograd, each by the largest operator inside it."""
    if now.change is not None:
        work = rank.work
        unknown = now.change.axes.of_row[work.rows] < 0
        inner = largest_inside(rank.trace, work.rows[unknown], now.change.axes)
        yield from _alike(work.tasks[unknown][inner >= 0], inner[inner >= 0], was, now)


def _alike(tasks: Int64, rows: Int64, was: OperatorsNow, now: OperatorsNow) -> Iterator[_Alike]:
    """Tasks, with the rows of their operators, by these operators before and after a change."""
    for mine in equal_rows(was.kinds(rows), now.kinds(rows)):
        row = int(rows[mine[0]])
        yield _Alike(tasks[mine], rows[mine], was.recorded(row), was[row], now.readings(row))


class _Multiples(NamedTuple):
    """By what the times of some tasks are multiplied, and of which the measured time says less, bool by task."""

    times: TaskPrices
    far: Mask


class _Priced:
    """The operators of a rank as its device or its core runs them. multiplies, rounds: which tasks of the job are kernels that multiply,
    and which of these round fp32 to tf32."""

    def __init__(self, rank: RankRecording, moves: Sequence[_Move], multiplies: Mask, rounds: Mask) -> None:
        self.graph, self.trace, self.moves = rank.segmentation.graph, rank.trace, moves
        self.multiplies = multiplies
        self.core = core_of(self.graph, rank.work) if moves[0].devices.before is None else None
        self.blocks = attention_blocks(self.graph, rank.trace, rank.work)
        self.values = rank.trace.dense("Concrete Inputs")
        rounding = rank.work.number[rounds[rank.work.tasks]]
        self.rounding = {rank.work.operators[i] for i in unique(rounding[rounding >= 0]).tolist()}

    def around(self, calls: _Alike) -> Ratio:
        """By what the time of nodes is multiplied with such operators inside."""
        after = calls.readings[0]
        if self.core is None or calls.before == after:
            return exactly(1.0)
        return growing(touched(after) / max(touched(calls.before), 1), CPU_INTERVAL, self.core.node_fixed)

    def price(self, prices: TaskPrices, calls: _Alike) -> Int64:
        """Multiply the times of operators, in place. Returns those of which the measured time says less."""
        likely, *others = (self._multiples(prices, calls, after) for after in calls.readings)
        for other in others:
            likely.times.hold(other.times)
        prices.combine(calls.tasks, likely.times)
        return calls.tasks[likely.far]

    def _multiples(self, prices: TaskPrices, calls: _Alike, after: ShapedOperator) -> _Multiples:
        """By what the times of operators are multiplied that become `after`."""
        out = _Multiples(TaskPrices.measured(prices.duration[calls.tasks]).copy(), np.zeros(len(calls.tasks), bool))
        for step in self._steps(calls.before, after):
            self._take(out, calls, *step)
        return out

    def _steps(self, before: ShapedOperator, after: ShapedOperator) -> list[tuple[_Move, ShapedOperator, ShapedOperator]]:
        """The changes of an operator one by one: to another device, and to another operator on one that has its old type."""
        move, on_old, on_new = self.moves
        old, new = move.devices
        if old == new:
            return [(move, before, after)]
        there = new is not None and (not has_rate(before) or type_of(before) in new.peak_flops)
        steps = [(move, before, before), (on_new, before, after)] if there else [(on_old, before, after), (move, after, after)]
        return [step for step in steps if step[0] is move or before != after]

    def _take(self, out: _Multiples, calls: _Alike, move: _Move, before: ShapedOperator, after: ShapedOperator) -> None:
        """Multiply the times of operators by what one change makes of them, in place."""
        devices = move.devices
        was, now = self._computed(calls, before, devices.before), self._computed(calls, after, devices.after)
        alike, beside = self._by_class(calls.tasks, devices, was, now)
        ratio = self._ratio(calls, calls.tasks[alike], move, was, now)
        out.times.multiply(alike, ratio.carried(float(out.times.ns[alike].sum()) / len(unique(calls.rows))))
        if beside.any():
            out.times.multiply(beside, passing(was, now, devices))
        out.far[alike] |= ratio.far

    def _computed(self, calls: _Alike, o: ShapedOperator, device: Accelerator | None) -> ShapedOperator:
        """An operator before or after a change in the type in which its kernels multiply: those that rounded fp32 to tf32 do so where the
        device can, and the change says nothing else of the type."""
        rounds = device is not None and DType.TF32 in device.peak_flops and calls.recorded in self.rounding
        return in_tf32(o) if rounds and o.dtypes == calls.recorded.dtypes else o

    def _by_class(self, kernels: Int64, devices: Devices, before: ShapedOperator, after: ShapedOperator) -> tuple[Mask, Mask]:
        """Which kernels of an operator take time as the operator does, and which take it as their bytes where another type or device
        changes the rate of multiplications, bool by kernel. Kernels that multiply in the new type already are in neither. Where no name
        says that a kernel multiplies, all may."""
        multiplies = self.multiplies[kernels]
        if not has_rate(before) or (before.dtypes == after.dtypes and not devices.differ) or not multiplies.any():
            return np.ones(len(kernels), bool), np.zeros(len(kernels), bool)
        names = [self.graph.names[name] for name in self.graph.name[kernels].tolist()]
        already = [not devices.differ and type_by_name(name) is type_of(after) for name in names]
        return multiplies & ~np.array(already), ~multiplies

    def _attends(self, calls: _Alike) -> tuple[float, bool | None]:
        """What the recording says of calls of an attention: `blocks` and `causal` of `on_devices`."""
        said = [json.loads(self.trace.strings[text]) if text >= 0 else [] for text in unique(self.values[calls.rows]).tolist()]
        masks = {has_causal_mask(calls.recorded.name, values) for values in said}
        blocks = self.blocks.get(calls.recorded, 0) / max(queries(calls.recorded), 1)
        return blocks, masks.pop() if len(masks) == 1 else None

    def _ratio(self, calls: _Alike, tasks: Int64, move: _Move, before: ShapedOperator, after: ShapedOperator) -> Ratio:
        """By what the time of an operator is multiplied that becomes another."""
        if self.core is not None:
            return on_core(before, after, self.core)
        ratio = move.ratio(before, after, *self._attends(calls)) if is_attention(before.name) else move.ratio(before, after)
        dtype, device = type_of(before), move.devices.before
        falls = ratio.best > 1 and before.shapes == after.shapes and convolution_work(before)
        if not falls or device is None or dtype not in device.peak_flops:
            return ratio
        flops = counted_operators(self.trace)
        known = [flops[row][1] for row in unique(calls.rows).tolist() if row in flops]
        least_ns = 1e9 * sum(known) / max(len(known), 1) / float(device.peak_flops[dtype])
        measured_ns = float(self.graph.duration[tasks].sum()) / len(unique(calls.rows))
        return ratio._replace(modelled=least_ns if least_ns < measured_ns else 0.0)
